"""Marian: the encoder-decoder Transformer of 2017 as Transformers stores it (MarianMTModel).

Post-norm, sines before cosines, embeddings times sqrt(D). OwnBERT has its own keys for structures
that the format cannot express (pre-norm, the paper's order of sines and cosines); these folders
have a ``model_type`` that Transformers rejects.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ownbert.checks import known
from ownbert.config import ACTIVATIONS
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import (
    OWN,
    POSITIONS,
    ArchitectureSpec,
    EncoderDecoder,
    require_expressed,
)
from ownbert.families.mapping.weight_map import (
    Drop,
    Fuse,
    Rename,
    Reshape,
    Rule,
    Tie,
    WeightMap,
    written_out,
)

MODEL_TYPE = "marian"
NORM_FIRST = "ownbert_norm_first"

# Keys that affect the result, with the supported values.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "normalize_before": (False, None),
    "normalize_embedding": (False, None),
    "add_final_layer_norm": (False, None),
    "add_bias_logits": (False, None),
    "static_position_embeddings": (True, None),
    "encoder_layerdrop": (0, 0.0, None),
    "decoder_layerdrop": (0, 0.0, None),
}
# Keys of config.json by field of EncoderConfig; {} is encoder or decoder.
_NAMES = {
    "num_hidden_layers": "{}_layers",
    "num_attention_heads": "{}_attention_heads",
    "intermediate_size": "{}_ffn_dim",
    "hidden_size": "d_model",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "init_std",
    "pad_token_id": "pad_token_id",
    "scale_embeddings": "scale_embedding",
}
# Defaults of MarianConfig in Transformers 4.57.6, in the order of its arguments.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "use_cache": True,
    "is_encoder_decoder": True,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "init_std": 0.02,
    "decoder_start_token_id": 58100,
    "scale_embedding": False,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "share_encoder_decoder_embeddings": True,
}


def _stack(name: str) -> tuple[Rule, ...]:
    ours, theirs = f"{name}.blocks.{{i}}.", f"model.{name}.layers.{{i}}."
    rules: list[Rule] = [
        Fuse.of(ours + "attention.qkv", theirs + "self_attn.", "q_proj", "k_proj", "v_proj"),
        Rename(ours + "attention.output", theirs + "self_attn.out_proj"),
        Rename(ours + "attention_norm", theirs + "self_attn_layer_norm"),
        Rename(ours + "feed_forward.up", theirs + "fc1"),
        Rename(ours + "feed_forward.down", theirs + "fc2"),
        Rename(ours + "feed_forward_norm", theirs + "final_layer_norm"),
        Rename(f"{name}.norm", f"model.{name}.layer_norm"),
        Drop(f"model.{name}.embed_positions.weight", "sines and cosines are computed"),
    ]
    if name == "decoder":
        cross = theirs + "encoder_attn."
        rules += [
            Rename(ours + "cross_attention.query", cross + "q_proj"),
            Fuse.of(ours + "cross_attention.key_value", cross, "k_proj", "v_proj"),
            Rename(ours + "cross_attention.output", cross + "out_proj"),
            Rename(ours + "cross_attention_norm", theirs + "encoder_attn_layer_norm"),
        ]
    return tuple(rules)


# In checkpoints, the bias of the logits is a separate tensor.
_BIAS = "heads.generator.projection.bias", "final_logits_bias"
_SHARED_TABLE = (
    Rename("encoder.embeddings.word.weight", "model.shared.weight"),
    Tie("model.encoder.embed_tokens.weight", "model.shared.weight"),
    Tie("model.decoder.embed_tokens.weight", "model.shared.weight"),
    Tie("lm_head.weight", "model.shared.weight"),
)
_SEPARATE_TABLES = (
    Rename("encoder.embeddings.word.weight", "model.encoder.embed_tokens.weight"),
    Rename("decoder.embeddings.word.weight", "model.decoder.embed_tokens.weight"),
    Rename("heads.generator.projection.weight", "lm_head.weight"),
)


def weight_map(
    encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool, head: str | None = "generator"
) -> WeightMap:
    """The weight map of a model with two stacks, expanded for all blocks; ``shared``: whether
    encoder, decoder and generator share their embeddings."""
    words = decoder.vocab_size
    return WeightMap(
        (
            *written_out(_stack("encoder"), encoder),
            *written_out(_stack("decoder"), decoder),
            *(_SHARED_TABLE if shared else _SEPARATE_TABLES),
            Reshape(*_BIAS, lambda _: (words,), lambda _: (1, words)),
        )
    )


def read_config(values: Mapping[str, Any]) -> tuple[EncoderConfig, EncoderConfig, bool]:
    """Encoder, decoder, and whether they and the generator share their embeddings."""
    for key, allowed in _REQUIRED.items():
        if values.get(key) not in allowed:
            raise InputError(
                "{key} is {values!r}; it must be {allowed!r}", key, values[key], allowed[0]
            )
    if "vocab_size" not in values:
        raise InputError("vocab_size is missing")
    act = values.get("activation_function", "gelu")
    known(*ACTIVATIONS)("activation_function", act)
    shared = bool(values.get("share_encoder_decoder_embeddings", True))
    if not shared and values.get("tie_word_embeddings", True):
        raise InputError(
            "tie_word_embeddings is true without share_encoder_decoder_embeddings; only both or "
            "neither is supported"
        )
    first = bool(values.get(NORM_FIRST, False))
    shared_fields: dict[str, Any] = {
        "type_vocab_size": 0,
        "position_embedding_type": values.get(POSITIONS) or "sinusoidal_halves",
        "norm_embeddings": False,
        "layer_norm_eps": 1e-5,
        "norm_first": first,
        "final_norm": first,
    }
    encoder, decoder = (
        EncoderConfig(
            vocab_size=values["vocab_size"],
            **{
                ours: values.get(key.format(name), _DEFAULTS[key.format(name)])
                for ours, key in _NAMES.items()
            },
            **shared_fields,
        )
        for name in ("encoder", "decoder")
    )
    words = values.get("decoder_vocab_size") or values["vocab_size"]
    decoder = replace(decoder, vocab_size=words, is_decoder=True, add_cross_attention=True)
    return encoder, decoder, shared


def write_config(encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool) -> dict[str, Any]:
    """Write the structure of a model."""
    theirs: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "vocab_size": encoder.vocab_size,
        "decoder_vocab_size": decoder.vocab_size,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": shared,
        "static_position_embeddings": True,
    }
    for name, config in (("encoder", encoder), ("decoder", decoder)):
        theirs |= {key.format(name): getattr(config, ours) for ours, key in _NAMES.items()}
    own = {}
    if encoder.position_embedding_type != "sinusoidal_halves":
        own[POSITIONS] = encoder.position_embedding_type
    if encoder.norm_first:
        own[NORM_FIRST] = True
    if own:
        theirs |= {**own, "model_type": OWN + MODEL_TYPE}
    require_expressed(MODEL_TYPE, (encoder, decoder), read_config(theirs)[:2])
    return theirs


MARIAN = EncoderDecoder(
    MODEL_TYPE,
    architectures={"MarianMTModel": ArchitectureSpec((HeadSpec("generator"),))},
    read_config=read_config,
    write_config=write_config,
    weight_map=weight_map,
    defaults=_DEFAULTS,
    names={"num_attention_heads": "encoder_attention_heads", "hidden_size": "d_model"},
)
