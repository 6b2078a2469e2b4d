"""MobileBERT (Sun et al. 2020): deep and narrow, with bottlenecks around each block."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import ownbert.families.bert as bert
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import Calls, Family, Kinds, encoder_arguments
from ownbert.families.mapping.weight_map import Fuse, Make, Rename, Rule, WeightMap, constant

_BLOCK, _LAYER = "encoder.blocks.{i}.", "mobilebert.encoder.layer.{i}."
_TABLES = "mobilebert.embeddings."
_NETWORKS, _LAST_NETWORK = _BLOCK + "feed_forwards.{f}.", _BLOCK + "feed_forwards.{last}."
_HEAD = "cls.predictions."


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Embeddings are projected if E is not D, or if those of three neighbours are concatenated."""
    plain = not values["trigram_input"] and values["embedding_size"] == values["hidden_size"]
    return {
        "embedding_size": None if plain else values["embedding_size"],
        "mobile": Mobile(**{f.name: values[f.name] for f in fields(Mobile)}),
    }


def _writes(config: EncoderConfig) -> dict[str, Any]:
    if config.mobile is None:
        raise InputError("mobilebert needs a config with mobile=Mobile(...)")
    return {"embedding_size": config.embedding_size or config.hidden_size, **asdict(config.mobile)}


def _is_not_widened(config: EncoderConfig) -> bool:
    return config.embedding_size is None


def _block_rules() -> tuple[Rule, ...]:
    attention = _LAYER + "attention.self."
    return (
        Fuse(_BLOCK + "attention.query_key", (attention + "query", attention + "key")),
        Rename(_BLOCK + "attention.value", attention + "value"),
        Rename(_BLOCK + "attention.output", _LAYER + "attention.output.dense"),
        Rename(_BLOCK + "attention_norm", _LAYER + "attention.output.LayerNorm"),
        Rename(_BLOCK + "narrow.dense", _LAYER + "bottleneck.input.dense"),
        Rename(_BLOCK + "narrow.norm", _LAYER + "bottleneck.input.LayerNorm"),
        Rename(_BLOCK + "narrow_attention.dense", _LAYER + "bottleneck.attention.dense"),
        Rename(_BLOCK + "narrow_attention.norm", _LAYER + "bottleneck.attention.LayerNorm"),
        Rename(_NETWORKS + "network.up", _LAYER + "ffn.{f}.intermediate.dense"),
        Rename(_NETWORKS + "network.down", _LAYER + "ffn.{f}.output.dense"),
        Rename(_NETWORKS + "norm", _LAYER + "ffn.{f}.output.LayerNorm"),
        Rename(_LAST_NETWORK + "network.up", _LAYER + "intermediate.dense"),
        Rename(_LAST_NETWORK + "network.down", _LAYER + "output.dense"),
        Rename(_LAST_NETWORK + "norm", _LAYER + "output.LayerNorm"),
        Rename(_BLOCK + "widen", _LAYER + "output.bottleneck.dense"),
        Rename(_BLOCK + "widen_norm", _LAYER + "output.bottleneck.LayerNorm"),
    )


def _arguments(kinds: Kinds, decoder: bool) -> Sequence[str]:
    names = encoder_arguments(kinds, decoder)
    if not kinds:
        names = [*names[:-3], "output_hidden_states", "output_attentions", "return_dict"]
    return names


MOBILEBERT = Family(
    model_type="mobilebert",
    weight_map=WeightMap(
        rules=(
            *bert.embedding_rules(_TABLES),
            Make(
                _TABLES + "embedding_transformation.weight",
                _is_not_widened,
                constant(0.0, lambda c: (c.hidden_size, c.hidden_size)),
            ),
            Make(
                _TABLES + "embedding_transformation.bias",
                _is_not_widened,
                constant(0.0, lambda c: (c.hidden_size,)),
            ),
            Rename("encoder.embeddings.projection", _TABLES + "embedding_transformation"),
            *_block_rules(),
            Rename("pooler.dense", "mobilebert.pooler.dense"),
            *bert.mlm_rules(
                _HEAD,
                _TABLES + "word_embeddings.weight",
                dense="transform.dense",
                norm="transform.LayerNorm",
            ),
            Make(
                _HEAD + "dense.weight",
                lambda c: c.embedding_size in (None, c.hidden_size),
                constant(0.0, lambda c: (0, c.vocab_size)),
                head="mlm",
            ),
            Rename("heads.mlm.decoder_rest.weight", _HEAD + "dense.weight"),
            Rename("heads.nsp.dense", "cls.seq_relationship"),
            *bert.label_rules("classification", "choice", "tokens"),
        ),
        prefix="mobilebert.",
        old_names=bert.OLD_NAMES,
    ),
    architectures={
        name: head for name, head in bert.classes("MobileBert").items() if not head.decoder
    },
    defaults={
        **{
            key: value
            for key, value in bert.DEFAULTS.items()
            if key not in ("position_embedding_type", "use_cache", "add_cross_attention")
        },
        "hidden_size": 512,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
        "embedding_size": 128,
        **asdict(Mobile()),
    },
    reads=_reads,
    writes=_writes,
    required={
        **bert.REQUIRED,
        "add_cross_attention": (False,),
        "position_embedding_type": ("absolute",),
    },
    dropouts=bert.DROPOUTS,
    calls=Calls(_arguments),
)
