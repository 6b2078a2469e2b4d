"""Rows in memory as a table that is read like a file: lists, mappings, DataFrames, datasets.

pandas, polars, Arrow and datasets are recognised by their attributes and never imported here.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

from ownbert.exceptions import InputError, in_short, warn_of_input
from ownbert.files.json_files import MOST_NESTED, is_nested
from ownbert.tables.missing_values import count_at_end, is_missing, warn_of_empty_end
from ownbert.tables.name_lists import split_names

# Value of ``ownbert.tables.tables.kind_of`` for these tables.
KIND = "memory"
# Rows of a dataset read at a time.
_ROWS = 1024
_FORMS = (
    "a file, a DataFrame, a datasets.Dataset, a list of mappings, a mapping of columns, "
    "(texts, labels), or a list of (text, label)"
)

# NaN, which Python writes for missing values, is null, as in DataFrames.
_JSON = json.JSONDecoder(parse_constant=lambda name: None if name == "NaN" else float(name))
# Types of single values that are converted to text.
SCALARS = (date, time, timedelta, Decimal, UUID)

# Returns column names for rows without names, given their number of values; raises ``InputError``
# for unsupported numbers.
Positional = Callable[[int], Sequence[str]]


def texts_and_labels(width: int) -> Sequence[str]:
    """The columns of rows with a text, or a pair of texts, and its label."""
    if width == 3:
        return ("text", "text_pair", "label")
    if width != 2:
        raise InputError("a row must be a text and its label")
    return ("text", "label")


@dataclass(frozen=True, eq=False)
class MemoryTable:
    """Named columns with a function that reads the rows of any of them.

    Args:
        name: description of the rows, for messages.
        names: column names.
        rows: yields the values of the given columns, row by row.
        once: whether rows can be read only once.
    """

    name: str
    names: tuple[str, ...]
    rows: Callable[[Sequence[str]], Iterator[tuple[Any, ...]]] = field(repr=False)
    once: bool = False

    def __str__(self) -> str:
        return self.name

    def read(self, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Stream the number of each row, from 1, and its values as JSON values."""
        for number, values in enumerate(self.rows(names), start=1):
            try:
                found = tuple(map(plain, values))
            except RecursionError:
                raise InputError(
                    "{name}, row {number} is nested too deeply", self.name, number
                ) from None
            yield number, found

    def lines(self) -> Iterator[str]:
        """Yield the rows as JSON lines.

        Dates, times, decimals and UUIDs are written as text, as the columns of parquet files are
        read.

        Raises:
            InputError: a value is not a text, number or list, or two columns have the same name.
        """
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise InputError(
                "{name} has two columns {twice!r}: give them different names", self.name, twice[0]
            )
        try:
            for _, row in self.read(self.names):
                # A lone surrogate is escaped here, and rejected by the reader with its line.
                record = dict(zip(self.names, row, strict=True))
                yield json.dumps(record, default=_scalar_text) + "\n"
        except TypeError as error:
            raise InputError(
                "{name}: a row has a value that is not a text, number or list: {error}",
                self.name,
                error,
            ) from None


class Lines(Iterator[str]):
    """Lines that can be read once: texts, or JSON objects if the first line is one."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)

    def __next__(self) -> str:
        return next(self._lines)


def table_of(
    data: Any,
    *,
    name: str = "data",
    positional: Positional = texts_and_labels,
    trim: bool = False,
) -> MemoryTable:
    """Convert rows in memory to a table.

    Args:
        data: a DataFrame (pandas, polars), a datasets.Dataset, an Arrow table, a mapping of
            columns, a pair (texts, labels), whose texts may be such a table without labels, a list
            of mappings, or a list or array of rows without names: a text, or several values.
        name: description of the rows, for messages.
        positional: column names for rows without names.
        trim: whether to leave out empty rows at the end of a DataFrame, as of a file; predictions
            are given for all rows.

    Raises:
        InputError: the data have another form, or lengths differ.
    """
    if isinstance(data, MemoryTable):
        return data
    if isinstance(data, Lines):
        return _of_lines(data, name, positional)
    if isinstance(data, Mapping):
        return _of_mapping(data, name)
    if is_table(data):
        return _of_table(data, name, trim=trim)
    if isinstance(data, tuple) and len(data) == 2:
        data = (data[0], dense(data[1]))
        if is_table(data[0]) and is_list(data[1]):
            table = _of_table(data[0], name)
            columns = {key: [cell for (cell,) in table.rows([key])] for key in table.names}
            return _of_mapping(columns | _by_name(_label_name(positional), data[1]), name)
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_list, data)):
        texts = items(data[0])
        if names := _names_of_pairs(texts, name, positional):
            columns = dict(zip(names, zip(*texts, strict=True), strict=False))
            return _of_mapping(columns | _by_name(names[2], data[1]), name)
        text, label = positional(2)
        return _of_mapping({text: texts} | _by_name(label, data[1]), name)
    if not is_list(data) and not (isinstance(data, Iterable) and hasattr(data, "__next__")):
        advice = "; collect() it first" if hasattr(data, "collect") else ""
        kind = type(data).__name__
        raise InputError(
            "{name}: rows must be given as {forms}; not as {kind}{advice!t}",
            name,
            _FORMS,
            kind,
            advice,
        )
    rows = list(data)
    if not rows:
        raise InputError("{name} is empty: rows must be given as {forms}", name, _FORMS)
    if any(isinstance(row, Mapping) for row in rows):
        return _of_records(rows, name)
    return _of_tuples(rows, name, positional)


def dense(labels: Any) -> Any:
    """A sparse matrix or a DataFrame of labels as an array; other labels unchanged."""
    if hasattr(labels, "toarray"):
        return labels.toarray()
    return labels.to_numpy() if is_table(labels) and hasattr(labels, "to_numpy") else labels


def is_table(data: Any) -> bool:
    """Whether the data are a DataFrame, a dataset or an Arrow table, with column names."""
    # Column names are checked last: a polars LazyFrame computes them with a warning.
    return hasattr(data, "column_names") or (hasattr(data, "to_dict") and hasattr(data, "columns"))


def as_record(data: Any, names: Collection[str]) -> Any:
    """Convert a row of a DataFrame, a pandas Series, to a mapping; return other data unchanged.

    Args:
        data: row or other data.
        names: lower-case column names, one of which a row has. Other Series are columns.
    """
    as_dict = getattr(data, "_asdict", None)  # from itertuples
    if as_dict is not None and isinstance(data, tuple):
        return as_dict()
    keys, as_dict = (getattr(data, name, None) for name in ("index", "to_dict"))
    if is_list(data) and as_dict is not None and hasattr(keys, "tolist"):
        record = {str(key): value for key, value in as_dict().items()}
        if not {key.lower() for key in record}.isdisjoint(names):
            return record
    return data


def is_list(data: Any) -> bool:
    """Whether the data are a list, tuple, array, column or Series, but not a text."""
    if isinstance(data, str | bytes | Mapping) or is_table(data):
        return False
    if hasattr(data, "ndim") and not data.ndim:  # a NumPy scalar
        return False
    converts = any(hasattr(data, name) for name in ("tolist", "to_list", "to_pylist"))
    # The first is true of a column of a dataset too.
    return isinstance(data, Sequence) or (converts and hasattr(data, "__len__"))


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Parse the JSON object on a line.

    Raises:
        InputError: the line is not an object; with ``where``.
    """
    try:
        value = _JSON.decode(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not readable"
        raise InputError(
            "{where}: not JSON ({reason}); one object per line is needed", where, reason
        ) from error
    # Checked only for lines with many brackets.
    if line.count("[") + line.count("{") > MOST_NESTED and is_nested(value):
        raise InputError("{where}: the JSON is nested too deeply", where)
    if not isinstance(value, dict):
        raise InputError(
            '{where}: each line must be a JSON object such as {{"text": "..."}}, not a {kind}',
            where,
            type(value).__name__,
        )
    return value


def items(data: Any) -> list[Any]:
    """The items of data for which ``is_list`` is true, as a Python list."""
    for name in ("tolist", "to_list", "to_pylist"):
        if hasattr(data, name):
            return getattr(data, name)()
    return list(data)


def plain(value: Any, depth: int = 0) -> Any:
    """A cell as a JSON value: text, number, list; None if missing.

    NaN means a missing value, as in DataFrames.

    Raises:
        RecursionError: the value is nested too deeply, or contains itself.
    """
    if depth > MOST_NESTED:
        raise RecursionError
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if value != value else value
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a NumPy scalar
        return plain(value.item(), depth + 1)
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(each, depth + 1) for each in value), key=str)
    if is_list(value):
        return [plain(each, depth + 1) for each in items(value)]
    # pandas.NA and NaT do not support comparisons.
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _of_mapping(data: Mapping[Any, Any], name: str) -> MemoryTable:
    """A table from a mapping of columns."""
    if splits := [str(key) for key, value in data.items() if is_table(value)]:
        shown = ", ".join(splits[:5])
        raise InputError(
            "{name} has several tables ({shown}); choose one: data[{splits!r}]",
            name,
            shown,
            splits[0],
        )
    if not all(map(is_list, data.values())):
        raise InputError(
            "{name}: the columns of a mapping must be lists; a single row is [{{...}}]", name
        )
    columns = {str(key): items(values) for key, values in data.items()}
    if len({len(values) for values in columns.values()}) > 1:
        sizes = ", ".join(f"{key} {len(values):,}" for key, values in columns.items())
        raise InputError("{name}: the columns of the rows differ in length: {sizes}", name, sizes)
    return MemoryTable(
        name, tuple(columns), lambda names: zip(*(columns[key] for key in names), strict=True)
    )


def _of_records(rows: Sequence[Any], name: str) -> MemoryTable:
    """A table from a list of mappings; rows may lack columns."""
    columns: dict[str, Any] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InputError(
                "{name}, row {number} is of type {kind} among mappings; all rows must have the "
                "same form",
                name,
                number,
                type(row).__name__,
            )
        columns.update({str(key): key for key in row})
    return MemoryTable(
        name,
        tuple(columns),
        lambda names: (tuple(row.get(columns[key]) for key in names) for row in rows),
    )


def _of_lines(lines: Lines, name: str, positional: Positional) -> MemoryTable:
    """A table from lines that are read once, with the columns of the first line."""
    first = next(lines, None)
    if first is None:
        raise InputError("{name} is empty", name)
    every = chain([first], lines)
    if not first.lstrip().startswith("{"):
        (column,) = positional(1)
        names = {name.strip(' "').lower() for name in re.split(r"[\t,;|]", first)}
        if len(names) > 1 and not names.isdisjoint((column.lower(), "text")):
            warn_of_input(
                "the first line of {name} looks like the header of a table, but each line is "
                "read as a text: give a file for a table",
                name,
            )
        return MemoryTable(
            name, (column,), lambda names: ((line,) * len(names) for line in every), once=True
        )
    numbered = enumerate(every, start=1)
    records = (parse_object(line, f"{name}, row {number}") for number, line in numbered)
    start = next(records)
    rest = chain([start], records)
    return MemoryTable(
        name, tuple(start), lambda names: (tuple(map(r.get, names)) for r in rest), once=True
    )


def _of_tuples(rows: Sequence[Any], name: str, positional: Positional) -> MemoryTable:
    """A table from rows without names: texts, or several values each. Ragged lists are words."""
    tuples: list[tuple[Any, ...]] = [tuple(items(row)) if is_list(row) else (row,) for row in rows]
    if all(len(row) == 2 for row in tuples) and _names_of_pairs(
        [row[0] for row in tuples], name, positional
    ):
        tuples = [(*row[0], row[1]) for row in tuples]
    try:
        columns = tuple(positional(len(tuples[0])))
        if all(isinstance(row, list) for row in rows) and len({*map(len, rows)}) > 1:
            raise InputError("all rows must have the same form")
    except InputError as error:
        if not all(isinstance(row, list) for row in rows):
            raise InputError("{name}: {error}, not {rows}", name, error, _shown(rows[0])) from None
        try:
            columns, tuples = tuple(positional(1)), [(row,) for row in rows]
        except InputError:
            raise InputError("{name}: {error}, not {rows}", name, error, _shown(rows[0])) from None
    for number, row in enumerate(tuples, start=1):
        if len(row) != len(columns):
            raise InputError(
                "{name}, row {number} has {count} values and row 1 has {count2}; all rows must "
                "have the same form",
                name,
                number,
                len(row),
                len(columns),
            )
    indices = {key: i for i, key in enumerate(columns)}
    return MemoryTable(
        name, columns, lambda names: (tuple(row[indices[key]] for key in names) for row in tuples)
    )


def _names_of_pairs(
    texts: Sequence[Any], name: str, positional: Positional
) -> Sequence[str] | None:
    """The column names of pairs of texts with a label; None if the texts are no pairs.

    A pair is a tuple of two texts, as in ``Predictor``. If the task reads no pairs, tuples of two
    words without spaces are the words of a text, and others are refused.
    """
    if not all(
        isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
        for text in texts
    ):
        return None
    try:
        return positional(3)
    except InputError as error:
        pair = next((text for text in texts if any(len(part.split()) > 1 for part in text)), None)
        if pair is not None:
            raise InputError("{name}: {error}, not {pair}", name, error, _shown(pair)) from None
    return None


def _label_name(positional: Positional) -> str:
    """The column name of labels given beside a DataFrame with one or two texts per row."""
    with suppress(InputError):
        return positional(2)[-1]
    return positional(3)[-1]  # the task reads pairs


def _by_name(name: str, labels: Any) -> dict[str, Any]:
    """The labels by column: several, if the columns of a matrix of numbers are named ("a,b")."""
    names = split_names(name)
    rows = [items(row) if is_list(row) else [row] for row in items(labels)]
    if {len(names)} != {*map(len, rows)} or len(names) == 1 or isinstance(rows[0][0], str):
        return {name: labels}
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _scalar_text(value: Any) -> str:
    return str(value) if isinstance(value, SCALARS) else json.JSONEncoder().default(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _of_table(data: Any, name: str, *, trim: bool = False) -> MemoryTable:
    """A table from a DataFrame, a dataset or an Arrow table; only the needed columns are read."""
    if hasattr(data, "column_names"):
        transformed = (getattr(data, "format", None) or {}).get("type") == "custom"
        # Python values: "torch" has 1.0 for a label beside a missing one, "pandas" tables as rows.
        data = data.with_format(None) if hasattr(data, "with_format") and not transformed else data
        given = data.column_names
        if isinstance(given, Mapping):  # a DatasetDict that is no mapping itself
            raise InputError(
                "{name} has several splits ({value}); choose one of them", name, ", ".join(given)
            )
        if given is None or not hasattr(data, "__len__"):
            features = getattr(data, "features", None) or {}
            readers = {key: _label_reader(feature) for key, feature in features.items()}
            same = _label_reader(None)
            named = [{k: readers.get(k, same)(v) for k, v in row.items()} for row in data]
            return _of_records(named, name)
        keys = {str(key): key for key in given}
        data = _without_empty_end(data, name) if trim and len(keys) > 1 else data
        read = _arrow_rows if hasattr(data, "to_batches") else _dataset_rows
        return MemoryTable(name, tuple(keys), lambda names: read(data, [keys[k] for k in names]))
    keys = {str(key): key for key in data.columns}
    data = _without_empty_end(data, name) if trim and len(keys) > 1 else data
    return MemoryTable(
        name,
        tuple(map(str, data.columns)),
        lambda names: _frame_rows(data, [keys[key] for key in names]),
    )


def _without_empty_end(data: Any, name: str) -> Any:
    """A table without the rows at its end that have no value, as spreadsheets leave them."""

    def are_empty(count: int) -> Iterable[bool]:
        if hasattr(data, "to_batches"):
            return empty_rows(data.slice(len(data) - count))
        if hasattr(data, "column_names"):
            rows = _dataset_rows(
                data.select(range(len(data) - count, len(data))), data.column_names
            )
        else:
            rows = _frame_rows(data.tail(count), data.columns)
        return (all(is_missing(plain(value)) for value in row) for row in rows)

    empty = count_at_end(len(data), are_empty)
    if not empty:
        return data
    warn_of_empty_end(name, empty)
    kept = len(data) - empty
    if hasattr(data, "to_batches"):
        return data.slice(0, kept)
    return data.select(range(kept)) if hasattr(data, "column_names") else data.head(kept)


def empty_rows(table: Any) -> list[bool]:
    """Which rows of a pyarrow table or batch have no value in any column."""
    import pyarrow as pa

    empty = [True] * table.num_rows
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_floating(kind):
            missing = map(is_missing, column.to_pylist())
        else:
            missing = column.is_null().to_pylist()
        empty = [one and other for one, other in zip(empty, missing, strict=True)]
    return empty


def _frame_rows(data: Any, keys: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*(items(data[key]) for key in keys), strict=True)


def _arrow_rows(data: Any, names: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return rows_of_batches(data.select(list(names)).to_batches(max_chunksize=_ROWS), names)


def rows_of_batches(
    batches: Iterable[Any], names: Sequence[Any], where: str = ""
) -> Iterator[tuple[Any, ...]]:
    """The rows of pyarrow.RecordBatches as Python values; ``where`` precedes the name of a column
    in messages.

    Raises:
        InputError: the type of a column has no Python equivalent.
    """
    for batch in batches:
        columns = (_arrow_cells(batch[name], f"{where}column {name!r}") for name in names)
        yield from zip(*columns, strict=True)


def _arrow_cells(column: Any, where: str) -> list[Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    try:
        # Some parquet writers store texts as bytes.
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            with suppress(pa.ArrowInvalid):
                column = column.cast(pa.large_string())
        if pa.types.is_map(kind):
            raise NotImplementedError("a map is not text")
        # Python's times have microsecond precision.
        if getattr(kind, "unit", None) == "ns":
            try:
                column = column.cast(_in_microseconds(kind))
            except pa.ArrowInvalid:
                if pa.types.is_duration(kind):
                    raise
                column = column.cast(pa.string())
        return column.to_pylist()
    except (ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        reason = in_short(" ".join(str(error).split()))
        raise InputError(
            "{where} has values of type {kind}: {reason}", where, kind, reason
        ) from None


def _in_microseconds(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _dataset_rows(data: Any, names: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of a datasets.Dataset, with label indices replaced by names."""
    features = getattr(data, "features", None) or {}
    readers = [_label_reader(features.get(key)) for key in names]
    chosen = data.select_columns(list(names))
    for start in range(0, len(chosen), _ROWS):
        block = chosen[start : start + _ROWS]
        columns = ([read(v) for v in block[key]] for read, key in zip(readers, names, strict=True))
        yield from zip(*columns, strict=True)


def _label_reader(feature: Any) -> Callable[[Any], Any]:
    """A function that converts a column's values to label names: ClassLabel has indices, -1 for
    none."""
    inner = getattr(feature, "feature", feature)
    inner = inner[0] if isinstance(inner, list) and inner else inner
    known = getattr(inner, "names", None)
    if known is None:
        return lambda value: value

    def named(value: Any) -> Any:
        value = plain(value)  # tensors and arrays of a transform
        if isinstance(value, int):
            return known[value] if value >= 0 else None
        return [named(each) for each in value] if isinstance(value, list) else value

    return named
