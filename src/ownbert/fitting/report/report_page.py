"""A report as a self-contained HTML page.

A content security policy with the script's hash blocks all other scripts.
"""

import base64
import hashlib
import html
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from ownbert.fitting.report import charts
from ownbert.fitting.report.advice import HARD_TASK, headline, metric_name, share_contradicted
from ownbert.fitting.report.contents import Report, cleaned
from ownbert.fitting.report.sections import LARGEST_MATRIX, Section, sections
from ownbert.language import translated, translated_page

_FIRST_TEXTS = 8  # texts of a section shown initially
_OPEN_ROWS = 12  # rows of a table shown initially
_SENTENCE = 400
_TASKS = {"classify": "one label per text", "multilabel": "several labels per text"}
_KINDS = {"do": "Do", "note": "Note", "fine": "Fine"}


def as_page(report: Report) -> str:
    """The report as HTML."""
    shown = sections(report)
    first, *rest = (
        html.escape(cleaned(translated(sentence), _SENTENCE)) for sentence in headline(report)
    )
    keys = [(s.key, s.title) for s in shown if s.key != "drift_tokens"]
    if report.advice:
        keys.insert(1, ("advice", translated("What to do next")))
    board, *others = (_section(report, section) for section in shown)
    advice = _part("advice", report.advice, _KINDS) if report.advice else ""
    return framed(
        html.escape(translated(_TASKS.get(report.task, "a number per text"))),
        first,
        "".join(f"<p>{sentence}</p>" for sentence in rest if sentence) + _figures(report),
        keys,
        board + advice + "".join(others),
    )


def _part(name: str, *values: Any) -> str:
    """Render a macro of parts.html, which escapes its values."""
    return str(getattr(_parts(), name)(*values))


@cache
def _parts() -> Any:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.globals.update(translated=translated, cleaned=cleaned)
    return environment.from_string(_resource("parts.html")).module


def framed(kind: str, headline: str, lead: str, keys: Sequence[tuple[str, str]], main: str) -> str:
    """A page with the report's style and a script that sorts tables.

    Args:
        kind: kind of the report, escaped.
        headline: headline of the report, escaped.
        lead: HTML below the headline.
        keys: keys and titles of the linked sections.
        main: HTML of the sections.
    """
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return translated_page(_resource("page.html")).format(
        script_hash=digest,
        style=_resource("page.css"),
        task=kind,
        headline=headline,
        lead=lead,
        links="".join(f'<a href="#{key}">{html.escape(title)}</a>' for key, title in keys),
        main=main,
        script=script,
    )


def _resource(name: str) -> str:
    return (files("ownbert.fitting.report") / name).read_text(encoding="utf-8")


def _figures(report: Report) -> str:
    """The key figures."""
    best, baseline = report.winner, report.baseline
    found = [(f"{best.score:.3f}", metric_name(report.metric))]
    if baseline is not None and baseline is not best:
        found.append((f"{best.score - baseline.score:+.3f}", "vs. the best linear model"))
    if best.test_score is not None:
        found.append((f"{best.test_score:.3f}", "on the test set"))
    curve = report.learning_curve
    if curve is not None and curve.known and curve.further:
        times = curve.further[0].at / curve.at[-1]
        found.append((f"{curve.further[0].gain:+.3f}", f"expected with {times:.2g}× the labels"))
    if 0 < share_contradicted(report) <= HARD_TASK:
        found.append((f"{len(report.label_errors):,}", "likely label errors"))
    return figures([(value, translated(name)) for value, name in found])


def figures(found: Sequence[tuple[str, str]]) -> str:
    """Large values with their names."""
    return _part("figures", found)


def _section(report: Report, section: Section) -> str:
    body, drawn = table(section), _DRAWN.get(section.key)
    if section.has_texts:
        body = text_list(section)
    elif section.key == "drift_tokens":
        body = _token_lists(report)
    elif section.key == "leaderboard":
        body = table(section, _score_bars(report))
    return _part("section", section, body, None if drawn is None else drawn(report))


def table(section: Section, bars: list[str] | None = None) -> str:
    """A table; a long one scrolls.

    Args:
        section: section to show.
        bars: charts placed after the row names.
    """
    return _part("table", section, bars, section.key == "classes", _OPEN_ROWS)


def _score_bars(report: Report) -> list[str]:
    ends = []
    for row in report.leaderboard:
        if row.measured:
            ends += [row.score - 2 * (row.spread or 0), row.score + 2 * (row.spread or 0)]
        ends += [] if row.test_score is None else [row.test_score]
    return [charts.score_bar(row, min(ends), max(ends)) for row in report.ranked]


def text_list(section: Section) -> str:
    """Rows with a text, each below a line of facts about it."""
    return _part("text_list", section, _FIRST_TEXTS)


def _token_lists(report: Report) -> str:
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
    return _part("token_lists", lists.items())


def _matrix(report: Report) -> str:
    """The confusion matrix as shaded cells; with many labels only the most confused pairs."""
    scores = report.scores
    if scores is None or scores.confusion is None or len(scores.labels) > LARGEST_MATRIX:
        return ""
    names = [cleaned(score.label, 24) for score in scores.labels]
    # Square roots keep small shares visible.
    heat = np.sqrt(scores.confusion / np.maximum(1, scores.confusion.sum(1, keepdims=True)))
    return _part("matrix", names, scores.confusion.tolist(), heat.tolist())


def _figure(chart: str, caption: str) -> str:
    return _part("figure", chart, caption)


def _drawn_curve(name: str) -> Callable[[Report], str]:
    def draw(report: Report) -> str:
        chart = charts.curve_chart(getattr(report, name), metric_name(report.metric))
        return _figure(chart, "Dots: measured. Line: fitted, dashed beyond the data. Band: 90%.")

    return draw


def _drawn_calibration(report: Report) -> str:
    assert report.calibration is not None
    dashed = " Dashed: with the temperature." if report.calibration.helps else ""
    return _figure(
        charts.reliability_chart(report.calibration),
        f"Solid: the model; larger dots: more rows.{dashed} Dotted: perfect calibration.",
    )


def _drawn_lengths(report: Report) -> str:
    assert report.drift is not None
    return _figure(charts.length_chart(report.drift), "Line: 5 to 95%. Box: the middle half.")


_DRAWN: dict[str, Callable[[Report], str]] = {
    "confusion": _matrix,
    "rows": _drawn_curve("learning_curve"),
    "minutes": _drawn_curve("minutes_curve"),
    "calibration": _drawn_calibration,
    "drift": _drawn_lengths,
}
