"""Word features: ids of tags, and the tokens of each word.

T tokens, W words of a text, F columns.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.tables.feature_cells import Cells
from ownbert.tables.name_lists import split_names

# Tags by column, in the order of their ids from 1. Id 0 means none: special tokens, and tags not
# seen in training.
Features = Mapping[str, Sequence[str]]


def learn_features(cells: Iterable[Cells], names: Sequence[str]) -> dict[str, list[str]]:
    """The tags of each column in texts, sorted."""
    tag_sets: list[set[str]] = [set() for _ in names]
    for of_text in cells:
        for known, tags in zip(tag_sets, of_text, strict=True):
            known.update(tags)
    return {name: sorted(tags) for name, tags in zip(names, tag_sets, strict=True)}


def describe_features(features: Features) -> str:
    """The columns with their numbers of tags, for the user."""
    columns = ", ".join(f"{name} ({len(tags):,})" for name, tags in features.items())
    return Message("word features and their numbers of tags: {columns}", columns)


def feature_names(given: str, columns: int) -> list[str]:
    """The names of columns given by the user, separated by commas unless there is a single one."""
    return [given] if columns == 1 else split_names(given)


def number_tags(features: Features) -> list[dict[str, int]]:
    """The id of each tag, by column."""
    return [{tag: i for i, tag in enumerate(known, 1)} for known in features.values()]


def tag_ids(cells: Cells, ids: Sequence[Mapping[str, int]]) -> np.ndarray:
    """(W, F) ids of tags by column; 0 for unknown tags."""
    columns = [[of.get(tag, 0) for tag in tags] for of, tags in zip(ids, cells, strict=True)]
    return np.array(columns, dtype=np.int64).reshape(len(ids), -1).T


def cut_words(pieces: Sequence[Sequence[int]], room: int) -> tuple[list[int], list[int]]:
    """The ids of a text truncated to ``room``, and the number of remaining ids of each word."""
    sizes: list[int] = []
    for piece in pieces:
        size = min(len(piece), room - sum(sizes))
        if not size:
            break
        sizes.append(size)
    return [i for piece in pieces for i in piece], sizes


def word_table(
    sizes: Sequence[int], cells: Cells, features: Features, special: tuple[int, int]
) -> np.ndarray:
    """(W, 1 + F) word table of a sequence including ``special`` tokens, so many before and after
    the text, see ``Example.words``."""
    if len(cells) != len(features):
        message = "the model also reads word features: rows need the columns {features}"
        raise InputError(message, ", ".join(features))
    before, behind = special
    first, last = before, before + len(sizes)
    table = np.zeros((last + behind, 1 + len(features)), dtype=np.int64)
    table[:, 0] = [*[1] * before, *sizes, *[1] * behind]
    table[first:last, 1:] = tag_ids(cells, number_tags(features))[: len(sizes)]
    return table


def split_into_words(begins: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(W, 1 + F) word table of a sequence, see ``Example.words``, from word starts (T), including
    the first token, and the feature ids of each token's word (T, F)."""
    first = begins.nonzero()[0]
    sizes = np.diff(first, append=len(begins))
    return np.column_stack((sizes, ids[first]))
