"""T5 (Raffel et al. 2020): relative positions in buckets, pre-norm with RMSNorm, no biases."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ownbert.config import ACTIVATIONS
from ownbert.config.encoder import T5_STRUCTURE, EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError, in_short
from ownbert.families.mapping.family import (
    ArchitectureSpec,
    Calls,
    EncoderDecoder,
    Family,
    Stacks,
    encoder_arguments,
    require_expressed,
)
from ownbert.families.mapping.weight_map import Fuse, Rename, Rule, Tie, WeightMap, written_out

MODEL_TYPE = "t5"
# Default maximum length of texts for folders without ``n_positions``.
_LENGTH = 512
_GATED = "gated-"
# "gelu" is the exact GELU, except in gated layers, where it is the tanh approximation.
_GATED_ACTIVATIONS = {"gelu": "gelu_new"}


def stack_rules(name: str, prefix: str = "") -> tuple[Rule, ...]:
    """Rules for one of the stacks, ``encoder`` or ``decoder``, without its embeddings."""
    ours, theirs = f"{name}.blocks.{{i}}.", f"{prefix}{name}.block.{{i}}."
    attention, cross = theirs + "layer.0.", theirs + "layer.1."
    network = theirs + ("layer.2." if name == "decoder" else "layer.1.")
    dense = network + "DenseReluDense."
    rules: list[Rule] = [
        Rename(
            f"{name}.buckets.weight",
            f"{prefix}{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        Fuse.of(ours + "attention.qkv", attention + "SelfAttention.", *"qkv"),
        Rename(ours + "attention.output", attention + "SelfAttention.o"),
        Rename(ours + "attention_norm", attention + "layer_norm"),
        Rename(ours + "feed_forward.up", dense + "wi", when=lambda c: not c.gated_feed_forward),
        Fuse(
            ours + "feed_forward.up",
            (dense + "wi_0", dense + "wi_1"),
            when=lambda c: c.gated_feed_forward,
        ),
        Rename(ours + "feed_forward.down", dense + "wo"),
        Rename(ours + "feed_forward_norm", network + "layer_norm"),
        Rename(f"{name}.norm", f"{prefix}{name}.final_layer_norm"),
    ]
    if name == "decoder":
        rules += [
            Rename(ours + "cross_attention.query", cross + "EncDecAttention.q"),
            Fuse.of(ours + "cross_attention.key_value", cross + "EncDecAttention.", *"kv"),
            Rename(ours + "cross_attention.output", cross + "EncDecAttention.o"),
            Rename(ours + "cross_attention_norm", cross + "layer_norm"),
        ]
    return tuple(rules)


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the feed-forward network, and fields with a common key in T5."""
    kind = values["feed_forward_proj"]
    act = str(kind).removeprefix(_GATED)
    if act not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        message = (
            "feed_forward_proj {kind} is not known; use one of {options}, or one of these after "
            "{gated}"
        )
        raise InputError(message, in_short(kind), known, _GATED)
    gated = str(kind).startswith(_GATED)
    # Transformers also writes these two keys, which take precedence over feed_forward_proj.
    act = values.get("dense_act_fn") or (_GATED_ACTIVATIONS.get(act, act) if gated else act)
    gated = gated if values.get("is_gated_act") is None else values["is_gated_act"]
    return {
        "hidden_act": act,
        "gated_feed_forward": gated,
        "attention_probs_dropout_prob": values["dropout_rate"],
        "max_position_embeddings": values.get("n_positions") or _LENGTH,
    }


def _writes(config: EncoderConfig) -> dict[str, Any]:
    act, gated = config.hidden_act, config.gated_feed_forward
    shown = next((n for n, real in _GATED_ACTIVATIONS.items() if gated and real == act), act)
    return {
        "feed_forward_proj": _GATED * gated + shown,
        "dense_act_fn": act,
        "is_gated_act": gated,
        "n_positions": config.max_position_embeddings,
    }


_WORDS = "transformer.shared.weight"


T5 = Family(
    model_type=MODEL_TYPE,
    weight_map=WeightMap(
        rules=(
            Rename("encoder.embeddings.word.weight", _WORDS),
            Tie("transformer.encoder.embed_tokens.weight", _WORDS, always=True),
            *stack_rules("encoder", "transformer."),
            Rename("heads.tokens.dense", "classifier"),
        ),
        prefix="transformer.",
        other_parts=("decoder.", "lm_head."),
    ),
    architectures={
        "T5EncoderModel": ArchitectureSpec(pooler=False),
        "T5ForTokenClassification": ArchitectureSpec((HeadSpec("tokens"),)),
    },
    with_decoder=("T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"),
    # Transformers' classes for these tasks have heads on the decoder. The encoder has no first
    # token for pooling.
    own_heads=(
        HeadSpec("classification", pooling="mean"),
        HeadSpec("choice", pooling="mean"),
        HeadSpec("span"),
    ),
    defaults={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "use_cache": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "classifier_dropout": 0.0,
    },
    names={
        "hidden_size": "d_model",
        "head_width": "d_kv",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "relative_buckets": "relative_attention_num_buckets",
        "relative_max_distance": "relative_attention_max_distance",
        "hidden_dropout_prob": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    fixed=T5_STRUCTURE,
    reads=_reads,
    writes=_writes,
    required={
        "quantization_config": (None,),
        "is_decoder": (False,),
        # Transformers can prune a T5, but cannot load it after saving.
        "pruned_heads": (None, {}),
    },
    dropouts={"tokens": "classifier_dropout"},
    calls=Calls(
        partial(encoder_arguments, inputs=("head_mask", "inputs_embeds")),
        normed_states=True,
    ),
)


def weight_map(
    encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool, head: str | None = "generator"
) -> WeightMap:
    """The weight map of an encoder-decoder, expanded for all blocks; ``shared``: whether the
    generator shares the word embeddings."""
    prefix = "transformer." if head == "classification" else ""
    words = f"{prefix}shared.weight"
    rules: list[Rule] = [
        Rename("encoder.embeddings.word.weight", words),
        *(Tie(f"{prefix}{name}.embed_tokens.weight", words) for name in ("encoder", "decoder")),
        *written_out(stack_rules("encoder", prefix), encoder),
        *written_out(stack_rules("decoder", prefix), decoder),
        Rename("heads.classification.hidden", "classification_head.dense"),
        Rename("heads.classification.dense", "classification_head.out_proj"),
        Rename("heads.span.dense", "qa_outputs"),
    ]
    matrix = "lm_head.weight"
    if head == "generator" and shared:
        rules.append(Tie(matrix, words))
    elif head == "generator":
        rules.append(Rename("heads.generator.projection.weight", matrix))
    return WeightMap(tuple(rules), other_parts=() if head == "generator" else ("lm_head.",))


def read_config(values: Mapping[str, Any]) -> Stacks:
    """Encoder, decoder, and whether the generator shares the word embeddings."""
    if values.get("tie_encoder_decoder"):
        raise InputError("tie_encoder_decoder is True; it must be False")
    encoder = T5.read_config(values)
    layers = values.get("num_decoder_layers")
    decoder = replace(
        encoder,
        num_hidden_layers=encoder.num_hidden_layers if layers is None else layers,
        is_decoder=True,
        add_cross_attention=True,
    )
    tied = values.get("tie_word_embeddings")
    return encoder, decoder, True if tied is None else tied


def write_config(encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool) -> dict[str, Any]:
    """Write the structure of an encoder-decoder."""
    theirs = {
        **T5.write_config(encoder),
        "num_decoder_layers": decoder.num_hidden_layers,
        "tie_word_embeddings": shared,
        "is_encoder_decoder": True,
    }
    require_expressed(MODEL_TYPE, (encoder, decoder), read_config(theirs)[:2])
    return theirs


T5_ENCODER_DECODER = EncoderDecoder(
    MODEL_TYPE,
    architectures={
        # Scaled if it shares the word embeddings, whose norms are large.
        "T5ForConditionalGeneration": ArchitectureSpec(
            (HeadSpec("generator", output_bias=False, scaled=True),)
        ),
        "T5Model": ArchitectureSpec(pooler=False),
        # On the last token, which attends to the whole text.
        "T5ForSequenceClassification": ArchitectureSpec(
            (HeadSpec("classification", pooling="last", dense="tanh"),)
        ),
        "T5ForQuestionAnswering": ArchitectureSpec((HeadSpec("span"),)),
    },
    read_config=read_config,
    write_config=write_config,
    weight_map=weight_map,
    one_table=True,
    defaults=T5.defaults,
    dropouts={"classification": "classifier_dropout"},
)
