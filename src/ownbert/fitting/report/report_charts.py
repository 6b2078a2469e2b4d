"""The charts of the HTML report."""

import math
from collections.abc import Sequence
from typing import Any

from ownbert.charts import Axes, Chart
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.statistics import Calibration, Drift, LearningCurve, ReliabilityCurve
from ownbert.language.messages import Message
from ownbert.tasks.metrics import Ranking

_FEW = 5  # rows per bin


def curve_chart(curve: LearningCurve, metric: str) -> Chart:
    """Measured scores, the fitted curve with its interval, and its extrapolation (dashed)."""
    values = [*curve.scores]
    ends = [*curve.at, *(one.at for one in curve.further)]
    if curve.fitted is not None:
        values += [*curve.fitted[1:].min(1), *curve.fitted[1:].max(1)]
    low, high = min(values), max(values)
    room = max(0.01, (high - low) * 0.06)
    axes = Axes(
        (min(ends), max(*ends, min(ends) * 1.01)),
        (low - room, high + room),
        (f"{curve.unit} (log scale)", metric),
        digits=2 if high - low > 0.05 else 3,
        log=True,
    )
    if curve.fitted is not None:
        xs, scores, lower, upper = curve.fitted
        axes.line("band", [*xs, *xs[::-1]], [*upper, *lower[::-1]])
        cut = int((xs <= curve.at[-1] * 1.0001).sum())
        axes.line("fit", xs[:cut], scores[:cut])
        axes.line("fit dashed", xs[max(0, cut - 1) :], scores[max(0, cut - 1) :])
    for x, y in zip(curve.at, curve.scores, strict=True):
        axes.dot("dot", x, y)
    for one in curve.further:
        axes.dot("hollow", one.at, one.score)
    last = -math.inf
    for x in sorted(set(ends)):  # skip labels that would overlap
        if axes.across(x) - last > 44:
            last = axes.across(x)
            axes.tick(x, _short(x))
    axes.words = Message(
        "{metric!t} by {unit!t}, measured, fitted and extrapolated", metric, curve.unit
    )
    return axes


def reliability_chart(calibration: Calibration) -> Chart:
    """Accuracy by confidence, before and after temperature scaling; the diagonal is the ideal."""
    axes = Axes((0.0, 1.0), (0.0, 1.0), ("confidence", "accuracy"), digits=1)
    axes.share_ticks(".1f")
    axes.line("ideal", (0, 1), (0, 1))
    if calibration.helps:
        _reliability_line(axes, calibration.after, "fit dashed")
    _reliability_line(axes, calibration.before, "fit")
    before = calibration.before
    max_count = max(1, int(before.count.max()))
    for x, y, count in zip(before.confidence, before.accuracy, before.count, strict=True):
        if count:
            size = 2.5 + 4.5 * math.sqrt(count / max_count)
            title = Message("{count:,} rows: confidence {x:.2f}, accuracy {y:.2f}", count, x, y)
            axes.dot("dot", x, y, size, title)
    axes.words = "accuracy by confidence"
    return axes


def risk_chart(risk: Sequence[tuple[float, float]]) -> Chart:
    """Error rate by coverage: the share of texts that are answered, the most confident first."""
    shares, errors = zip(*risk, strict=True)
    names, digits = ("share answered", "share wrong"), 2 if max(errors) > 0.05 else 3
    axes = Axes((0.0, 1.0), (0.0, max(0.01, *errors)), names, digits=digits)
    axes.share_ticks(".0%")
    axes.line("fit", shares, errors)
    title = Message("all answered: {error:.1%} wrong", errors[-1])
    axes.dot("dot", shares[-1], errors[-1], title=title)
    axes.words = "share wrong by share answered"
    return axes


def ranking_curves(ranking: Ranking) -> list[tuple[str, tuple[str, str], Any, tuple[float, float]]]:
    """The curves of the order of rows by the probability of the positive label: title, names of
    the axes, x and y, and the ends of the ideal or random curve from x = 0 to x = 1."""
    base = float(ranking.truth.mean())
    return [
        ("ROC curve", ("false positive rate", "true positive rate"), ranking.roc, (0, 1)),
        ("Precision by recall", ("recall", "precision"), ranking.precision_recall, (base, base)),
        (
            "Cumulative gain",
            ("share of rows, the most probable first", "positive rows found"),
            ranking.gain,
            (0, 1),
        ),
        (
            "Calibration",
            ("probability", "share of positive rows"),
            ranking.calibration[:2],
            (0, 1),
        ),
    ]


def ranking_charts(ranking: Ranking) -> list[tuple[Chart, str]]:
    """The ``ranking_curves`` with captions."""
    drawn: list[tuple[Chart, str]] = []
    for title, names, (xs, ys), ideal in ranking_curves(ranking):
        axes = Axes((0.0, 1.0), (0.0, 1.0), names, digits=1)
        axes.share_ticks(".1f")
        axes.line("ideal", (0, 1), ideal)
        axes.line("fit", xs.tolist(), ys.tolist())
        axes.words, dotted = title, "a random order"
        if title == "Calibration":
            dotted = "perfect calibration"
            for x, y, count in zip(*ranking.calibration, strict=True):
                title = Message(
                    "{count:,} rows: probability {x:.2f}, positive {y:.2f}", count, x, y
                )
                axes.dot("dot", x, y, title=title)
        drawn.append((axes, Message("{title!t}. Dotted: {dotted!t}.", title, dotted)))
    return drawn


def _reliability_line(axes: Axes, curve: ReliabilityCurve, kind: str) -> None:
    used = curve.count >= _FEW  # bins of one or two rows are noise
    axes.line(kind, curve.confidence[used].tolist(), curve.accuracy[used].tolist())


def score_bars(report: Report) -> list[Chart]:
    """The score of each ranked row as a dot with two standard deviations on both sides, and that on
    the test set."""
    ends = []
    for row in report.leaderboard:
        if row.measured:
            ends += [row.score - 2 * (row.spread or 0), row.score + 2 * (row.spread or 0)]
        ends += [] if row.test_score is None else [row.test_score]
    low, high = min(ends), max(ends)

    def across(score: float) -> float:
        return 6 + 128 * (score - low) / ((high - low) or 1)

    bars = []
    for row in report.ranked:
        bar = Chart()
        if row.spread:
            whisker = (across(row.score + times * row.spread) for times in (-2, 2))
            bar.lines.append(("whisker", " ".join(f"{x:.1f},9" for x in whisker)))
        if row.test_score is not None:
            title = Message("test {test_score:.3f}", row.test_score)
            bar.dots.append(("hollow", across(row.test_score), 9, 4.5, title))
        if row.measured:
            bar.dots.append(("dot", across(row.score), 9, 4.5, f"{row.score:.3f}"))
        bars.append(bar)
    return bars


def length_chart(drift: Drift) -> Chart:
    """Lengths of labelled and unlabelled texts: percentiles 5 to 95, quartiles and median."""
    values = [max(1.0, v) for v in (*drift.lengths, *drift.unlabelled_lengths)]
    low, high = math.log(min(values)), math.log(max(values))
    chart = Chart("lengths of labelled and unlabelled texts, log scale", 90)
    sides = {"labelled": drift.lengths, "unlabelled": drift.unlabelled_lengths}
    for index, (name, values) in enumerate(sides.items()):
        y = 30 + 44 * index
        xs = [6 + 388 * (math.log(max(1.0, v)) - low) / ((high - low) or 1) for v in values]
        chart.labels.append(
            (4, y - 14, Message("{name!t}: median {median:,.0f} tokens", name, values[2]), "start")
        )
        chart.boxes.append((y, xs))
    return chart


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}k"
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
