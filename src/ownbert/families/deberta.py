"""DeBERTa-v2 and v3 (He et al. 2021, 2023): disentangled attention, in one format for both."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ownbert.checks import each, known
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import Disentangled
from ownbert.exceptions import InputError, in_short
from ownbert.families.bert import ENCODER_ONLY, MLM, SPAN, TOKENS, label_rules
from ownbert.families.mapping.family import (
    Calls,
    Family,
    activation_of,
    architectures,
    encoder_arguments,
)
from ownbert.families.mapping.weight_map import (
    Drop,
    Fuse,
    Make,
    Rename,
    Rule,
    Tie,
    WeightMap,
    constant,
)

_TABLES, _ENCODER = "deberta.embeddings.", "deberta.encoder."
_LAYER, _BLOCK = _ENCODER + "layer.{i}.", "encoder.blocks.{i}."
# Heads with the dense layer that Transformers calls a pooler.
_POOLED = ("classification", "choice")


def _head(kind: str) -> HeadSpec:
    return HeadSpec(kind, pooling="first", dense="gelu", dropout_first=False)


def _reads_head(spec: HeadSpec, values: Mapping[str, Any]) -> HeadSpec:
    """Set the activation of the pooler, and its dropout rate, which the last layer does not use."""
    if spec.kind not in _POOLED:
        return spec
    spec = replace(spec, dense=activation_of(values, "pooler_hidden_act"))
    rate = values["pooler_dropout"]
    return replace(spec, dropout_first=True, dense_dropout=rate) if rate else spec


def _writes_head(spec: HeadSpec) -> dict[str, Any]:
    if spec.kind not in _POOLED or spec.dense is None:
        return {}
    rate = spec.dropout if spec.dense_dropout is None else spec.dense_dropout
    return {
        "pooler_hidden_act": spec.dense,
        "pooler_dropout": (rate or 0) if spec.dropout_first else 0,
    }


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    hidden, heads, legacy = values["hidden_size"], values["num_attention_heads"], values["legacy"]
    if legacy and values.get("tie_word_embeddings", True) is not True:
        raise InputError("tie_word_embeddings is {value}; it must be {value2}", False, True)
    _require(values, "pooler_hidden_size", hidden)
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        _require(values, "attention_head_size", hidden // heads)
    norms = _names("norm_rel_ebd", values.get("norm_rel_ebd", "none"))
    each(known("none", "layer_norm"))("norm_rel_ebd", norms)
    longest = values["max_relative_positions"]
    if isinstance(longest, int) and longest < 1:
        longest = values["max_position_embeddings"]
    settings: dict[str, Any] = {
        "pos_att_type": tuple(
            n for n in _names("pos_att_type", values["pos_att_type"]) if n != "none"
        ),
        "max_relative_positions": longest,
        "position_buckets": _from_zero(values.get("position_buckets", -1)),
        "norm_rel_ebd": "layer_norm" in norms,
        "conv_kernel_size": _from_zero(values.get("conv_kernel_size", 0)),
        **{key: values[key] for key in ("relative_attention", "legacy")},
        **{
            key: values[key]
            for key in ("share_att_key", "conv_groups", "conv_act")
            if key in values
        },
    }
    width = values.get("embedding_size", hidden)
    biased = values["position_biased_input"]
    return {
        "position_embedding_type": "absolute" if biased else "none",
        "embedding_size": None if width == hidden else width,
        "disentangled": Disentangled(**settings),
    }


def _require(values: Mapping[str, Any], key: str, expected: Any) -> None:
    """Raise ``InputError`` unless a width has the only value that works in Transformers."""
    if values.get(key, expected) != expected:
        raise InputError(
            "{key} is {values}; it must be {expected}", key, in_short(values[key]), expected
        )


def _names(key: str, value: Any) -> tuple[str, ...]:
    """The names in a list, or in a string separated by bars, as in Microsoft's files."""
    if value is None:
        return ()
    parts = value.split("|") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InputError("{key} is {value}; it must be a list of names", key, in_short(value))
    return tuple(name for part in parts if (name := part.strip().lower()))


def _from_zero(value: Any) -> Any:
    """Replace negative numbers, which also mean none, by 0."""
    return max(0, value) if type(value) is int else value


def _writes(config: EncoderConfig) -> dict[str, Any]:
    if config.disentangled is None:
        raise InputError("deberta-v2 needs a config with disentangled=Disentangled(...)")
    own, longest = config.disentangled, config.max_position_embeddings
    everywhere = own.max_relative_positions == longest
    values: dict[str, Any] = {
        **asdict(own),
        "pos_att_type": list(own.pos_att_type) or None,
        "position_buckets": own.position_buckets or -1,
        "max_relative_positions": -1 if everywhere else own.max_relative_positions,
        "norm_rel_ebd": "layer_norm" if own.norm_rel_ebd else "none",
        "position_biased_input": config.positions.table,
    }
    if config.embedding_size is not None:
        values["embedding_size"] = config.embedding_size
    if not own.legacy:
        # Otherwise Transformers 4.57.6 uses the dense layer of the MLM head as its decoder.
        values["tie_word_embeddings"] = False
    return values


def _disentangled(config: EncoderConfig) -> Disentangled:
    return config.disentangled or Disentangled()


def _embedding_rules() -> tuple[Rule, ...]:
    positions = _TABLES + "position_embeddings.weight"
    return (
        Rename("encoder.embeddings.word.weight", _TABLES + "word_embeddings.weight"),
        Rename("encoder.embeddings.position.weight", positions, when=lambda c: c.positions.table),
        Drop(positions, "not used", when=lambda c: not c.positions.table),
        Rename("encoder.embeddings.token_type.weight", _TABLES + "token_type_embeddings.weight"),
        Rename("encoder.embeddings.projection.weight", _TABLES + "embed_proj.weight"),
        Rename("encoder.embeddings.norm", _TABLES + "LayerNorm"),
        Drop(_TABLES + "position_ids", "0, 1, 2, ...: a buffer"),
        Drop(_TABLES + "word_embeddings._weight", "of pretraining"),
        Drop(_TABLES + "position_embeddings._weight", "of pretraining"),
        Make(
            _ENCODER + "rel_embeddings.weight",
            lambda c: _disentangled(c).relative_attention and not _disentangled(c).terms,
            constant(0.0, lambda c: (2 * _disentangled(c).span, c.hidden_size)),
        ),
        Rename("encoder.distances.table.weight", _ENCODER + "rel_embeddings.weight"),
        *(
            Make(
                f"{_ENCODER}LayerNorm.{name}",
                lambda c: _disentangled(c).norm_rel_ebd and not _disentangled(c).terms,
                constant(value, lambda c: (c.hidden_size,)),
            )
            for name, value in (("weight", 1.0), ("bias", 0.0))
        ),
        Rename("encoder.distances.norm", _ENCODER + "LayerNorm"),
        Rename("encoder.convolution.conv", _ENCODER + "conv.conv"),
        Rename("encoder.convolution.norm", _ENCODER + "conv.LayerNorm"),
    )


def _block_rules() -> tuple[Rule, ...]:
    attention = _LAYER + "attention.self."
    return (
        Fuse.of(_BLOCK + "attention.qkv", attention, "query_proj", "key_proj", "value_proj"),
        Rename(_BLOCK + "attention.bias.key", attention + "pos_key_proj"),
        Rename(_BLOCK + "attention.bias.query", attention + "pos_query_proj"),
        Rename(_BLOCK + "attention.output", _LAYER + "attention.output.dense"),
        Rename(_BLOCK + "attention_norm", _LAYER + "attention.output.LayerNorm"),
        Rename(_BLOCK + "feed_forward.up", _LAYER + "intermediate.dense"),
        Rename(_BLOCK + "feed_forward.down", _LAYER + "output.dense"),
        Rename(_BLOCK + "feed_forward_norm", _LAYER + "output.LayerNorm"),
    )


def _mlm_rules() -> tuple[Rule, ...]:
    """Rules for both names of the MLM head; the config determines which one is written."""
    old, new = "cls.predictions.", "lm_predictions.lm_head."
    word = _TABLES + "word_embeddings.weight"
    parts = (
        ("dense", old + "transform.dense", new + "dense"),
        ("norm", old + "transform.LayerNorm", new + "LayerNorm"),
        ("decoder.bias", old + "bias", new + "bias"),
    )
    rules: list[Rule] = []
    for ours, legacy, later in parts:
        rules += [
            Rename(f"heads.mlm.{ours}", legacy, when=lambda c: _disentangled(c).legacy),
            Rename(f"heads.mlm.{ours}", later),
            Rename(f"heads.mlm.{ours}", legacy, when=lambda c: not _disentangled(c).legacy),
        ]
    return (*rules, Tie(old + "decoder.bias", old + "bias"), Tie(old + "decoder.weight", word))


DEBERTA = Family(
    model_type="deberta-v2",
    weight_map=WeightMap(
        rules=(
            *_embedding_rules(),
            *_block_rules(),
            *_mlm_rules(),
            *(Rename(f"heads.{kind}.hidden", "pooler.dense") for kind in _POOLED),
            *label_rules("classification", "choice", "tokens"),
            *(
                # The discriminator, which no class of Transformers has.
                Drop("mask_predictions." + name, "of pretraining")
                for name in ("dense", "LayerNorm", "classifier")
            ),
        ),
        prefix="deberta.",
    ),
    architectures=architectures(
        "DebertaV2", MLM, _head("classification"), TOKENS, SPAN, _head("choice"), pooler=False
    ),
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "pad_token_id": 0,
        "position_biased_input": True,
        "pos_att_type": None,
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
        "legacy": True,
    },
    reads=_reads,
    writes=_writes,
    required={
        **{key: values for key, values in ENCODER_ONLY.items() if key != "tie_word_embeddings"},
        "position_embedding_type": ("absolute",),  # in every config of Transformers, but unused
        "pruned_heads": (None, {}),
    },
    dropouts=dict.fromkeys(_POOLED, "cls_dropout"),
    reads_head=_reads_head,
    writes_head=_writes_head,
    calls=Calls(
        partial(encoder_arguments, inputs=("token_type_ids", "position_ids", "inputs_embeds")),
        loss_by_shape=True,
    ),
)
