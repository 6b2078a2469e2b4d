"""Converts texts and targets in memory to rows of a task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.tables.columns import LABEL_NAMES, TEXT_NAMES
from ownbert.tables.memory import dense, is_table, plain, table_of
from ownbert.tables.tables import as_text
from ownbert.tasks.rows import Row, label_text

# Usual names of target columns.
_ANSWERS = frozenset(LABEL_NAMES) - frozenset(TEXT_NAMES)


def texts_of(X: Any, least: int = 1) -> list[tuple[str, ...]]:
    """The text or pair of texts of each row of X, at least ``least`` of them."""
    if isinstance(X, str):
        raise InputError("X is a single text; a list of texts is needed")
    if is_table(X) or isinstance(X, Mapping):
        table = table_of(X, name="X")
        if answers := [name for name in table.names if name.lower() in _ANSWERS]:
            raise InputError(
                "X has a column {answers!r}, which is named like labels; give X only the text "
                "columns",
                answers[0],
            )
        if not hasattr(X, "to_numpy"):  # a datasets.Dataset, a mapping of columns
            X = [row for _, row in table.read(table.names)]
    as_list = getattr(X, "to_pylist", None) or getattr(X, "to_numpy", None)  # Arrow, pandas
    X = as_list() if as_list else X
    if isinstance(X, np.ndarray) and X.ndim == 2:
        if X.shape[1] > 2:
            raise InputError(
                "X has {shape} columns; a text or a pair of texts is needed", X.shape[1]
            )
        X = map(tuple, X)
    texts = []
    for index, row in enumerate(X):
        parts = row if isinstance(row, tuple) else (row,)
        if not 1 <= len(parts) <= 2:
            raise InputError(
                "X[{index}] is a tuple of {count}; a pair of texts has two",
                index,
                len(parts),
            )
        if texts and len(parts) != len(texts[0]):
            raise InputError(
                "X[{index}] and X[0] must both be texts or both be pairs of texts", index
            )
        texts.append(tuple(_text(part, f"X[{index}]") for part in parts))
    if len(texts) < least:
        raise InputError("X is empty; at least one text is needed")
    return texts


def column_names(X: Any) -> np.ndarray | None:
    """The names of the columns of a data frame, if all are strings; None for other forms of X."""
    columns = getattr(X, "columns", ())
    names = [name for name in columns if isinstance(name, str)]
    return np.array(names, dtype=object) if names and len(names) == len(columns) else None


def _text(value: Any, where: str) -> str:
    """A text, or a list of words joined by spaces."""
    words = value if isinstance(value, list | np.ndarray) else [value]
    for word in words:
        if not isinstance(word, str):
            raise InputError("{where} contains {word!r}, which is not a text", where, word)
    return as_text(" ".join(words), "text", where)


def labels_of(y: Any) -> Any:
    """Check that y has one label per text, and return it with its type."""
    if y is None:
        raise InputError("y is None; a label for every text is needed")
    y = dense(y)
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind == "O" and any(isinstance(label, list | tuple) for label in y):
        y = list(y)  # a Series of lists
    if isinstance(y, list) and all(isinstance(label, list) and len(label) == 1 for label in y):
        y = [label for (label,) in y]
    # NumPy would convert NaN among texts to "nan".
    for index, label in enumerate(y if isinstance(y, list | tuple) else ()):
        _require_label(label, f"y[{index}]")
    # scikit-learn would convert pandas' nullable integers to floats.
    kind = getattr(getattr(y, "dtype", None), "numpy_dtype", None)
    if kind is not None and not y.isna().any():  # pyright: ignore
        y = y.to_numpy(dtype=kind)  # pyright: ignore
    if (classes := _of_one_hot(y)) is not None:
        return classes
    several = isinstance(y, list | tuple) and any(
        isinstance(label, list | tuple | set) for label in y
    )
    shape = () if isinstance(y, list | tuple) else np.asarray(y).shape
    if several or (len(shape) == 2 and shape[1] > 1):
        raise InputError(
            "y has several labels for each text, but this is for one; for several: "
            'ownbert.finetune("multilabel", model=..., train={{"text": X, "labels": y}}, '
            "output=...)"
        )
    return y


def _of_one_hot(y: Any) -> np.ndarray | None:
    """The class of each text, from rows of 0 and 1 with a single 1; None for other forms of y."""
    if hasattr(y, "columns") or not hasattr(y, "__len__") or not len(y):
        return None
    try:
        bits = np.asarray(y)
    except ValueError:  # rows of different lengths
        return None
    if bits.ndim != 2 or bits.shape[1] < 2 or bits.dtype.kind not in "biuf":
        return None
    return bits.argmax(1) if np.isin(bits, (0, 1)).all() and (bits.sum(1) == 1).all() else None


def name_of(label: Any, where: str) -> str:
    """A label as text; ``InputError`` if it is missing."""
    _require_label(label, where)
    return label_text(label.item() if isinstance(label, np.generic) else label, where)


def _require_label(label: Any, where: str) -> None:
    if plain(label) is None:
        raise InputError("{where} is {label}; every text needs a label", where, label)


def rows_of(
    texts: Sequence[tuple[str, ...]], targets: Sequence[Any], weights: Any = None
) -> list[Row]:
    """Make rows of texts with targets and, optionally, weights of their losses."""
    if len(texts) != len(targets):
        raise InputError("X has {count} texts, but y has {count2} values", len(texts), len(targets))
    scaled = np.ones(len(texts)) if weights is None else _weights(weights, len(texts))
    rows = zip(texts, targets, scaled.tolist(), strict=True)
    return [Row(i, text, target, weight=weight) for i, (text, target, weight) in enumerate(rows)]


def _weights(values: Any, count: int) -> np.ndarray:
    """(N) weights, normalised to 1 on average."""
    try:
        weights = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight must be numbers, one for each text") from None
    if weights.shape != (count,):
        raise InputError(
            "sample_weight must be {count} numbers, one for each text, not of shape {shape}",
            count,
            weights.shape,
        )
    total = weights.sum()
    if not np.isfinite(total) or (weights < 0).any() or total <= 0:
        raise InputError("sample_weight must be finite, 0 or more, and not all zero")
    return weights * (count / total)


def numbers_of(y: Any) -> np.ndarray:
    """y as an array (texts) or (texts, columns) of finite numbers; no column is constant."""
    if y is None:
        raise InputError("y is None; a number for every text is needed")
    try:
        numbers = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("y must be numbers, one or several for each text") from None
    if numbers.ndim not in (1, 2) or not numbers.size:
        raise InputError(
            "y must be numbers, one or several for each text, not of shape {shape}",
            numbers.shape,
        )
    with np.errstate(over="ignore"):  # weights are float32
        odd = np.argwhere(~np.isfinite(numbers.astype(np.float32)))
    if len(odd):
        place = ", ".join(map(str, odd[0]))
        raise InputError(
            "y[{place}] is {numbers}; a finite number is needed",
            place,
            numbers[tuple(odd[0])],
        )
    if (numbers == numbers[0]).all(0).any():
        raise InputError("y is the same number for all texts; different numbers are needed")
    return numbers
