"""Reads cells of label columns: one label per row, several labels, or numbers.

Equal values become equal labels in all formats: csv has texts, a DataFrame has numbers and
booleans, jsonl has lists, NumPy has arrays. So the whole column is inspected before its cells are
converted, all in the same way, to texts, lists or vectors of 0 and 1.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple
from unicodedata import normalize

from ownbert.exceptions import InputError, in_short
from ownbert.language.messages import Message
from ownbert.tables.missing_values import is_missing, is_missing_number, marks_missing
from ownbert.tables.number_notation import NUMBER, STRAY_SHARE, decimal_numbers, stray_texts
from ownbert.tables.tables import as_text

# Separators of labels in a cell, those least likely to occur inside a label first.
SEPARATORS = ("|", ";", ",")
_NUMBERED = re.compile(r"[ \d]*")
# From this number of rows, a column whose values are nearly all distinct (this share) is not a
# label column.
_FEWEST_DIFFERENT, _NEARLY_ALL = 20, 0.9
# Maximum number of warnings about labels that are nearly the same.
_MOST_ALIKE = 5
# Maximum characters of a list represented as text.
_LONGEST_LIST = 1 << 20
_MIDNIGHT = " 00:00:00"
_TRUTH = {"true": "true", "false": "false"}
# A currency before a number; a currency, a percent sign or a short unit after it.
_WITH_UNIT = re.compile(
    r"([$€£¥₩₹₽]|[A-Z]{3} )? ?[+-]?\d[\d.,]*"
    r"( ?[$€£¥₩₹₽%‰°]| ?°[CF]| [A-Za-zµ/²³]{1,5}| ?[\u4e00-\u9fff]{1,2})?"
)
# Numbers with a unit are reported from this many distinct values: with fractions, whole ones.
_FEW_NUMBERS, _MANY_WITH_UNIT = 2, 10
_ITEM = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\s,'"\[\](){}]+))\s*(,|(?=\s|['"]|$))""",
    re.DOTALL,
)
# NumPy scalars in the text of a Python list: np.str_('a'), np.int64(3).
_NUMPY = re.compile(r"""\bnp\.\w+\(('(?:[^'\\]|\\.)*'|[^\s()'"]*)\)""")
# Python's sets that are not in braces alone: set(), frozenset({'a'}).
_SET = re.compile(r"(?:frozen)?set\((.*)\)", re.DOTALL)
_IN_LISTS = re.compile("[,'\"]")
# A list item that is neither quoted nor a number.
_UNREADABLE = object()
_BARE = {"true": True, "false": False, "null": None, "none": None, "nan": None}


@dataclass(frozen=True)
class LabelCells:
    """The cells of a label column and their locations.

    Args:
        values: one cell per row.
        places: locations of the rows, for messages.
        column: name of the column.
    """

    values: Sequence[Any]
    places: Sequence[str]
    column: str

    def refuse_missing(self, *, numbers: bool = False, training: bool = True) -> None:
        """Raise ``InputError`` with a count if rows have no label.

        Args:
            numbers: whether the labels are numbers; "NA" and the like then count as missing.
            training: whether a model is to learn from the rows.
        """
        is_none, what = (is_missing_number, "number") if numbers else (is_missing, "label")
        missing = [i for i, value in enumerate(self.values) if is_none(value)]
        if not missing:
            return
        first = self.values[missing[0]]
        reason = Message("{column!r} is missing or null", self.column)
        if isinstance(first, str):
            reason = Message("the {what!t} (column {column!r}) is empty", what, self.column)
            if first.strip():
                text = "the {what!t} (column {column!r}) is missing: {value!r}"
                reason = Message(text, what, self.column, first.strip())
        advice = Message("; a {what!t} is needed, or {--skip-unlabelled}", what)
        if len(missing) > 1:
            where = Message(
                " ({--skip-unlabelled} leaves them out), or pass their texts to fit with "
                "{--unlabelled}"
                if training
                else " ({--skip-unlabelled} of fit, evaluate, compare and errors leaves them out)"
            )
            text = "; {count:,} of {rows:,} rows have none: remove them{where}"
            advice = Message(text, len(missing), len(self.values), where)
        raise InputError("{places}: {reason}{advice}", self.places[missing[0]], reason, advice)


class LabelSets(NamedTuple):
    """Several labels for each row.

    Args:
        sets: labels of each row.
        separator: separator of labels within a cell, if any.
        note: how ambiguous cells were read, for the user; "" if they are unambiguous.
    """

    sets: list[tuple[str, ...]]
    separator: str | None
    note: str


def single_labels(
    cells: LabelCells, *, known: Collection[str] = (), names: Sequence[str] = ()
) -> tuple[list[str], str]:
    """The single label of each row, and a note on how ambiguous cells were read, if any.

    Args:
        cells: cells of a column.
        known: known labels: equal values in another spelling become the same label.
        names: label names for one-hot vectors.

    Raises:
        InputError: a row has no label, or several; with its location.
    """
    cells.refuse_missing(training=not known)
    values, note = as_lists(cells), ""
    if size := vector_size(values, cells.places):
        values = _of_one_hot(cells, values, _vector_names(size, names))
        note = vector_message("one-hot", size)
    else:
        values = [_only_item(value, i, cells) for i, value in enumerate(values)]
        if names and not known:
            note = _names_message(cells.column)
    return _as_names(values, cells, known), note


def label_sets(
    cells: LabelCells,
    *,
    separator: str | None = None,
    known: Collection[str] = (),
    names: Sequence[str] = (),
) -> LabelSets:
    """The labels of each row.

    Args:
        cells: cells of a column; an empty text is a row without labels.
        separator: separator of labels within a cell; None: the first of ``SEPARATORS`` that
            occurs, or a space between whole numbers.
        known, names: see ``single_labels``.

    Raises:
        InputError: a cell cannot be read; with its location.
    """
    for value, place in zip(cells.values, cells.places, strict=True):
        if value is None or (isinstance(value, float) and value != value):
            raise InputError(
                "{place}: the labels are missing or null; write [] for no labels, or use "
                "{--skip-unlabelled}",
                place,
            )
    values, note = as_lists(cells, strict=True), ""
    if size := vector_size(values, cells.places):
        vector_names, note = _vector_names(size, names), vector_message("multi-hot", size)
        values = [[n for n, on in zip(vector_names, v, strict=True) if is_on(on)] for v in values]
    elif names and not known:
        note = _names_message(cells.column)
    texts = [v for v in values if isinstance(v, str)]
    if separator is None:
        stripped = [v.strip() for v in texts]
        marks = separators(stripped)
        separator = next((mark for mark in marks if any(mark in v for v in stripped)), None)
        if separator is not None:
            note = Message(
                "labels in one cell are separated by {separator!r}; choose another "
                "separator with {--label-separator}",
                separator,
            )
    parts: list[list[Any]] = []
    for value, place in zip(values, cells.places, strict=True):
        if isinstance(value, list) and any(isinstance(part, list) for part in value):
            raise InputError("{place}: a list of labels must not contain further lists", place)
        if isinstance(value, str):
            one = separator is None or value.strip() in known
            parts.append([value] if one else value.split(separator))
        else:
            parts.append(value if isinstance(value, list) else [value])
    for labels, place in zip(parts, cells.places, strict=True):
        if any(isinstance(part, float) and part % 1 for part in labels):
            raise InputError(
                "{place}: the labels are decimal numbers, not names; to predict numbers, give "
                "each its own column and use the task regress",
                place,
            )
    parts = [[part for part in labels if not is_missing(part)] for labels in parts]
    flat = [part for labels in parts for part in labels]
    where = [place for labels, place in zip(parts, cells.places, strict=True) for _ in labels]
    texts = iter(_as_names(flat, LabelCells(flat, where, cells.column), known))
    sets = [tuple(dict.fromkeys(islice(texts, len(labels)))) for labels in parts]
    return LabelSets(sets, separator, note)


def sets_of_columns(
    columns: Mapping[str, Sequence[Any]], places: Sequence[str]
) -> list[tuple[str, ...]]:
    """The labels of each row if every label has a column of 0 and 1.

    Raises:
        InputError: a cell has another value; with its location.
    """
    for name, values in columns.items():
        for value, place in zip(values, places, strict=True):
            if _bit(value) is None:
                raise InputError(
                    "{place}: column {name!r} has {value}; the column of a label must contain "
                    "only 0 and 1",
                    place,
                    name,
                    in_short(value),
                )
    rows = zip(*columns.values(), strict=True)
    return [tuple(n for n, v in zip(columns, row, strict=True) if is_on(v)) for row in rows]


def are_bits(values: Sequence[Any]) -> bool:
    """Whether all values are 0 or 1, in any spelling."""
    return all(_bit(value) is not None for value in values)


def unusual_labels(names: Sequence[str], column: str | None = None) -> Iterator[str]:
    """Yield warnings about the labels of the training rows, if they are read as names but look like
    something else.

    Args:
        names: all labels.
        column: their column, if each row has one label.
    """
    counts = Counter(names)
    single = sum(count == 1 for count in counts.values())
    if column and len(names) >= _FEWEST_DIFFERENT and 2 * single > len(counts) > len(names) / 2:
        yield Message(
            "{labels:,} labels for {rows:,} rows, and most labels have one row: is {column!r} the "
            "column of the labels? Name it with {--label-column}",
            *(len(counts), len(names), column),
        )
    # Beside numbers, "-" is more likely a missing value than a class.
    numbers = decimal_numbers([name for name in counts if not is_missing_number(name)])
    is_none = is_missing_number if numbers else marks_missing
    for name, rows in counts.items():
        if is_none(name) and not (name == "-" and "+" in counts):
            yield Message(
                "the label {name!r} (rows: {rows:,}) looks like a missing value; if it is one, "
                "remove its rows",
                *(name, rows),
            )
    if _is_missing_index(counts):
        yield Message(
            "the label '-1' (rows: {rows:,}) looks like a missing label, as in datasets of Hugging "
            "Face; if it is one, remove its rows",
            counts["-1"],
        )
    alike: dict[Any, list[str]] = {}
    for name in counts:
        alike.setdefault(_loosely(name), []).append(name)
    several = [names for names in alike.values() if len(names) > 1]
    for first, second, *_ in several[:_MOST_ALIKE]:
        yield Message(
            "the labels {first!r} (rows: {first_rows:,}) and {second!r} (rows: {second_rows:,}) "
            "differ only in case, spaces, punctuation or zeros, but are two labels; write them in "
            "the same way if they mean the same",
            *(first, counts[first], second, counts[second]),
        )
    if strays := stray_texts(names):
        yield Message(
            "the labels are numbers except {text!r} (rows with such texts: {count:,}): all are "
            "read as names; correct these rows and use the task regress to predict numbers",
            *(strays[0], len(strays)),
        )
    if _have_units(names):
        yield Message(
            "labels such as {name!r} look like numbers with a unit, but are read as names; remove "
            "the unit to predict numbers",
            names[0],
        )


def _is_missing_index(counts: Mapping[str, int]) -> bool:
    """Whether -1 stands beside the indices of three or more classes, or is rare beside fewer."""
    others = counts.keys() - {"-1"}
    if "-1" not in counts or not all(map(str.isdecimal, others)):
        return False
    indices = {*map(str, range(len(others)))} == others
    return indices and (len(others) > 2 or counts["-1"] < STRAY_SHARE * sum(counts.values()))


def _loosely(name: str) -> Any:
    """A key that labels share if they are probably the same one: equal numbers, or names that
    differ in case, spaces, hyphens, underscores or final punctuation."""
    if NUMBER.fullmatch(name):
        return float(name)
    folded = normalize("NFKC", name).casefold()
    return re.sub(r"[\s_-]+", " ", folded).strip(" .,:;!") or name


def _have_units(names: Sequence[str]) -> bool:
    """Whether texts are numbers with one or two units ("1 day", "2 days"), or some without."""
    different = {name for name in names if not is_missing_number(name)}
    matches = [_WITH_UNIT.fullmatch(name) for name in different]
    units = {match.groups("") if match else None for match in matches}
    fractions = any("." in name or "," in name for name in different)
    fewest = _FEW_NUMBERS if fractions else _MANY_WITH_UNIT
    return len(different) > fewest and len(units) <= 2 and None not in units and units != {("", "")}


def refuse_ids(names: Sequence[str], source: Any, column: str) -> None:
    """Raise ``InputError`` for a label column in which nearly all values are distinct."""
    different = len(set(names))
    if len(names) < _FEWEST_DIFFERENT or different < _NEARLY_ALL * len(names):
        return
    advice = Message("name the label column with {--label-column}")
    if decimal_numbers(names) is not None:
        advice += Message(", or predict numbers: {--task regress}")
    elif _have_units(names):
        advice += ", or remove the unit to predict numbers"
    if different < len(names):
        raise InputError(
            "{source}: {column!r} has {different:,} different values in {count:,} rows, so it "
            "looks like an id, not a label; {advice}",
            source,
            column,
            different,
            len(names),
            advice,
        )
    raise InputError(
        "{source}: each of the {count:,} values of {column!r} occurs once, so it looks like an "
        "id, not a label; {advice}",
        source,
        len(names),
        column,
        advice,
    )


def text_list(value: str) -> list[Any] | None:
    """Parse the text of a list; None if it is not a list.

    Accepts JSON (``["a", "b"]``), Python (``['a', 'b']``, ``{'a', 'b'}``, ``set()``) and NumPy
    (``['a' 'b']``, ``[0. 1.]``).
    """
    text = value.strip()
    if as_set := _SET.fullmatch(text):
        text = as_set[1] or "[]"
    if len(text) < 2 or len(text) > _LONGEST_LIST or text[0] + text[-1] not in ("[]", "()", "{}"):
        return None
    try:
        found = json.loads(text)
        return found if isinstance(found, list) else None
    except (ValueError, RecursionError):
        pass
    inside, at, items = _NUMPY.sub(r"\1", text[1:-1]).strip(), 0, []
    while at < len(inside):
        match = _ITEM.match(inside, at)
        if match is None or match.end() == at:
            return None
        items.append(match)
        at = match.end()
    found = [_item(match) for match in items]
    return None if any(item is _UNREADABLE for item in found) else found


def _item(match: re.Match[str]) -> Any:
    single, double, bare = match[1], match[2], match[3]
    if bare is not None:
        if bare.lower() in _BARE:
            return _BARE[bare.lower()]
        if not NUMBER.fullmatch(bare):
            return _UNREADABLE
        number = float(bare)
        return int(number) if number % 1 == 0 and abs(number) < 1e15 else number
    quoted, mark = (single, "'") if single is not None else (double, '"')
    try:
        return ast.literal_eval(f"{mark}{quoted}{mark}") if "\\" in quoted else quoted
    except (ValueError, SyntaxError):
        return quoted


def as_lists(cells: LabelCells, *, strict: bool = False) -> list[Any]:
    """The cells; if most texts are written as lists, these are converted to lists. ``strict``:
    every text that starts with a bracket must be a list."""
    parsed = [text_list(v) if isinstance(v, str) else None for v in cells.values]
    texts = [i for i, v in enumerate(cells.values) if isinstance(v, str) and v.strip()]
    lists = sum(parsed[i] is not None for i in texts)
    first = {i: cells.values[i].lstrip()[0] for i in texts}
    bracketed = [i for i in texts if first[i] in "[{"]
    strict = strict and "[" in first.values()
    # A column of "[a, b]" does not contain names, but one of "[other]" does.
    broken = 2 * len(bracketed) > len(texts) and any(
        parsed[i] is None and _IN_LISTS.search(str(cells.values[i])) for i in bracketed
    )
    if not (lists and 2 * lists > len(texts)) and not strict and not broken:
        return list(cells.values)
    for i in bracketed:
        if parsed[i] is None:
            raise InputError(
                "{places}: the labels start with {first} but are not a JSON list; write them as "
                '["one", "two"], with double quotes',
                cells.places[i],
                first[i],
            )
    pairs = zip(cells.values, parsed, strict=True)
    return [value if items is None else items for value, items in pairs]


def vector_size(values: Sequence[Any], places: Sequence[str]) -> int:
    """The common length of all cells if they are vectors of 0 and 1; 0 if they are not.

    Lists of one item, and lists of different lengths without repetitions, are sets of the labels 0
    and 1; vectors of different lengths are refused.
    """
    if not values or not all(isinstance(value, list) for value in values):
        return 0
    if not all(_bit(v) is not None for value in values for v in value):
        return 0
    size = len(values[0])
    if all(len(value) == size for value in values):
        return size if size > 1 else 0
    # A set of labels has no repetitions.
    repeated = any(len(set(map(_bit, value))) < len(value) for value in values)
    other = next(i for i, value in enumerate(values) if len(value) != size)
    if repeated:
        raise InputError(
            "{places}: the label vector has {count} elements, but that of the first row has {size}",
            places[other],
            len(values[other]),
            size,
        )
    return 0


def _bit(value: Any) -> int | None:
    """0 or 1 in any spelling; None for other values."""
    text = str(value).strip().lower()
    return {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}.get(text)


def is_on(value: Any) -> bool:
    return _bit(value) == 1


def _vector_names(size: int, names: Sequence[str]) -> Sequence[str]:
    if names and len(names) != size:
        raise InputError(
            "{--label-names} has {count} names, but the label vectors have {size} elements",
            len(names),
            size,
        )
    return names or [f"label_{i}" for i in range(size)]


def vector_message(kind: str, size: int) -> str:
    return Message(
        "the labels are {kind} vectors of {size}; {--label-names} names their elements", kind, size
    )


def _names_message(column: str) -> str:
    return Message("{--label-names} is not used: {column!r} has no vectors of 0 and 1", column)


def _of_one_hot(cells: LabelCells, values: Sequence[Any], names: Sequence[str]) -> list[str]:
    labels = []
    for value, place in zip(values, cells.places, strict=True):
        on = [name for name, bit in zip(names, value, strict=True) if is_on(bit)]
        if len(on) != 1:
            raise InputError(
                "{place}: the vector has {count} labels where one is needed; for several per "
                "row use the task multilabel",
                place,
                len(on),
            )
        labels.append(on[0])
    return labels


def _only_item(value: Any, index: int, cells: LabelCells) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != 1 or isinstance(value[0], list) or is_missing(value[0]):
        raise InputError(
            "{places}: {column!r} has a list of {count} labels where one is needed; for several "
            "per row use the task multilabel",
            cells.places[index],
            cells.column,
            len(value),
        )
    return value[0]


def _as_names(values: Sequence[Any], cells: LabelCells, known: Collection[str] = ()) -> list[str]:
    """Values as label names: known labels, or booleans and integers in one spelling."""
    pairs = zip(values, cells.places, strict=True)
    texts = [as_text(value, cells.column, place).strip() for value, place in pairs]
    if known and any(text not in known for text in texts):
        spelled = _in_one_spelling(values, texts)
        both = zip(texts, spelled, strict=True)
        return [text if text in known else _matched(one, known) for text, one in both]
    return texts if known else _in_one_spelling(values, texts)


def _in_one_spelling(values: Sequence[Any], texts: list[str]) -> list[str]:
    if texts and all(text.lower() in _TRUTH for text in texts):
        return [_TRUTH[text.lower()] for text in texts]
    if texts and all(text.endswith(_MIDNIGHT) for text in texts):  # as pandas writes dates to csv
        return [text.removesuffix(_MIDNIGHT) for text in texts]
    if any(
        text.endswith(".0") or isinstance(v, float) for text, v in zip(texts, values, strict=True)
    ):
        numbers = [float(text) if NUMBER.fullmatch(text) else 0.5 for text in texts]
        if all(number % 1 == 0 and abs(number) < 1e15 for number in numbers):
            return [str(int(number)) for number in numbers]
    first: dict[str, str] = {}
    return [first.setdefault(normalize("NFC", text), text) for text in texts]


def _matched(name: str, known: Collection[str]) -> str:
    """The known label with the same value in another spelling, else the name."""
    if name in known:
        return name
    return _spellings(frozenset(known)).get(_value_of(name), name)


@lru_cache(maxsize=8)
def _spellings(known: frozenset[str]) -> Mapping[Any, str]:
    counts = Counter(map(_value_of, known))
    return {value: name for name in known if counts[value := _value_of(name)] == 1}


def _value_of(name: str) -> Any:
    """The value that a label spells: a boolean, a number, or a name with composed characters."""
    if name.lower() in _TRUTH:
        return name.lower()
    return float(name) if NUMBER.fullmatch(name) else normalize("NFC", name)


def separators(texts: Sequence[str]) -> Sequence[str]:
    """Marks that may separate labels in a cell; names may have spaces, whole numbers do not."""
    return (*SEPARATORS, " ") if all(map(_NUMBERED.fullmatch, texts)) else SEPARATORS
