"""The charts of the HTML report: coordinates, which ``parts.html`` draws as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ownbert.fitting.report.calibration import Calibration, ReliabilityCurve
from ownbert.fitting.report.contents import LeaderboardRow
from ownbert.fitting.report.drift import Drift
from ownbert.fitting.report.learning_curve import LearningCurve
from ownbert.tasks.metrics import Ranking

_WIDTH, _HEIGHT = 400, 250  # pixels
_FEW = 5  # rows per bin
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 20, 22, 42


@dataclass
class Chart:
    """What is drawn, in pixels; kinds are classes of the style sheet.

    Args:
        words: description of the chart.
        height: height of the chart; its width is 400.
        grid: y of horizontal lines.
        lines: kind and points of lines; those of the kind "band" are filled.
        boxes: y of box plots, with their five x.
        dots: kind, x, y, radius and title of circles.
        labels: x, y, words and anchor of texts.
    """

    words: str = ""
    height: int = _HEIGHT
    grid: list[float] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[tuple[float, list[float]]] = field(default_factory=list)
    dots: list[tuple[str, float, float, float, str]] = field(default_factory=list)
    labels: list[tuple[float, float, str, str]] = field(default_factory=list)


class _Axes(Chart):
    """A chart with axes, which maps values to coordinates."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        *,
        digits: int,
        log: bool = False,
    ):
        super().__init__()
        self.log, self.y = log, y
        self.x = (math.log(x[0]), math.log(x[1])) if log else x
        for tick in _ticks(*y):
            self.grid.append(self.up(tick))
            self.labels.append((_LEFT - 5, self.up(tick) + 4, f"{tick:.{digits}f}", "end"))
        self.labels.append(((_LEFT + _WIDTH) / 2, _HEIGHT - 4, names[0], "middle"))
        self.labels.append((4, 12, names[1], "start"))

    def across(self, value: float) -> float:
        value = math.log(value) if self.log else value
        share = (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        share = (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def tick(self, value: float, words: str) -> None:
        self.labels.append((self.across(value), _HEIGHT - 24, words, "middle"))

    def line(self, kind: str, xs: Sequence[float], ys: Sequence[float]) -> None:
        points = (f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in zip(xs, ys, strict=True))
        self.lines.append((kind, " ".join(points)))

    def dot(self, kind: str, x: float, y: float, size: float = 4.0, title: str = "") -> None:
        self.dots.append((kind, self.across(x), self.up(y), size, title))


def curve_chart(curve: LearningCurve, metric: str) -> Chart:
    """Measured scores, the fitted curve with its interval, and its extrapolation (dashed)."""
    values = [*curve.scores]
    ends = [*curve.at, *(one.at for one in curve.further)]
    if curve.fitted is not None:
        values += [*curve.fitted[1:].min(1), *curve.fitted[1:].max(1)]
    low, high = min(values), max(values)
    room = max(0.01, (high - low) * 0.06)
    axes = _Axes(
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
    axes.words = f"{metric} by {curve.unit}, measured, fitted and extrapolated"
    return axes


def reliability_chart(calibration: Calibration) -> Chart:
    """Accuracy by confidence, before and after temperature scaling; the diagonal is the ideal."""
    axes = _Axes((0.0, 1.0), (0.0, 1.0), ("confidence", "accuracy"), digits=1)
    for x in (0, 0.2, 0.4, 0.6, 0.8, 1):
        axes.tick(x, f"{x:.1f}")
    axes.line("ideal", (0, 1), (0, 1))
    if calibration.helps:
        _reliability_line(axes, calibration.after, "fit dashed")
    _reliability_line(axes, calibration.before, "fit")
    before = calibration.before
    max_count = max(1, int(before.count.max()))
    for x, y, count in zip(before.confidence, before.accuracy, before.count, strict=True):
        if count:
            size = 2.5 + 4.5 * math.sqrt(count / max_count)
            title = f"{count:,} rows: confidence {x:.2f}, accuracy {y:.2f}"
            axes.dot("dot", x, y, size, title)
    axes.words = "accuracy by confidence"
    return axes


def risk_chart(risk: Sequence[tuple[float, float]]) -> Chart:
    """Error rate by coverage: the share of texts that are answered, the most confident first."""
    shares, errors = zip(*risk, strict=True)
    names, digits = ("share answered", "share wrong"), 2 if max(errors) > 0.05 else 3
    axes = _Axes((0.0, 1.0), (0.0, max(0.01, *errors)), names, digits=digits)
    for x in (0, 0.2, 0.4, 0.6, 0.8, 1):
        axes.tick(x, f"{x:.0%}")
    axes.line("fit", shares, errors)
    axes.dot("dot", shares[-1], errors[-1], title=f"all answered: {errors[-1]:.1%} wrong")
    axes.words = "share wrong by share answered"
    return axes


def ranking_charts(ranking: Ranking) -> list[tuple[Chart, str]]:
    """The curves of the order of rows by the probability of the positive label, with captions."""
    shares, base = (0, 0.2, 0.4, 0.6, 0.8, 1), float(ranking.truth.mean())
    drawn: list[tuple[Chart, str]] = []
    for title, names, (xs, ys), ideal, caption in (
        (
            "ROC curve",
            ("false positive rate", "true positive rate"),
            ranking.roc,
            ((0, 1), (0, 1)),
            "ROC curve. Dotted: a random order.",
        ),
        (
            "precision by recall",
            ("recall", "precision"),
            ranking.precision_recall,
            ((0, 1), (base, base)),
            "Precision by recall. Dotted: a random order.",
        ),
        (
            "cumulative gain",
            ("share of rows, the most probable first", "positive rows found"),
            ranking.gain,
            ((0, 1), (0, 1)),
            "Cumulative gain. Dotted: a random order.",
        ),
        (
            "calibration of the positive label",
            ("probability", "share of positive rows"),
            ranking.calibration[:2],
            ((0, 1), (0, 1)),
            "Calibration. Dotted: perfect calibration.",
        ),
    ):
        axes = _Axes((0.0, 1.0), (0.0, 1.0), names, digits=1)
        for x in shares:
            axes.tick(x, f"{x:.1f}")
        axes.line("ideal", *ideal)
        axes.line("fit", xs.tolist(), ys.tolist())
        axes.words = title
        drawn.append((axes, caption))
    axes = drawn[-1][0]
    assert isinstance(axes, _Axes)
    for x, y, count in zip(*ranking.calibration, strict=True):
        axes.dot("dot", x, y, title=f"{count:,} rows: probability {x:.2f}, positive {y:.2f}")
    return drawn


def _reliability_line(axes: _Axes, curve: ReliabilityCurve, kind: str) -> None:
    used = curve.count >= _FEW  # bins of one or two rows are noise
    axes.line(kind, curve.confidence[used].tolist(), curve.accuracy[used].tolist())


def score_bar(row: LeaderboardRow, low: float, high: float) -> Chart:
    """A score as a dot with two standard deviations on both sides, between ``low`` and ``high``."""

    def across(score: float) -> float:
        return 6 + 128 * (score - low) / ((high - low) or 1)

    chart = Chart()
    if row.spread:
        ends = (across(row.score + times * row.spread) for times in (-2, 2))
        chart.lines.append(("whisker", " ".join(f"{x:.1f},9" for x in ends)))
    if row.test_score is not None:
        title = f"test {row.test_score:.3f}"
        chart.dots.append(("hollow", across(row.test_score), 9, 4.5, title))
    if row.measured:
        chart.dots.append(("dot", across(row.score), 9, 4.5, f"{row.score:.3f}"))
    return chart


def length_chart(drift: Drift) -> Chart:
    """Lengths of labelled and unlabelled texts: percentiles 5 to 95, quartiles and median."""
    values = [max(1.0, v) for v in (*drift.lengths, *drift.unlabelled_lengths)]
    low, high = math.log(min(values)), math.log(max(values))
    chart = Chart("lengths of labelled and unlabelled texts, log scale", 90)
    sides = {"labelled": drift.lengths, "unlabelled": drift.unlabelled_lengths}
    for index, (name, values) in enumerate(sides.items()):
        y = 30 + 44 * index
        xs = [6 + 388 * (math.log(max(1.0, v)) - low) / ((high - low) or 1) for v in values]
        chart.labels.append((4, y - 14, f"{name}: median {values[2]:,.0f} tokens", "start"))
        chart.boxes.append((y, xs))
    return chart


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    raw = (high - low) / 4 or 1.0
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * m for m in (1, 2, 5, 10) if scale * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}k"
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
