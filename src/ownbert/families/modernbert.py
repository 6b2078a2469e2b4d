"""ModernBERT (Warner et al. 2024): rotary positions, local attention in most layers, no biases."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ownbert.checks import known, list_of, maybe, number, one_of, record
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.families.bert import ENCODER_ONLY
from ownbert.families.mapping.family import (
    LAST,
    Calls,
    Family,
    Kinds,
    activation_of,
    architectures,
    labels_of,
)
from ownbert.families.mapping.weight_map import Rename, Rule, Tie, WeightMap

_LAYER, _BLOCK = "model.layers.{i}.", "encoder.blocks.{i}."
_POOLINGS = {"cls": "first", "mean": "mean"}
_KEYS = {pooling: key for key, pooling in _POOLINGS.items()}
# Kinds of layers in Transformers 5, and the checks of its keys.
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_LAYERS = list_of(one_of(_GLOBAL, _LOCAL), least=1)
_BASE = record({"rope_theta": number(1e-9, 1e12), "rope_type": one_of("default")}, closed=True)
_ROTARY = record({_GLOBAL: maybe(_BASE), _LOCAL: maybe(_BASE)}, closed=True)
# Heads that start with the pretrained dense layer and norm of the MLM head.
_LABELLED = ("classification", "choice", "tokens", "span")


# Arguments of Transformers for batches that are already packed.
_UNPADDED = ("indices", "cu_seqlens", "max_seqlen", "batch_size", "seq_len")


def _arguments(kinds: Kinds, decoder: bool) -> Sequence[str]:
    embeds = () if kinds == ("span",) else ("inputs_embeds",)
    first = ("input_ids", "attention_mask", "sliding_window_mask", "position_ids", *embeds)
    return [*first, *labels_of(kinds), *_UNPADDED, *LAST]


def _head(kind: str) -> HeadSpec:
    if kind == "mlm":
        return HeadSpec(kind)
    pooling = "first" if kind in ("classification", "choice") else "pooler"
    return HeadSpec(kind, pooling=pooling, dense="gelu", dropout_first=False, dense_norm=True)


def _reads_head(spec: HeadSpec, values: Mapping[str, Any]) -> HeadSpec:
    """Set the biases, activation and pooling of a head."""
    if spec.kind not in ("mlm", *_LABELLED):
        return spec
    act, bias = activation_of(values, "classifier_activation"), bool(values["classifier_bias"])
    if spec.kind == "mlm":
        output = bool(values["decoder_bias"])
        return replace(spec, activation=act, dense_bias=bias, output_bias=output)
    spec = replace(spec, dense=act, dense_bias=bias)
    if spec.kind in ("tokens", "span"):
        return spec
    pooling = values["classifier_pooling"]
    known(*_POOLINGS)("classifier_pooling", pooling)
    return replace(spec, pooling=_POOLINGS[pooling])


def _writes_head(spec: HeadSpec) -> dict[str, Any]:
    """Keys of a head; heads with other differences are written under OwnBERT's own key."""
    if spec.kind == "mlm":
        values: dict[str, Any] = {
            "classifier_bias": spec.dense_bias,
            "decoder_bias": spec.output_bias,
        }
        if spec.activation is not None:
            values["classifier_activation"] = spec.activation
        return values
    if spec.kind not in _LABELLED or spec.dense is None:
        return {}
    values = {"classifier_bias": spec.dense_bias, "classifier_activation": spec.dense}
    if spec.pooling in _KEYS:
        values["classifier_pooling"] = _KEYS[spec.pooling]
    return values


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    everywhere, local = values["global_rope_theta"], values["local_rope_theta"]
    # Keys of Transformers 5.
    rotary = values.get("rope_parameters") or {}
    _ROTARY("rope_parameters", rotary)
    everywhere = (rotary.get(_GLOBAL) or {}).get("rope_theta", everywhere)
    local = (rotary.get(_LOCAL) or {}).get("rope_theta", local)
    read = {
        "output_bias": values["attention_bias"],
        "rotary_base": everywhere,
        "local_rotary_base": everywhere if local is None else local,
    }
    if (layers := values.get("layer_types")) is not None:
        read["global_attn_every_n_layers"] = _layers_per_global_one(layers)
    return read


def _layers_per_global_one(layers: Any) -> int:
    """The distance of layers with global attention; the first layer must be one of them."""
    _LAYERS("layer_types", layers)
    distance = next((i for i, kind in enumerate(layers) if i and kind == _GLOBAL), len(layers))
    if layers != [_LOCAL if i % distance else _GLOBAL for i in range(len(layers))]:
        raise InputError(
            "layer_types must have {value} in the first layer and then at equal distances", _GLOBAL
        )
    return distance


def _writes(config: EncoderConfig) -> dict[str, Any]:
    if config.local_attention is None:
        raise InputError("modernbert needs a config with local_attention=")
    return {}


def _head_rules() -> tuple[Rule, ...]:
    word = "model.embeddings.tok_embeddings.weight"
    rules: list[Rule] = [
        Rename("heads.mlm.dense", "head.dense", shared=True),
        Rename("heads.mlm.norm", "head.norm", shared=True),
        Rename("heads.mlm.decoder.bias", "decoder.bias"),
        Tie("decoder.weight", word),
    ]
    for kind in _LABELLED:
        rules += [
            Rename(f"heads.{kind}.hidden", "head.dense", shared=True),
            Rename(f"heads.{kind}.norm", "head.norm", shared=True),
            Rename(f"heads.{kind}.dense", "classifier"),
        ]
    return tuple(rules)


MODERNBERT = Family(
    model_type="modernbert",
    weight_map=WeightMap(
        rules=(
            Rename("encoder.embeddings.word.weight", "model.embeddings.tok_embeddings.weight"),
            Rename("encoder.embeddings.norm", "model.embeddings.norm"),
            Rename(_BLOCK + "attention_norm", _LAYER + "attn_norm"),
            # Also a single matrix in checkpoints, with the same order of rows.
            Rename(_BLOCK + "attention.qkv", _LAYER + "attn.Wqkv"),
            Rename(_BLOCK + "attention.output", _LAYER + "attn.Wo"),
            Rename(_BLOCK + "feed_forward_norm", _LAYER + "mlp_norm"),
            Rename(_BLOCK + "feed_forward.up", _LAYER + "mlp.Wi"),
            Rename(_BLOCK + "feed_forward.down", _LAYER + "mlp.Wo"),
            Rename("encoder.norm", "model.final_norm"),
            *_head_rules(),
        ),
        prefix="model.",
    ),
    architectures=architectures(
        "ModernBert",
        *map(_head, ("mlm", "classification", "tokens", "span", "choice")),
        pooler=False,
    ),
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "initializer_range": 0.02,
        "initializer_cutoff_factor": 2.0,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "eos_token_id": 50282,
        "bos_token_id": 50281,
        "cls_token_id": 50281,
        "sep_token_id": 50282,
        "global_rope_theta": 160000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "embedding_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "deterministic_flash_attn": False,
        "sparse_prediction": False,
        "sparse_pred_ignore_index": -100,
        "repad_logits_with_grad": False,
    },
    names={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "activation_dropout": "mlp_dropout",
        "qkv_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
        "rotary_base": "global_rope_theta",
        "local_rotary_base": "local_rope_theta",
    },
    fixed={
        "type_vocab_size": 0,
        "position_embedding_type": "rotary",
        "norm_first": True,
        "final_norm": True,
        "first_norm": False,
        "gated_feed_forward": True,
        "attention_rate_on_output": True,
        "drop_feed_forward_output": False,
    },
    reads=_reads,
    writes=_writes,
    required={
        **ENCODER_ONLY,
        "rope_scaling": (None,),
        "position_embedding_type": ("absolute",),  # in every config of Transformers, but unused
        "pruned_heads": (None, {}),
    },
    dropouts=dict.fromkeys(_LABELLED, "classifier_dropout"),
    reads_head=_reads_head,
    writes_head=_writes_head,
    calls=Calls(_arguments, unsupported=("sliding_window_mask", *_UNPADDED)),
)
