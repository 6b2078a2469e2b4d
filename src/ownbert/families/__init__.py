"""Hugging Face's names and ours, as data: one short module a family."""

from ownbert.errors import InputError
from ownbert.families.bert import BERT
from ownbert.families.rules import Family

FAMILIES = {family.model_type: family for family in (BERT,)}


def family_of(model_type: str, where: str) -> Family:
    """The family of a ``config.json``. Raises ``InputError`` for one that is not known."""
    if model_type not in FAMILIES:
        raise InputError(
            f"{where}: model_type {model_type!r} is not known; one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
