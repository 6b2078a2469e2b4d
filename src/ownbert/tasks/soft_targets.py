"""Soft targets: probabilities of the labels, predicted by another model, instead of a label.

A training row may have a tuple or an array of C numbers as its target, in the order of the task's
labels; other rows may have ordinary targets. Rows for evaluation must have labels.

Source: Hinton, Vinyals and Dean 2015 (knowledge distillation), section 2.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.tables.tables import Source
from ownbert.tasks.rows import Row, list_labels

# Tolerance for the sum of a distribution, which may consist of rounded numbers.
_ROUNDING = 1e-3
_SHOWN = 0.05  # minimum probability shown in a message


def is_soft(target: Any) -> bool:
    """Whether a target contains probabilities: an array, or numbers in a tuple."""
    if isinstance(target, np.ndarray):
        return True
    return isinstance(target, tuple) and bool(target) and not isinstance(target[0], str)


def learn_order(
    rows: Sequence[Row], labels: Sequence[str], names: Collection[str], source: Source
) -> tuple[str, ...]:
    """The label order of the probabilities in ``rows``: ``labels``, if a row has probabilities,
    else empty, because the rows determine the labels.

    ``names`` are the labels of the rows with ordinary targets. Raises ``InputError`` if neither
    give the labels of the probabilities, or one is unknown.
    """
    if not any(is_soft(row.target) for row in rows):
        return ()
    where = source or "training rows"
    if labels:
        if unknown := sorted(set(names) - set(labels)):
            raise InputError(
                "{where}: the label {unknown!r} is not one of the labels of the probabilities, "
                "{labels}",
                where,
                unknown[0],
                list_labels(labels),
            )
        return tuple(labels)
    if not names:
        raise InputError(
            "{where}: all targets are probabilities; give the labels in their order (labels=...)",
            where,
        )
    return ()


def check_distribution(target: Any, labels: Sequence[str], where: str) -> None:
    """Raise ``InputError`` unless the target is a distribution over the labels: (C), sum 1."""
    values = check_probabilities(target, labels, where)
    if not math.isclose(total := float(values.sum()), 1, abs_tol=_ROUNDING):
        raise InputError(
            "{where}: the probabilities of the labels add up to {total:g}, not to 1", where, total
        )


def check_probabilities(target: Any, labels: Sequence[str], where: str) -> np.ndarray:
    """The target as (C) probabilities; raise ``InputError`` unless there is one for each label."""
    try:
        values = np.asarray(target, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "{where}: the probabilities of the labels must be numbers", where
        ) from None
    if values.shape != (len(labels),):
        raise InputError(
            "{where}: {size} probabilities for {count} labels; one for each of {labels} is needed",
            where,
            values.size,
            len(labels),
            list_labels(labels),
        )
    if not ((values >= 0) & (values <= 1)).all():  # also rejects NaN
        raise InputError(
            "{where}: a probability is not between 0 and 1: {values}", where, values.tolist()
        )
    return values


def refuse_soft_targets(rows: Sequence[Row], source: Source) -> None:
    """Raise ``InputError`` if a row for evaluation has probabilities."""
    for row in rows:
        if is_soft(row.target):
            raise InputError(
                "{place}: dev rows need labels; probabilities are for training rows",
                row.place(source),
            )


def readable_probabilities(target: Any, labels: Sequence[str]) -> str:
    """The most probable labels with their probabilities, for the user."""
    pairs = zip(labels, np.asarray(target).tolist(), strict=True)
    return ", ".join(f"{label} {p:.0%}" for label, p in pairs if p >= _SHOWN) or "no likely label"
