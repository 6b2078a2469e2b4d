"""DistilBERT (Sanh et al. 2019): BERT without token types and pooler, with other names."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import ownbert.families.bert as bert
from ownbert.config.head_spec import HeadSpec
from ownbert.families.mapping.family import Calls, Family, architectures, encoder_arguments
from ownbert.families.mapping.weight_map import Fuse, Rename, Tie, WeightMap

_LAYER = "distilbert.transformer.layer.{i}."
_BLOCK = "encoder.blocks.{i}."
_CLASSIFICATION = HeadSpec("classification", pooling="first", dense="relu", dropout_first=False)
_CHOICE = HeadSpec("choice", pooling="first", dense="relu", dropout_first=False)
_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    """BERT's keys for sizes override DistilBERT's, as in Transformers."""
    aliases = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    return {name: values[name] for name in aliases if name in values}


DISTILBERT = Family(
    model_type="distilbert",
    weight_map=WeightMap(
        rules=(
            *bert.embedding_rules("distilbert.embeddings."),
            Fuse.of(_BLOCK + "attention.qkv", _LAYER + "attention.", "q_lin", "k_lin", "v_lin"),
            Rename(_BLOCK + "attention.output", _LAYER + "attention.out_lin"),
            Rename(_BLOCK + "attention_norm", _LAYER + "sa_layer_norm"),
            Rename(_BLOCK + "feed_forward.up", _LAYER + "ffn.lin1"),
            Rename(_BLOCK + "feed_forward.down", _LAYER + "ffn.lin2"),
            Rename(_BLOCK + "feed_forward_norm", _LAYER + "output_layer_norm"),
            Rename("heads.mlm.dense", "vocab_transform"),
            Rename("heads.mlm.norm", "vocab_layer_norm"),
            Rename("heads.mlm.decoder.bias", "vocab_projector.bias"),
            Tie("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
            Rename("heads.classification.hidden", "pre_classifier"),
            Rename("heads.choice.hidden", "pre_classifier"),
            *bert.label_rules("classification", "choice", "tokens"),
        ),
        prefix="distilbert.",
        old_names=bert.OLD_NAMES,
    ),
    architectures=architectures(
        "DistilBert", bert.MLM, _CLASSIFICATION, _CHOICE, bert.TOKENS, bert.SPAN, pooler=False
    ),
    defaults={
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        # Sinusoids are stored in checkpoints like any other table.
        "sinusoidal_pos_embds": False,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu",
        "initializer_range": 0.02,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "pad_token_id": 0,
        "pruned_heads": {},
        "chunk_size_feed_forward": 0,
    },
    names=_NAMES,
    fixed={"type_vocab_size": 0, "layer_norm_eps": 1e-12, "drop_attention_output": False},
    reads=_reads,
    required={**bert.ENCODER_ONLY, "position_embedding_type": ("absolute",)},
    dropouts={
        "classification": "seq_classif_dropout",
        "choice": "seq_classif_dropout",
        "span": "qa_dropout",
    },
    calls=Calls(partial(encoder_arguments, inputs=("head_mask", "inputs_embeds"))),
)
