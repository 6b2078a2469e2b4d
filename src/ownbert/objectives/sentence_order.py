"""Sentence order prediction."""

from collections.abc import Set
from dataclasses import dataclass

from ownbert.exceptions import InputError
from ownbert.objectives.sentence_pair import SentencePair


@dataclass(frozen=True)
class SentenceOrder(SentencePair):
    """Cross entropy of whether two neighbouring texts were exchanged (Lan et al. 2020, section
    3.1)."""

    name = pairs = "sop"
    title, short, colour = "sentence order", "SOP", 5
    explained = "sentence order, instead of nsp"
    classes = ("in order", "exchanged")

    @classmethod
    def require(cls, names: Set[str]) -> None:
        if "nsp" in names:
            raise InputError("task.objectives has nsp and sop, which share a head; use one of them")
