"""Entities in tags, by the rules of conlleval (Tjong Kim Sang and Buchholz 2000), and measures.

A tag is O, or a letter and a type: B begins an entity, I (M) goes on, E (L) ends it, S (U) is one
word; so BIO, IOBES, BILOU and BMES are read alike. What goes on without a beginning begins one, so
that every sequence of tags has a meaning. The same entities as of seqeval in its default mode.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from ownbert.tasks.metrics import Scores, label_scores, score

_TAG = re.compile(r"([BIESMLU])(?:-(.+))?")
_SAME = {"M": "I", "L": "E", "U": "S"}
OUTSIDE = "O"
# An entity: its type, its first word, the word after its last one.
Entity = tuple[str, int, int]


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether all tags are O or a letter and a type, and some are not O."""
    others = [tag for tag in tags if tag != OUTSIDE]
    return bool(others) and all(map(_TAG.fullmatch, others))


def _parsed(tag: str) -> tuple[str, str]:
    """B, I, E, S or O, and the type; "_" where there is none."""
    found = None if tag == OUTSIDE else _TAG.fullmatch(tag)
    if found is None:
        return OUTSIDE, "_"
    return _SAME.get(found[1], found[1]), found[2] or "_"


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order; none overlap."""
    found: list[Entity] = []
    kind, start = None, 0
    before = OUTSIDE
    for place, (letter, here) in enumerate(map(_parsed, [*tags, OUTSIDE])):
        if kind is not None and (letter in "OBS" or here != kind or before in "ES"):
            found.append((kind, start, place))
            kind = None
        if kind is None and letter != OUTSIDE:
            kind, start = here, place
        before = letter
    return found


def orphans(tags: Sequence[str]) -> list[int]:
    """The words that go on with (I) or end (E) what no word before them began."""
    parsed = [(OUTSIDE, "_"), *map(_parsed, tags)]
    return [
        place
        for place, (before, here) in enumerate(pairwise(parsed))
        if here[0] in "IE" and (before[0] not in "BI" or before[1] != here[1])
    ]


def inside(tag: str) -> str:
    """The tag of what goes on with an entity that ``tag`` begins; other tags stay."""
    return f"I{tag[1:]}" if _parsed(tag)[0] == "B" else tag


def entity_scores(truth: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> Scores:
    """Entities that are right in type, first and last word: micro-averaged, and by type."""
    hits, wanted, given = Counter[str](), Counter[str](), Counter[str]()
    for tags, others in zip(truth, found, strict=True):
        theirs, ours = set(entities(tags)), set(entities(others))
        wanted.update(kind for kind, _, _ in theirs)
        given.update(kind for kind, _, _ in ours)
        hits.update(kind for kind, _, _ in theirs & ours)
    kinds = sorted({*wanted, *given})
    right, support, said = (
        np.asarray([counts[kind] for kind in kinds], dtype=int) for counts in (hits, wanted, given)
    )
    every = label_scores(
        ["all"], right.sum(keepdims=True), support.sum(keepdims=True), said.sum(keepdims=True)
    )[0]
    by_kind = label_scores(kinds, right, support, said)
    values = {"f1": every.f1, "precision": every.precision, "recall": every.recall}
    return Scores({**values, "token_accuracy": _accuracy(truth, found)}, by_kind)


def single_scores(
    truth: Sequence[Sequence[str]], found: Sequence[Sequence[str]], labels: Sequence[str]
) -> Scores:
    """Tags that are no entities, each by itself; micro-averaged they are the accuracy."""
    numbers = {label: i for i, label in enumerate(labels)}
    wanted, given = ([numbers[tag] for tags in each for tag in tags] for each in (truth, found))
    by_tag = score(wanted, given, labels)
    warning = (
        "the tags are not of entities (as O, B-x, I-x): f1, precision and recall are the share of "
        "words that are tagged right; the scores of labels are those of single tags"
    )
    accuracy = by_tag.accuracy
    values = {"f1": accuracy, "precision": accuracy, "recall": accuracy}
    return Scores(
        {**values, "token_accuracy": accuracy}, by_tag.labels, by_tag.confusion, (warning,)
    )


def _accuracy(truth: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    pairs = zip(truth, found, strict=True)
    right = sum(a == b for tags, others in pairs for a, b in zip(tags, others, strict=True))
    return right / max(1, sum(map(len, truth)))
