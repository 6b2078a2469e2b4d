"""A report as sections of sentences and tables, shared by the HTML page and the text."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from ownbert.exceptions import percent
from ownbert.fitting.report.conclusions import difference, metric_name, other_metrics
from ownbert.fitting.report.contents import RatedRow, Report, shown_spread
from ownbert.fitting.report.report_charts import (
    curve_chart,
    length_chart,
    ranking_charts,
    reliability_chart,
    score_bars,
)
from ownbert.fitting.report.statistics import QUANTILES, LearningCurve
from ownbert.language import translated
from ownbert.language.messages import Message, join, sentences
from ownbert.pages import TEXT, Section, cleaned
from ownbert.tasks.metrics import Ranking
from ownbert.train.metric_names import decimals, shown_label_metric

_LARGEST_MATRIX = 20  # classes; above, only the most confused pairs are shown
_PAIRS = 10  # confusions shown
_REVIEWED = (0.01, 0.05, 0.1, 0.2, 0.5)  # shares of rows
_POINTS = 6  # checkpoints shown
_TEXT, _NAME = 320, 40  # characters
_MOST_ROWS = 50  # rows with texts


def sections(report: Report) -> list[Section]:
    """The sections for which a report has data, in the order of the page."""
    possible = [
        _leaderboard(report),
        _metrics(report),
        _levels(report),
        _classes(report),
        None if report.scores is None else ranking_section(report.scores.ranking),
        _confusions(report),
        _curve("Expected gain from more labels", report, report.learning_curve),
        _curve("Expected gain from more minutes", report, report.minutes_curve),
        _calibration(report),
        _label_errors(report),
        _rated_section("hardest", "The hardest texts", report, report.hardest),
        _rated_section("typical", "The most typical texts", report, report.typical),
        _drift(report),
        _drift_tokens(report),
        _facts("data", "Data", report.data),
        _facts("settings", "Settings", report.settings),
    ]
    return [section.in_language() for section in possible if section and section.rows]


def _name(text: object) -> str:
    return cleaned(str(text), _NAME)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _bytes(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def _leaderboard(report: Report) -> Section:
    ranked = report.ranked
    scores = [row.score if row.measured else None for row in ranked]
    columns: list[tuple[str, Iterable[object], Callable]] = [
        ("model", [translated(row.name) for row in ranked], _name),
        ("kind", [translated(row.kind) for row in ranked], _name),
        (metric_name(report.metric, report.positive), scores, decimals),
        ("rows", report.row_counts or [None] * len(ranked), "{:,}".format),
        ("±", [shown_spread(row.spread) for row in ranked], decimals),
        ("test", [row.test_score for row in ranked], decimals),
        ("weight", [row.weight for row in ranked], lambda v: decimals(v, 2)),
        ("training", [row.seconds for row in ranked], _duration),
        ("size", [row.size for row in ranked], _bytes),
        ("texts/s", [row.texts_per_second for row in ranked], "{:,.0f}".format),
    ]
    columns = [column for column in columns if any(value is not None for value in column[1])]
    cells = [["" if v is None else shown(v) for v in values] for _, values, shown in columns]
    explained = {
        "±": "± is one standard deviation",
        "weight": "weight is the share in the final predictor",
    }
    lead = [words for name, words in explained.items() if name in {c[0] for c in columns}]
    counted = "The column rows has the number of held-out rows behind a score."
    counted = counted if report.row_counts else ""
    network = ""
    if report.network:
        network = Message("Transformers loads this model: {network!t}.", report.network)
        if not report.ordinary:
            network = Message(
                "Only ownbert reads the head of the folder's network: {network!t}.", report.network
            )
    return Section(
        key="leaderboard",
        title="Leaderboard",
        lead=sentences((join(lead, "; ") + "." if lead else "", counted, network)),
        columns=tuple(name for name, *_ in columns),
        rows=tuple(zip(*cells, strict=True)),
        names=2,
        bars=score_bars(report),
    )


def _metrics(report: Report) -> Section:
    rows = tuple((translated(name), *values) for name, *values in other_metrics(report))
    lead = Message("Metrics of {name!t} on the held-out rows.", report.winner.name)
    columns = ("metric", "value", "by chance")
    if report.chance:
        chance = "By chance: the same predictions, assigned to random rows."
        lead = sentences((lead, chance))
    else:
        columns, rows = columns[:2], tuple(row[:2] for row in rows)
    return Section("metrics", "Other metrics", lead, columns, rows)


def _levels(report: Report) -> Section | None:
    if report.scores is None or not (levels := report.scores.levels):
        return None
    rows = tuple(
        (f"{level.level}", f"{level.labels:,}", *map(decimals, level.values.values()))
        for level in levels
    )
    lead = "Labels are a hierarchy: metrics of their first parts."
    columns = ("level", "labels", *map(metric_name, levels[0].values))
    return Section("levels", "Levels of the labels", lead, columns, rows, 0)


def _classes(report: Report) -> Section:
    labels = () if report.scores is None else report.scores.labels
    counts = dict(zip(report.labels, report.train_counts, strict=False))
    columns = ("label", "F1", "precision", "recall", "held-out rows")
    rows = []
    for s in sorted(labels, key=lambda s: (not s.support, s.f1, s.label)):
        values = (s.f1, s.precision, s.recall)
        row = (_name(s.label), *(shown_label_metric(x, s.support) for x in values))
        trained = [f"{counts.get(s.label, 0):,}"] if counts else []
        rows.append((*row, f"{s.support:,}", *trained))
    columns = (*columns, "training rows") if counts else columns
    lead = "Weakest labels first."
    return Section("classes", "Labels", lead, columns, tuple(rows), shares=True)


def ranking_section(ranking: Ranking | None) -> Section | None:
    """Precision, recall and lift for the rows with the highest probabilities of the positive
    label."""
    if ranking is None or not ranking.complete:
        return None
    rows, base = [], float(ranking.truth.mean())
    for share in _REVIEWED:
        lift = ranking.lift(share)
        figures = (f"{base * lift:.3f}", f"{share * lift:.3f}", f"{lift:.2f}")
        rows.append((f"{share:.0%}", *figures))
    lead = Message(
        "If only the rows with the highest probability of {name} are reviewed. Lift: how "
        "many times as frequent it is there as in all rows.",
        _name(ranking.positive),
    )
    columns = ("share of rows", "precision", "recall", "lift")
    drawn = ranking_charts(ranking)
    return Section("ranking", "The positive label", lead, columns, tuple(rows), drawn=drawn)


def _confusions(report: Report) -> Section | None:
    if (scores := report.scores) is None or scores.confusion is None:
        return None
    names, totals = [_name(s.label) for s in scores.labels], scores.confusion.sum(1)
    pairs = scores.confusions(_PAIRS)
    rows = [(names[i], names[j], f"{n:,}", f"{n / totals[i]:.0%}") for i, j, n in pairs]
    columns = ("true label", "predicted as", "rows", "share")
    lead = "Most frequent first; shares are relative to all rows with the true label."
    matrix = None
    if len(scores.labels) <= _LARGEST_MATRIX:
        # Square roots keep small shares visible.
        heat = np.sqrt(scores.confusion / np.maximum(1, totals[:, None]))
        matrix = {
            "names": [cleaned(score.label, 24) for score in scores.labels],
            "confusion": scores.confusion.tolist(),
            "heat": heat.tolist(),
        }
    return Section("confusion", "Confusions", lead, columns, tuple(rows), 2, matrix=matrix)


_CURVES_OF = {
    "rows": "Scores of a linear model on words.",
    "minutes": "Scores of a linear model on the network after increasing amounts of pretraining.",
}


def _curve(title: str, report: Report, curve: LearningCurve | None) -> Section | None:
    if curve is None or not len(curve.at):
        return None
    number_format = "{:,.0f}" if curve.unit == "rows" else "{:,.3g}"
    rows = [
        (number_format.format(x), decimals(score), "", "")
        for x, score in zip(curve.at, curve.scores, strict=True)
    ]
    if len(rows) > _POINTS:  # show a subset of many checkpoints
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, _POINTS).astype(int)]
    for one in curve.further:
        gains = one.gain, one.gain_low, one.gain_high
        gain = Message("{gain} ({low} to {high})", *(difference(report, value) for value in gains))
        interval = Message("{low} to {high}", decimals(one.low), decimals(one.high))
        score = decimals(one.score)
        rows.append((number_format.format(one.at), score, translated(interval), translated(gain)))
    lead = "A power law fitted to the scores, with the interval of 90% of resampled fits."
    if not curve.known:
        lead = Message("This cannot be estimated: {reason!t}.", curve.reason)
    lead = sentences((_CURVES_OF[curve.unit], lead))
    metric = metric_name(report.metric, report.positive)
    caption = "Dots: measured. Line: fitted, dashed beyond the data. Band: 90%."
    drawn = [(curve_chart(curve, metric), caption)]
    columns = (curve.unit, metric, "interval", "gain")
    return Section(curve.unit, title, lead, columns, tuple(rows), 0, drawn)


def _calibration(report: Report) -> Section | None:
    if (calibration := report.calibration) is None:
        return None
    rows = [
        ("calibration error", f"{calibration.error:.3f}"),
        ("error expected by chance, at most", f"{calibration.by_chance:.3f}"),
    ]
    if calibration.helps:
        rows.append(("temperature", f"{calibration.temperature:.2f}"))
        rows.append(("error with the temperature", f"{calibration.error_after:.3f}"))
    else:
        rows.append(("temperature", translated("none helps")))
    lead = "Of the predictions made with a probability of 80%, are 80% right?"
    shown = tuple((translated(name), value) for name, value in rows)
    pairs = zip(report.labels, calibration.classes, strict=False)
    for label, own in sorted(pairs, key=lambda pair: pair[1].by_chance - pair[1].error):
        if own.shifted and not own.calibrated and len(shown) < _MOST_ROWS:
            name = translated("mean probability of a label, and share of rows with it")
            shown += ((f"{name}: {_name(label)}", f"{own.mean:.1%}, {own.rate:.1%}"),)
    solid, dotted = "Solid: the model; larger dots: more rows.", "Dotted: perfect calibration."
    dashed = "Dashed: with the temperature." if calibration.helps else ""
    drawn = [(reliability_chart(calibration), sentences((solid, dashed, dotted)))]
    title = "Can probabilities be trusted?"
    return Section("calibration", title, lead, ("", ""), shown, drawn=drawn)


def _label_errors(report: Report) -> Section:
    rows = [
        _row_cells(report, one.row, (one.given, one.suggested), f"{one.score:.2f}")
        for one in report.label_errors[:_MOST_ROWS]
    ]
    lead = Message(
        "Held-out rows whose labels disagree with the model, the clearest first; some of these "
        "labels are correct. {count:,} in total",
        len(report.label_errors),
    )
    shown = Message(", {rows} shown.", _MOST_ROWS) if len(report.label_errors) > _MOST_ROWS else "."
    columns = ("row", "given", "suggested", "margin", TEXT)
    return Section("label_errors", "Likely label errors", lead + shown, columns, tuple(rows), 3)


def _rated_section(key: str, title: str, report: Report, rated: tuple[RatedRow, ...]) -> Section:
    kind = "g" if report.task == "regress" else "f"
    rows = tuple(
        _row_cells(report, one.row, (one.true, one.predicted), f"{one.score:.3{kind}}")
        for one in rated[: 4 * _MOST_ROWS]
    )
    if report.task == "regress":
        columns, lead = ("row", "true", "predicted", "error", TEXT), "By absolute error."
    else:
        columns = ("row", "true label", "predicted", "probability", TEXT)
        lead = "By the probability of the true label."
        if key == "typical":
            lead = "One per label: the highest probability of the true label."
    return Section(key, title, lead, columns, rows, 3)


def _row_cells(
    report: Report, row: int, answers: tuple[float, float], figure: str
) -> tuple[str, ...]:
    place, text = _name(translated(report.place_of(row))), cleaned(report.text_of(row), _TEXT)
    return (place, *(_name(report.answer(answer)) for answer in answers), figure, text)


def _drift(report: Report) -> Section | None:
    if (drift := report.drift) is None:
        return None
    sides = (
        ("labelled, tokens per text", drift.lengths),
        ("unlabelled, tokens per text", drift.unlabelled_lengths),
    )
    rows = tuple((translated(name), *(f"{x:,.0f}" for x in lengths)) for name, lengths in sides)
    columns = ("", *("median" if q == 0.5 else f"{q:.0%}" for q in QUANTILES))
    lead = [drift.summary]
    if drift.separability is not None:
        separability = "Separability {value:.2f} (.5: indistinguishable, 1: fully separable)."
        lead.append(Message(separability, drift.separability))
    unknown = Message(
        "{share} of the labelled texts' tokens occur in no unlabelled text, {other} vice versa.",
        *(percent(drift.unknown), percent(drift.unlabelled_unknown)),
    )
    drawn = [(length_chart(drift), "Line: 5 to 95%. Box: the middle half.")]
    title, lead = "Labelled vs. unlabelled texts", sentences([*lead, unknown])
    return Section("drift", title, lead, columns, rows, drawn=drawn)


def _drift_tokens(report: Report) -> Section | None:
    if report.drift is None:
        return None
    rows = []
    # By the side where tokens are more frequent, with the ratio.
    chips: dict[str, list[tuple[str, str, str]]] = {"labelled": [], "unlabelled": []}
    for one in report.drift.tokens:
        side = "labelled" if one.score > 0 else "unlabelled"
        labelled, unlabelled = f"{one.labelled:.3%}", f"{one.unlabelled:.3%}"
        token, figures = _name(one.token), (labelled, unlabelled, f"{one.score:+.1f}")
        rows.append((translated(side), token, *figures))
        more, less = sorted((one.labelled, one.unlabelled), reverse=True)
        times = f"×{more / less:,.1f}" if less else translated("only")
        hint = Message(
            "{labelled:.3%} of the labelled, {unlabelled:.3%} of the unlabelled tokens",
            *(one.labelled, one.unlabelled),
        )
        chips[side].append((one.token, hint, times))
    return Section(
        "drift_tokens",
        "Tokens that differ most",
        "The clearest differences in token frequency.",
        ("more in", "token", "labelled", "unlabelled", "deviations"),
        tuple(rows),
        2,
        chips=[(f"more in {side} texts", tokens) for side, tokens in chips.items()],
        linked=False,
    )


def _facts(key: str, title: str, facts: Mapping[str, object]) -> Section:
    shown = {name: cleaned(plain_value(value), _TEXT) for name, value in facts.items()}
    if key == "data":  # settings keep their recipe names
        shown = {translated(name): translated(value) for name, value in shown.items()}
    rows = tuple((_name(name), value) for name, value in shown.items())
    return Section(key, title, "", ("", ""), rows, 2)


def plain_value(value: object) -> str:
    """A setting or a fact as text."""
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
