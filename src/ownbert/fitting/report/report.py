"""Writes a report as a self-contained HTML page, as text, as JSON, and as the files of a folder.

A content security policy with the script's hash blocks all other scripts of the page.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ownbert.files.json_files import write_json
from ownbert.files.writing import make_folder, together, write_text
from ownbert.fitting.report.conclusions import (
    HARD_TASK,
    can_rise,
    difference,
    headline,
    metric_name,
    share_contradicted,
)
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.sections import sections
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.pages import Page, Section, cleaned
from ownbert.run.file_names import REPORT
from ownbert.tasks.metrics import Scores

_TASKS = {"classify": "one label per text", "multilabel": "several labels per text"}


def as_page(report: Report) -> str:
    """The report as HTML."""
    return _page(report).html()


def as_text(report: Report) -> str:
    """The report as plain text of at most 100 columns."""
    return _page(report).text() + "\n"


def _page(report: Report) -> Page:
    """The sections, with the advice after the first one."""
    first, *others = sections(report)
    advice = Section("advice", "What to do next", advice=report.advice).in_language()
    return Page(
        kind=_TASKS.get(report.task, "a number per text"),
        lead=[translated(sentence) for sentence in headline(report)],
        sections=[first, *([advice] if report.advice else []), *others],
        figures=_figures(report),
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
            (
                difference(report, curve.further[0].gain),
                Message("expected with {times:.2g}× the labels", times),
            )
        )
    if 0 < share_contradicted(report) <= HARD_TASK:
        figures.append((f"{len(report.label_errors):,}", "likely label errors"))
    return figures


SHOWN_TEXT = 500  # characters
_ROW_TEXTS = ("texts", "places")  # omitted: shown rows contain them


def write_report(report: Report, folder: str | os.PathLike[str]) -> None:
    """Write report.html, report.txt and report.json into a folder, all of them or none.

    Raises:
        InputError: the folder cannot be created or written.
    """
    contents = as_page(report), as_text(report), as_json(report)
    target = make_folder(folder)
    with together():
        write_text(target / "report.html", contents[0])
        write_text(target / "report.txt", contents[1])
        write_json(target / REPORT, contents[2])


def as_json(report: Report) -> dict[str, Any]:
    """The report as JSON values; non-finite numbers become null, texts are truncated."""
    names = [field.name for field in dataclasses.fields(report)]
    values = {name: _plain(getattr(report, name)) for name in names if name not in _ROW_TEXTS}
    for key in ("label_errors", "hardest", "typical"):
        for row in values[key]:
            row["text"] = cleaned(report.text_of(row["row"]), SHOWN_TEXT)
            row["place"] = _plain(report.place_of(row["row"]))
    return {"headline": _plain(headline(report)), **values, "best": _plain(report.winner.name)}


def _plain(value: Any) -> Any:
    if isinstance(value, Scores):
        return _plain(value.as_json())
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {_plain_text(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else _plain_text(value)


def _plain_text(value: Any) -> str:
    """Replace characters that UTF-8 cannot encode (lone surrogates) by question marks."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
