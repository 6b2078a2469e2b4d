"""RoBERTa (Liu et al. 2019), and XLM-R and CamemBERT, which have the same structure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ownbert.families.bert as bert
from ownbert.config.head_spec import HeadSpec
from ownbert.families.mapping.family import (
    CROSSING,
    ArchitectureSpec,
    Calls,
    Family,
    Kinds,
    architectures,
    encoder_arguments,
)
from ownbert.families.mapping.weight_map import Rename, Rule, WeightMap

_MLM = HeadSpec("mlm", activation="gelu")
_CLASSIFICATION = HeadSpec("classification", pooling="first", dense="tanh")


def roberta_rules(prefix: str) -> tuple[Rule, ...]:
    """Rules for the encoder and all heads, with RoBERTa's names."""
    word = prefix + "embeddings.word_embeddings.weight"
    return (
        *bert.encoder_rules(prefix),
        *bert.mlm_rules("lm_head.", word, dense="dense", norm="layer_norm"),
        Rename("heads.classification.hidden", "classifier.dense"),
        Rename("heads.classification.dense", "classifier.out_proj"),
        *bert.label_rules("choice", "tokens"),
    )


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Positions start after the index of the padding token, as in fairseq."""
    return {"position_offset": (values["pad_token_id"] or 0) + 1}


def roberta_architectures(name: str) -> dict[str, ArchitectureSpec]:
    """The architectures of RoBERTa, or of a family with the same structure."""
    return {
        **architectures(name, _MLM, _CLASSIFICATION, bert.CHOICE, bert.TOKENS, bert.SPAN),
        f"{name}ForCausalLM": ArchitectureSpec((_MLM,), decoder=True),
    }


def _arguments(kinds: Kinds, decoder: bool) -> Sequence[str]:
    names = encoder_arguments(kinds, decoder, crossing=CROSSING)
    if kinds == ("choice",):
        first = ["input_ids", "token_type_ids", "attention_mask", "labels"]
        names = [*first, *(name for name in names if name not in first)]
    return names


ROBERTA = Family(
    model_type="roberta",
    weight_map=WeightMap(
        rules=roberta_rules("roberta."), prefix="roberta.", old_names=bert.OLD_NAMES
    ),
    architectures=roberta_architectures("Roberta"),
    defaults={
        **bert.DEFAULTS,
        "vocab_size": 50265,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    reads=_reads,
    required=bert.REQUIRED,
    calls=Calls(_arguments),
    # The multiple-choice head uses the encoder's dropout rate.
    dropouts=dict.fromkeys(("classification", "tokens"), "classifier_dropout"),
)
XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures=roberta_architectures("XLMRoberta"),
    defaults={**ROBERTA.defaults, "vocab_size": 30522},
)
CAMEMBERT = replace(
    XLM_ROBERTA, model_type="camembert", architectures=roberta_architectures("Camembert")
)
