"""BERT (Devlin et al. 2019), as Transformers stores it."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.families.mapping.family import (
    CROSSING,
    ArchitectureSpec,
    Calls,
    Family,
    architectures,
    encoder_arguments,
)
from ownbert.families.mapping.weight_map import Drop, Fuse, Make, Rename, Rule, Tie, WeightMap

if TYPE_CHECKING:
    from torch import Tensor

DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "use_cache": True,
    "classifier_dropout": None,
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "chunk_size_feed_forward": 0,
}

# For all families: keys that affect the result, with the supported values.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "tie_word_embeddings": (True,),
    "quantization_config": (None,),
}

# Keys of families without a decoder that affect the result, with the supported values.
ENCODER_ONLY = {**REQUIRED, "is_decoder": (False,), "add_cross_attention": (False,)}

DROPOUTS: dict[str, str] = dict.fromkeys(
    ("classification", "tokens", "choice"), "classifier_dropout"
)

# Names in the converted checkpoints of Google, such as bert-base-uncased.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

MLM, NSP, CHOICE = HeadSpec("mlm"), HeadSpec("nsp"), HeadSpec("choice")
CLASSIFICATION, TOKENS, SPAN = HeadSpec("classification"), HeadSpec("tokens"), HeadSpec("span")


def has_unused_table(config: EncoderConfig) -> bool:
    """Whether Transformers has a position table that the kind of positions does not use."""
    return config.positions.unused_table


def position_table(config: EncoderConfig) -> "Tensor":
    """The position table that only Transformers has: sinusoids, or unused zeros."""
    import torch

    from ownbert.nn.positions import sinusoids

    size = config.hidden_size if config.mobile else config.embedding_size or config.hidden_size
    if config.positions.waves is None:
        return torch.zeros(config.max_position_embeddings, size)
    positions = torch.arange(config.max_position_embeddings) - config.position_offset
    return sinusoids(positions, size)


def encoder_rules(prefix: str) -> tuple[Rule, ...]:
    """Rules for embeddings, blocks and pooler, with the names in BERT and most similar families."""
    layer, block = prefix + "encoder.layer.{i}.", "encoder.blocks.{i}."
    return (
        *embedding_rules(prefix + "embeddings."),
        Fuse.of(block + "attention.qkv", layer + "attention.self.", "query", "key", "value"),
        Rename(
            block + "attention.bias.distance.weight",
            layer + "attention.self.distance_embedding.weight",
        ),
        Rename(block + "attention.output", layer + "attention.output.dense"),
        Rename(block + "attention_norm", layer + "attention.output.LayerNorm"),
        Rename(block + "cross_attention.query", layer + "crossattention.self.query"),
        Fuse.of(
            block + "cross_attention.key_value", layer + "crossattention.self.", "key", "value"
        ),
        Rename(block + "cross_attention.output", layer + "crossattention.output.dense"),
        Rename(block + "cross_attention_norm", layer + "crossattention.output.LayerNorm"),
        Rename(block + "feed_forward.up", layer + "intermediate.dense"),
        Rename(block + "feed_forward.down", layer + "output.dense"),
        Rename(block + "feed_forward_norm", layer + "output.LayerNorm"),
        Rename("pooler.dense", prefix + "pooler.dense"),
    )


def embedding_rules(theirs: str) -> tuple[Rule, ...]:
    """Rules for the embedding tables under ``theirs``, their LayerNorm, and old buffers."""
    return (
        Rename("encoder.embeddings.word.weight", theirs + "word_embeddings.weight"),
        Make(theirs + "position_embeddings.weight", has_unused_table, position_table),
        Rename("encoder.embeddings.position.weight", theirs + "position_embeddings.weight"),
        Rename("encoder.embeddings.token_type.weight", theirs + "token_type_embeddings.weight"),
        Rename("encoder.embeddings.norm", theirs + "LayerNorm"),
        Drop(theirs + "position_ids", "0, 1, 2, ...: a buffer"),
        Drop(theirs + "token_type_ids", "zeros: a buffer"),
    )


def mlm_rules(theirs: str, word: str, *, dense: str, norm: str) -> tuple[Rule, ...]:
    """Rules for the MLM head under ``theirs``, which shares the word embeddings ``word``."""
    return (
        Rename("heads.mlm.dense", theirs + dense),
        Rename("heads.mlm.norm", theirs + norm),
        Rename("heads.mlm.decoder.bias", theirs + "bias"),
        Tie(theirs + "decoder.bias", theirs + "bias"),
        Tie(theirs + "decoder.weight", word),
    )


def label_rules(*kinds: str) -> tuple[Rule, ...]:
    """Rules for the output layers of heads named ``classifier`` in BERT, and of the span head."""
    return (
        *(Rename(f"heads.{kind}.dense", "classifier") for kind in kinds),
        Rename("heads.span.dense", "qa_outputs"),
    )


def classes(name: str) -> Mapping[str, ArchitectureSpec]:
    """The architectures of BERT, or of a family that differs only in the encoder."""
    causal = "LMHeadModel" if name == "Bert" else "ForCausalLM"
    return {
        **architectures(name, MLM, NSP, CLASSIFICATION, CHOICE, TOKENS, SPAN),
        f"{name}ForPreTraining": ArchitectureSpec((MLM, NSP)),
        name + causal: ArchitectureSpec((MLM,), decoder=True),
    }


def all_rules(prefix: str) -> tuple[Rule, ...]:
    """Rules for the encoder and all heads, with BERT's names."""
    word = prefix + "embeddings.word_embeddings.weight"
    return (
        *encoder_rules(prefix),
        *mlm_rules("cls.predictions.", word, dense="transform.dense", norm="transform.LayerNorm"),
        Rename("heads.nsp.dense", "cls.seq_relationship"),
        *label_rules("classification", "choice", "tokens"),
    )


# Matrices for the distillation of TinyBERT: a single one, or one for each of at most 7 states.
_DISTILLATION = tuple(
    Drop(f"{name}.{leaf}", "of pretraining")
    for name in ("fit_dense", *(f"fit_denses.{number}" for number in range(7)))
    for leaf in ("weight", "bias")
)


BERT = Family(
    model_type="bert",
    weight_map=WeightMap(
        rules=(*all_rules("bert."), *_DISTILLATION), prefix="bert.", old_names=OLD_NAMES
    ),
    architectures=classes("Bert"),
    defaults=DEFAULTS,
    required=REQUIRED,
    calls=Calls(partial(encoder_arguments, crossing=CROSSING)),
    dropouts=DROPOUTS,
)
