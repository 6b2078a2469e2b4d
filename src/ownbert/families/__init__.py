"""The mapping between names of Hugging Face and OwnBERT, as data: one short module per family."""

from collections.abc import Mapping
from typing import Any

from ownbert.exceptions import InputError
from ownbert.families.albert import ALBERT
from ownbert.families.bert import BERT
from ownbert.families.deberta import DEBERTA
from ownbert.families.distilbert import DISTILBERT
from ownbert.families.electra import ELECTRA
from ownbert.families.ernie import ERNIE
from ownbert.families.mapping.family import OWN, EncoderDecoder, Family
from ownbert.families.marian import MARIAN
from ownbert.families.mobilebert import MOBILEBERT
from ownbert.families.modernbert import MODERNBERT
from ownbert.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from ownbert.families.t5 import T5, T5_ENCODER_DECODER
from ownbert.families.vit import VIT
from ownbert.families.xlnet import XLNET

_TEXTS = (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, DISTILBERT, ELECTRA, ERNIE, MOBILEBERT)
FAMILIES = {family.model_type: family for family in (*_TEXTS, MODERNBERT, DEBERTA, T5, XLNET)}

# Models with a decoder that attends to the encoder.
ENCODER_DECODERS = {kind.model_type: kind for kind in (MARIAN, T5_ENCODER_DECODER)}

# Classes of earlier versions of Transformers.
_OLD_NAMES = ("T5WithLMHeadModel",)

# Families of image models.
IMAGE_FAMILIES = {VIT.model_type: VIT}


def all_families() -> dict[str, Family]:
    """The families of text and image models by model_type."""
    return {**FAMILIES, **IMAGE_FAMILIES}


def all_kinds() -> tuple[Family | EncoderDecoder, ...]:
    """The families, and the models with a decoder that attends to the encoder."""
    return (*all_families().values(), *ENCODER_DECODERS.values())


def encoder_decoder_of(values: Mapping[str, Any]) -> EncoderDecoder | None:
    """The kind of encoder-decoder model in a config.json; None for other models."""
    kind = ENCODER_DECODERS.get(str(values.get("model_type")).removeprefix(OWN))
    if kind is None or kind.model_type not in FAMILIES:
        return kind
    (named, *_) = values.get("architectures") or [None]
    return kind if named in (*kind.architectures, *_OLD_NAMES) else None


def family_of(model_type: str, where: str) -> Family:
    """Find the family of a model."""
    name = str(model_type).removeprefix(OWN)
    families = all_families()
    if name == MARIAN.model_type:
        raise InputError(
            "{where}: a {model_type} model has an encoder and a decoder; use it with ownbert "
            "translate",
            where,
            model_type,
        )
    if name not in families:
        wrong = f"{model_type!r} is not known" if model_type else "is missing"
        message = "{where}: model_type {wrong}; it must be one of {families}"
        raise InputError(message, where, wrong, ", ".join(families))
    return families[name]
