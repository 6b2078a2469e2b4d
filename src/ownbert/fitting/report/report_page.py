"""A report as one page for a browser: self-contained, nothing is fetched.

Only the script of the page may run: the policy in its head names its hash.
"""

import base64
import hashlib
import html
from collections.abc import Callable, Sequence
from importlib.resources import files

import numpy as np

from ownbert.fitting.report import charts
from ownbert.fitting.report.advice import HARD_TASK, headline, metric_name, share_contradicted
from ownbert.fitting.report.contents import Report, cleaned
from ownbert.fitting.report.sections import LARGEST_MATRIX, Section, sections
from ownbert.language import translated, translated_page

_FIRST_TEXTS = 8  # texts of a section that are shown unfolded
_OPEN_ROWS = 12  # rows of a table, likewise
_SENTENCE = 400
_TASKS = {"classify": "one label per text", "multilabel": "several labels per text"}
_KINDS = {"do": "Do", "note": "Note", "fine": "Fine"}


def as_page(report: Report) -> str:
    """The report as HTML."""
    shown = sections(report)
    first, *rest = (_escaped(translated(sentence), _SENTENCE) for sentence in headline(report))
    keys = [(s.key, s.title) for s in shown if s.key != "drift_tokens"]
    if report.advice:
        keys.insert(1, ("advice", translated("What to do next")))
    board, *others = (_section(report, section) for section in shown)
    return framed(
        _words(_TASKS.get(report.task, "a number per text")),
        first,
        "".join(f"<p>{sentence}</p>" for sentence in rest if sentence) + _figures(report),
        keys,
        board + _advice(report) + "".join(others),
    )


def framed(kind: str, headline: str, lead: str, keys: Sequence[tuple[str, str]], main: str) -> str:
    """A page with our style and a script that sorts its tables.

    Args:
        kind, headline: of the report, escaped.
        lead: HTML that follows them.
        keys: of the sections that are linked, with their titles.
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


def _escaped(text: str, most: int) -> str:
    return html.escape(cleaned(text, most))


def _words(text: str) -> str:
    """What the page itself says, and no text of the user's."""
    return html.escape(translated(text))


def _figures(report: Report) -> str:
    """The few numbers to remember."""
    best, baseline = report.winner, report.baseline
    found = [(f"{best.score:.3f}", metric_name(report.metric))]
    if baseline is not None and baseline is not best:
        found.append((f"{best.score - baseline.score:+.3f}", "against the best linear model"))
    if best.test_score is not None:
        found.append((f"{best.test_score:.3f}", "on test rows"))
    curve = report.learning_curve
    if curve is not None and curve.known and curve.further:
        times = curve.further[0].at / curve.at[-1]
        found.append((f"{curve.further[0].gain:+.3f}", f"expected from {times:.2g}× the labels"))
    if 0 < share_contradicted(report) <= HARD_TASK:
        found.append((f"{len(report.label_errors):,}", "likely label errors"))
    return figures([(value, translated(name)) for value, name in found])


def figures(found: Sequence[tuple[str, str]]) -> str:
    """Values in large letters, each with its name."""
    items = (
        f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"
        for value, name in found
    )
    return f'<div class="figures">{"".join(items)}</div>'


def _advice(report: Report) -> str:
    items = "".join(
        f'<li class="{one.kind}"><b>{_words(_KINDS.get(one.kind, ""))}</b>'
        f"<p>{_escaped(translated(one.sentence), _SENTENCE)} "
        f"<small>{_escaped(translated(one.figure), _SENTENCE)}</small></p></li>"
        for one in report.advice
    )
    if not items:
        return ""
    title = _words("What to do next")
    return f'<section id="advice"><h2>{title}</h2><ul class="advice">{items}</ul></section>'


def _section(report: Report, section: Section) -> str:
    lead = f"<p>{html.escape(section.lead)}</p>" if section.lead else ""
    body, drawn = table(section), _DRAWN.get(section.key)
    if section.has_texts:
        body = text_list(section)
    elif section.key == "drift_tokens":
        body = _token_lists(report)
    elif section.key == "leaderboard":
        body = table(section, _score_bars(report))
    if drawn is not None:
        body = f'<div class="beside">{drawn(report)}{body}</div>'
    title = html.escape(section.title)
    return f'<section id="{section.key}"><h2>{title}</h2>{lead}{body}</section>'


def table(section: Section, bars: list[str] | None = None) -> str:
    """A table; a long one scrolls. bars: charts that follow the names of the rows."""
    kinds = ["name"] * section.names + ["number"] * (len(section.columns) - section.names)
    head = [
        f'<th class="{kind}">{html.escape(name)}</th>'
        for kind, name in zip(kinds, section.columns, strict=True)
    ]
    lines = []
    for place, row in enumerate(section.rows):
        cells = [
            f'<td class="{kind}"><bdi>{html.escape(cell)}</bdi></td>'
            for kind, cell in zip(kinds, row, strict=True)
        ]
        if bars is not None:
            cells.insert(section.names, f"<td>{bars[place]}</td>")
        if section.key == "classes":
            cells[1] = cells[1].replace("<td", f'<td style="--share:{float(row[1]):.3f}"', 1)
            cells[1] = cells[1].replace('"number"', '"number bar"')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if bars is not None:
        head.insert(section.names, '<th class="fixed"></th>')
    kind = "scroll tall" if len(lines) > _OPEN_ROWS else "scroll"
    header = f"<thead><tr>{''.join(head)}</tr></thead>" if any(section.columns) else ""
    return (
        f'<div class="{kind}" tabindex="0"><table>{header}<tbody>{"".join(lines)}</tbody></table>'
        "</div>"
    )


def _score_bars(report: Report) -> list[str]:
    ends = []
    for row in report.leaderboard:
        if row.measured:
            ends += [row.score - 2 * (row.spread or 0), row.score + 2 * (row.spread or 0)]
        ends += [] if row.test_score is None else [row.test_score]
    return [charts.score_bar(row, min(ends), max(ends)) for row in report.ranked]


def text_list(section: Section) -> str:
    """Rows with a text: the text, and above it what is known about it."""
    items = []
    for *cells, text in section.rows:
        facts = "".join(
            f"<span>{html.escape(name)} <b><bdi>{html.escape(cell)}</bdi></b></span>"
            for name, cell in zip(section.columns, cells, strict=False)
        )
        items.append(f'<li><div>{facts}</div><p dir="auto">{html.escape(text)}</p></li>')
    first, more = items[:_FIRST_TEXTS], items[_FIRST_TEXTS:]
    shown = f'<ol class="texts">{"".join(first)}</ol>'
    if more:
        shown += (
            f"<details><summary>{_words(f'{len(more)} more')}</summary>"
            f'<ol class="texts" start="{len(first) + 1}">{"".join(more)}</ol></details>'
        )
    return shown


def _token_lists(report: Report) -> str:
    """Tokens by the side that has more of them, with how many times as many."""
    lists = []
    for title, sign in (("more in labelled texts", 1), ("more in unlabelled texts", -1)):
        items = []
        for one in report.drift.tokens if report.drift else ():
            if one.score * sign <= 0:
                continue
            more, less = sorted((one.labelled, one.unlabelled), reverse=True)
            times = f"×{more / less:,.1f}" if less else _words("only")
            hint = (
                f"{one.labelled:.3%} of the labelled, {one.unlabelled:.3%} of the unlabelled tokens"
            )
            token = f"<bdi>{_escaped(one.token, 40)}</bdi>"
            items.append(f'<li title="{_words(hint)}">{token} <small>{times}</small></li>')
        if items:
            lists.append(
                f'<div><h3>{_words(title)}</h3><ul class="chips">{"".join(items)}</ul></div>'
            )
    return f'<div class="beside">{"".join(lists)}</div>'


def _matrix(report: Report) -> str:
    """The confusion matrix as a table of shaded cells; of many labels only the pairs are shown."""
    scores = report.scores
    if scores is None or scores.confusion is None or len(scores.labels) > LARGEST_MATRIX:
        return ""
    names = [_escaped(score.label, 24) for score in scores.labels]
    # Square roots, so that small shares stay visible.
    heat = np.sqrt(scores.confusion / np.maximum(1, scores.confusion.sum(1, keepdims=True)))
    head = "".join(f"<th><div><bdi>{name}</bdi></div></th>" for name in names)
    lines = []
    for i, name in enumerate(names):
        cells = "".join(
            f'<td class="{"right" if i == j else "wrong"}" '
            f'style="--heat:{heat[i, j]:.2f}">{count or ""}</td>'
            for j, count in enumerate(scores.confusion[i].tolist())
        )
        lines.append(f"<tr><th><bdi>{name}</bdi></th>{cells}</tr>")
    return (
        '<figure class="scroll" tabindex="0"><table class="matrix"><thead><tr><th></th>'
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        f"<figcaption>{_words('Rows: true labels; columns: predictions.')}</figcaption></figure>"
    )


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{_words(caption)}</figcaption></figure>"


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
        f"Solid: as it is, larger dots for more rows.{dashed} Dotted: perfect.",
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
