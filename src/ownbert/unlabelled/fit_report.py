"""Label information from the ``fit`` report: likely label errors, and gains from more labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.checks import list_of, maybe, number, record, text, whole
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json
from ownbert.fitting.report.report import SHOWN_TEXT
from ownbert.language import translated
from ownbert.pages import cleaned
from ownbert.run.file_names import REPORT
from ownbert.tasks.rows import Row

# A learning curve is flat if doubling the rows gains less than this.
_FLAT = 0.01
_index, _finite = whole(0, limits.COUNT), maybe(number(-1e9, 1e9))
_ERROR = {"text": text, "place": text, "given": _index, "suggested": _index, "score": _finite}
_CURVE = {
    "at": list_of(number(1, limits.COUNT)),
    "reason": text,
    **dict.fromkeys(("limit", "slope", "exponent"), _finite),
}
_CHECK = record(
    {
        "labels": list_of(text),
        "train_counts": list_of(_index),
        "label_errors": list_of(record(_ERROR, required=tuple(_ERROR))),
        "learning_curve": maybe(record(_CURVE, required=tuple(_CURVE))),
    }
)


def read_report(folder: Path) -> dict[str, Any]:
    """Read the report of a folder; empty if it has none, as ``finetune`` folders.

    Raises:
        InputError: the report is damaged.
    """
    return read_json(folder / REPORT, missing={}, check=_CHECK)


def label_errors(report: dict[str, Any], known: Sequence[Row]) -> list[dict[str, Any]]:
    """The likely label errors as output rows, most certain first.

    Args:
        report: report of ``fit``.
        known: the training rows; without them output rows only have locations. Rows of other files
            are left out.

    Raises:
        InputError: the report has no label errors section.
    """
    if "label_errors" not in report:
        raise InputError("likely label errors are in the {report} that ownbert fit writes", REPORT)
    rows: list[dict[str, Any]] = []
    # Texts of the same beginning are distinguished by their places: "line 7", earlier "row 7".
    whole_texts: dict[Any, str] = {}
    for one in known:
        start = cleaned(one.texts[0], SHOWN_TEXT)
        whole_texts[start] = whole_texts[start, str(one.line)] = one.texts[0]
    for each in report["label_errors"]:
        names = dict(enumerate(report.get("labels", [])))
        given, suggested = (names.get(each[k], str(each[k])) for k in ("given", "suggested"))
        row = {"given": given, "suggested": suggested, "score": each["score"]}
        start = each["text"]
        if start in whole_texts:
            of_row = whole_texts.get((start, each["place"].rpartition(" ")[2]), whole_texts[start])
            rows.append({"text": of_row, "label": "", **row})
        elif not known:
            rows.append({"place": each["place"], **row})
    return rows


def worth_of_labels(report: dict[str, Any], count: int) -> str:
    """The expected gain of ``count`` more labels, from the report's learning curve."""
    curve = report.get("learning_curve") or {"at": [], "reason": "the report has no learning curve"}
    if curve["reason"] or None in (curve["slope"], curve["exponent"]) or not curve["at"]:
        reason = translated(curve["reason"])
        return f"the gain from {count:,} more labels is unknown: {reason}"
    rows, slope, exponent = curve["at"][-1], curve["slope"], curve["exponent"]

    def gain(further: float) -> float:
        return slope * (rows**-exponent - (rows + further) ** -exponent)

    if gain(rows) < _FLAT:
        return (
            f"the curve is flat: {count:,} more labels would gain about {gain(count):+.3f}, "
            f"twice as many {gain(rows):+.3f}"
        )
    return (
        f"{count:,} more labels would gain about {gain(count):+.3f}, twice as many "
        f"{gain(rows):+.3f}"
    )
