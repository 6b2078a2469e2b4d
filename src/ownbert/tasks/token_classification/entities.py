"""Entities in tag sequences by the rules of conlleval (Tjong Kim Sang and Buchholz 2000), and
metrics.

A tag is O, or a letter and a type: B begins an entity, I (M) continues it, E (L) ends it, S (U) is
a single word; so BIO, IOBES, BILOU and BMES are all supported. A continuation without a beginning
begins an entity, so that every tag sequence is valid. The entities are those of seqeval's default
mode. Tags without letters (PER, LOC, O) are plain: their entities are those of Transformers
pipelines with aggregation_strategy "simple".
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ownbert.tasks.metrics import Scores, label_scores, score_labels

_TAG = re.compile(r"([BIESMLU])(?:-(.+))?")
_PLAIN = re.compile(r"(?:([BI])-)?(.+)", re.DOTALL)
_SYNONYMS = {"M": "I", "L": "E", "U": "S"}
OUTSIDE = "O"
# Type, index of the first word, and index after the last word.
Entity = tuple[str, int, int]


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether all tags are O or a letter and a type, and at least one is not O."""
    others = [tag for tag in tags if tag != OUTSIDE]
    return bool(others) and all(map(_TAG.fullmatch, others))


def _parsed(tag: str, *, plain: bool = False) -> tuple[str, str]:
    """B, I, E, S or O, and the type, "_" if there is none."""
    match = None if tag == OUTSIDE else (_PLAIN if plain else _TAG).fullmatch(tag)
    if match is None:
        return OUTSIDE, "_"
    letter = match[1] or "I"
    return _SYNONYMS.get(letter, letter), match[2] or "_"


def entities(tags: Sequence[str], *, plain: bool = False) -> list[Entity]:
    """The entities of a sentence, in order and without overlap.

    Args:
        tags: one tag per word.
        plain: whether tags are types: adjacent words with the same tag are one entity.
    """
    spans: list[Entity] = []
    kind, start = None, 0
    before = OUTSIDE
    parsed = (_parsed(tag, plain=plain) for tag in [*tags, OUTSIDE])
    for place, (letter, parsed_kind) in enumerate(parsed):
        if kind is not None and (letter in "OBS" or parsed_kind != kind or before in "ES"):
            spans.append((kind, start, place))
            kind = None
        if kind is None and letter != OUTSIDE:
            kind, start = parsed_kind, place
        before = letter
    return spans


def orphans(tags: Sequence[str]) -> list[int]:
    """Indices of words whose tag continues (I) or ends (E) an entity that was not begun."""
    parsed = [(OUTSIDE, "_"), *map(_parsed, tags)]
    return [
        place
        for place, (before, current) in enumerate(pairwise(parsed))
        if current[0] in "IE" and (before[0] not in "BI" or before[1] != current[1])
    ]


def continuation_tag(tag: str) -> str:
    """The tag that continues an entity begun by ``tag``; other tags are returned unchanged."""
    return f"I{tag[1:]}" if _parsed(tag)[0] == "B" else tag


def score_entities(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Precision, recall and F1 of entities, micro-averaged and by type.

    An entity is correct if its type, first word and last word are correct.
    """
    hits, gold, predicted_counts = Counter[str](), Counter[str](), Counter[str]()
    for true_tags, tags in zip(truth, predicted, strict=True):
        theirs, ours = set(entities(true_tags)), set(entities(tags))
        gold.update(kind for kind, _, _ in theirs)
        predicted_counts.update(kind for kind, _, _ in ours)
        hits.update(kind for kind, _, _ in theirs & ours)
    kinds = sorted({*gold, *predicted_counts})
    right, support, predictions = (
        np.asarray([counts[kind] for kind in kinds], dtype=int)
        for counts in (hits, gold, predicted_counts)
    )
    sums = (each.sum(keepdims=True) for each in (right, support, predictions))
    (micro,) = label_scores(["all"], *sums)
    values = {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall}
    values["token_accuracy"] = _accuracy(truth, predicted)
    return Scores(values, label_scores(kinds, right, support, predictions))


def score_tags(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> Scores:
    """Metrics of tags other than entity tags; the micro-averages equal the accuracy."""
    indices = {label: i for i, label in enumerate(labels)}
    true, found = ([indices[tag] for tags in each for tag in tags] for each in (truth, predicted))
    by_tag = score_labels(true, found, labels)
    warning = (
        "the tags are not entity tags (such as O, B-x, I-x): f1, precision and recall are the "
        "share of correctly tagged words; scores per label are those of single tags"
    )
    names = ("f1", "precision", "recall", "token_accuracy")
    values: dict[str, float] = dict.fromkeys(names, by_tag.accuracy)
    return replace(by_tag, values=values, warnings=(warning,))


def _accuracy(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    pairs = zip(truth, predicted, strict=True)
    right = sum(a == b for tags, others in pairs for a, b in zip(tags, others, strict=True))
    return right / max(1, sum(map(len, truth)))
