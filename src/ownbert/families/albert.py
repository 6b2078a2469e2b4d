"""ALBERT (Lan et al. 2020): factorised embeddings, and layers that share their weights."""

import ownbert.families.bert as bert
from ownbert.config.head_spec import HeadSpec
from ownbert.families.mapping.family import ArchitectureSpec, Family, architectures
from ownbert.families.mapping.weight_map import Fuse, Rename, WeightMap

_LAYER = "albert.encoder.albert_layer_groups.{g}.albert_layers.{j}."
_BLOCK = "encoder.blocks.{i}."
_SOP = HeadSpec("sop")

ALBERT = Family(
    model_type="albert",
    weight_map=WeightMap(
        rules=(
            *bert.embedding_rules("albert.embeddings."),
            Rename("encoder.embeddings.projection", "albert.encoder.embedding_hidden_mapping_in"),
            Fuse.of(_BLOCK + "attention.qkv", _LAYER + "attention.", "query", "key", "value"),
            Rename(
                _BLOCK + "attention.bias.distance.weight",
                _LAYER + "attention.distance_embedding.weight",
            ),
            Rename(_BLOCK + "attention.output", _LAYER + "attention.dense"),
            Rename(_BLOCK + "attention_norm", _LAYER + "attention.LayerNorm"),
            Rename(_BLOCK + "feed_forward.up", _LAYER + "ffn"),
            Rename(_BLOCK + "feed_forward.down", _LAYER + "ffn_output"),
            Rename(_BLOCK + "feed_forward_norm", _LAYER + "full_layer_layer_norm"),
            Rename("pooler.dense", "albert.pooler"),
            *bert.mlm_rules(
                "predictions.",
                "albert.embeddings.word_embeddings.weight",
                dense="dense",
                norm="LayerNorm",
            ),
            Rename("heads.sop.dense", "sop_classifier.classifier"),
            *bert.label_rules("classification", "choice", "tokens"),
        ),
        prefix="albert.",
        old_names=bert.OLD_NAMES,
    ),
    architectures={
        **architectures(
            "Albert", bert.MLM, bert.CLASSIFICATION, bert.CHOICE, bert.TOKENS, bert.SPAN
        ),
        "AlbertForPreTraining": ArchitectureSpec((bert.MLM, _SOP)),
    },
    defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "classifier_dropout_prob": 0.1,
        "bos_token_id": 2,
        "eos_token_id": 3,
        **{
            key: bert.DEFAULTS[key]
            for key in (
                *("max_position_embeddings", "type_vocab_size", "initializer_range"),
                *("layer_norm_eps", "position_embedding_type", "pad_token_id", "pruned_heads"),
                "chunk_size_feed_forward",
            )
        },
    },
    fixed={"drop_feed_forward_output": False, "scale_relative_positions": False},
    labelled=("sop",),
    required=bert.ENCODER_ONLY,
    dropouts=dict.fromkeys(
        ("classification", "choice", "tokens", "sop"), "classifier_dropout_prob"
    ),
)
