"""ELECTRA (Clark et al. 2020): a generator and a discriminator, both BERT without a pooler."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import ownbert.families.bert as bert
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.families.mapping.family import (
    ArchitectureSpec,
    Calls,
    Family,
    architectures,
    encoder_arguments,
)
from ownbert.families.mapping.weight_map import Rename, Tie, WeightMap

_MLM = HeadSpec("mlm", activation="gelu")
_DISCRIMINATOR = HeadSpec("discriminator")
_CLASSIFICATION = HeadSpec("classification", pooling="first", dense="gelu")
_CHOICE = HeadSpec("choice", pooling="first", dense="gelu", dropout_first=False)


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Embeddings are projected only if E is not D."""
    same = values["embedding_size"] == values["hidden_size"]
    return {"embedding_size": None if same else values["embedding_size"]}


def _writes(config: EncoderConfig) -> dict[str, Any]:
    return {"embedding_size": config.embedding_size or config.hidden_size}


ELECTRA = Family(
    model_type="electra",
    weight_map=WeightMap(
        rules=(
            *bert.encoder_rules("electra."),
            Rename("encoder.embeddings.projection", "electra.embeddings_project"),
            Rename("heads.mlm.dense", "generator_predictions.dense"),
            Rename("heads.mlm.norm", "generator_predictions.LayerNorm"),
            Rename("heads.mlm.decoder.bias", "generator_lm_head.bias"),
            Tie("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
            Rename("heads.discriminator.dense", "discriminator_predictions.dense"),
            Rename("heads.discriminator.score", "discriminator_predictions.dense_prediction"),
            Rename("heads.classification.hidden", "classifier.dense"),
            Rename("heads.classification.dense", "classifier.out_proj"),
            Rename("heads.choice.hidden", "sequence_summary.summary"),
            *bert.label_rules("choice", "tokens"),
        ),
        prefix="electra.",
        old_names=bert.OLD_NAMES,
    ),
    architectures={
        **architectures(
            "Electra", _MLM, _CLASSIFICATION, _CHOICE, bert.TOKENS, bert.SPAN, pooler=False
        ),
        "ElectraForPreTraining": ArchitectureSpec((_DISCRIMINATOR,)),
        "ElectraForCausalLM": ArchitectureSpec((_MLM,), decoder=True),
    },
    defaults={
        "vocab_size": 30522,
        "embedding_size": 128,
        **bert.DEFAULTS,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    reads=_reads,
    writes=_writes,
    required={
        **bert.REQUIRED,
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_first_dropout": (None, 0),
    },
    dropouts={
        "classification": "classifier_dropout",
        "tokens": "classifier_dropout",
        "choice": "summary_last_dropout",
    },
    activations={"choice": "summary_activation"},
    calls=Calls(partial(encoder_arguments, crossing=((),))),
)
