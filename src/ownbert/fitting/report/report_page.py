"""A report as a self-contained HTML page.

A content security policy with the script's hash blocks all other scripts.
"""

from typing import Any

import numpy as np

from ownbert.fitting.report import charts
from ownbert.fitting.report.advice import (
    HARD_TASK,
    can_rise,
    share_contradicted,
)
from ownbert.fitting.report.charts import Chart
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.headline import difference, headline, metric_name
from ownbert.fitting.report.sections import LARGEST_MATRIX, sections
from ownbert.language import translated
from ownbert.pages import cleaned, page

SENTENCE = 400  # characters
_TASKS = {"classify": "one label per text", "multilabel": "several labels per text"}


def as_page(report: Report) -> str:
    """The report as HTML."""
    shown = sections(report)
    first, *rest = (cleaned(translated(sentence), SENTENCE) for sentence in headline(report))
    keys = [(s.key, s.title) for s in shown if s.key != "drift_tokens"]
    if report.advice:
        keys.insert(1, ("advice", translated("What to do next")))
    return page(
        "fitting/report/report.html",
        kind=translated(_TASKS.get(report.task, "a number per text")),
        headline=first,
        lead=[sentence for sentence in rest if sentence],
        figures=[(translated(value), translated(name)) for value, name in _figures(report)],
        keys=keys,
        shown=shown,
        bars=_score_bars(report),
        advice=report.advice,
        tokens=_token_lists(report).items(),
        matrix=_matrix(report),
        charts=_charts(report),
        ranking=_ranking(report),
    )


def _figures(report: Report) -> list[tuple[str, str]]:
    """The key figures with their names."""
    best, baseline = report.winner, report.baseline
    figures = [(f"{best.score:.3f}", metric_name(report.metric, report.positive))]
    if baseline is not None and baseline is not best:
        figures.append(
            (difference(report, report.gain(best, baseline)), "vs. the best linear model")
        )
    if best.test_score is not None:
        figures.append((f"{best.test_score:.3f}", "on the test set"))
    curve = report.learning_curve
    if curve is not None and curve.known and curve.further and can_rise(report):
        times = curve.further[0].at / curve.start
        figures.append(
            (difference(report, curve.further[0].gain), f"expected with {times:.2g}× the labels")
        )
    if 0 < share_contradicted(report) <= HARD_TASK:
        figures.append((f"{len(report.label_errors):,}", "likely label errors"))
    return figures


def _score_bars(report: Report) -> list[Chart]:
    ends = []
    for row in report.leaderboard:
        if row.measured:
            ends += [row.score - 2 * (row.spread or 0), row.score + 2 * (row.spread or 0)]
        ends += [] if row.test_score is None else [row.test_score]
    return [charts.score_bar(row, min(ends), max(ends)) for row in report.ranked]


def _token_lists(report: Report) -> dict[str, list[tuple[str, str, str]]]:
    """Tokens by the side where they are more frequent, with the ratio."""
    lists: dict[str, list[tuple[str, str, str]]] = {
        "more in labelled texts": [],
        "more in unlabelled texts": [],
    }
    for one in report.drift.tokens if report.drift else ():
        side = "labelled" if one.score > 0 else "unlabelled"
        more, less = sorted((one.labelled, one.unlabelled), reverse=True)
        times = f"×{more / less:,.1f}" if less else translated("only")
        hint = f"{one.labelled:.3%} of the labelled, {one.unlabelled:.3%} of the unlabelled tokens"
        if one.score:
            lists[f"more in {side} texts"].append((one.token, hint, times))
    return lists


def _matrix(report: Report) -> dict[str, Any] | None:
    """The confusion matrix with the shades of its cells; None if there are too many labels."""
    scores = report.scores
    if scores is None or scores.confusion is None or len(scores.labels) > LARGEST_MATRIX:
        return None
    # Square roots keep small shares visible.
    heat = np.sqrt(scores.confusion / np.maximum(1, scores.confusion.sum(1, keepdims=True)))
    return {
        "names": [cleaned(score.label, 24) for score in scores.labels],
        "confusion": scores.confusion.tolist(),
        "heat": heat.tolist(),
    }


def _ranking(report: Report) -> list[tuple[Chart, str]]:
    ranking = None if report.scores is None else report.scores.ranking
    return [] if ranking is None else charts.ranking_charts(ranking)


def _charts(report: Report) -> dict[str, tuple[Chart, str]]:
    """Charts with captions by the key of their section."""
    shown: dict[str, tuple[Chart, str]] = {}
    for key, curve in (("rows", report.learning_curve), ("minutes", report.minutes_curve)):
        if curve is not None and len(curve.scores):
            caption = "Dots: measured. Line: fitted, dashed beyond the data. Band: 90%."
            name = metric_name(report.metric, report.positive)
            shown[key] = charts.curve_chart(curve, name), caption
    if (calibration := report.calibration) is not None:
        dashed = " Dashed: with the temperature." if calibration.helps else ""
        caption = f"Solid: the model; larger dots: more rows.{dashed} Dotted: perfect calibration."
        shown["calibration"] = charts.reliability_chart(calibration), caption
    if report.drift is not None:
        caption = "Line: 5 to 95%. Box: the middle half."
        shown["drift"] = charts.length_chart(report.drift), caption
    return shown
