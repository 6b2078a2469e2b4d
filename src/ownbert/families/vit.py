"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder of image patches."""

from collections.abc import Mapping, Sequence
from typing import Any

from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import Image
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import OWN, ArchitectureSpec, Calls, Family, Kinds
from ownbert.families.mapping.weight_map import Fuse, Rename, Reshape, Rule, WeightMap

CLASSIFICATION = HeadSpec("classification", pooling="first", dropout=0.0)
# Fields of EncoderConfig that are the same for every ViT.
STRUCTURE: dict[str, Any] = {
    "vocab_size": 0,
    "type_vocab_size": 0,
    "norm_first": True,
    "final_norm": True,
    "norm_embeddings": False,
}
# Fields without a key in ViTConfig, and their defaults. All but the scale only affect training, so
# Transformers can use a folder with them.
_OWN_KEYS = {
    "qk_scale": None,
    "activation_dropout": 0.0,
    "drop_attention_output": True,
    "drop_feed_forward_output": True,
}
_BLOCK, _LAYER = "encoder.blocks.{i}.", "vit.encoder.layer.{i}."


def image_of(config: EncoderConfig) -> Image:
    assert config.image is not None
    return config.image


def image_rules(projection: str, class_token: str, positions: str) -> tuple[Rule, ...]:
    """Rules for the projection of patches, a convolution in checkpoints, and for the class token
    and positions, which have a batch dimension there."""
    ours = "encoder.embeddings."
    return (
        Reshape(
            ours + "projection.weight",
            projection + ".weight",
            lambda c: (c.hidden_size, image_of(c).patch_values),
            lambda c: (c.hidden_size, image_of(c).channels, *image_of(c).patch),
        ),
        Rename(ours + "projection.bias", projection + ".bias"),
        Reshape(
            ours + "class_token",
            class_token,
            lambda c: (c.hidden_size,),
            lambda c: (1, 1, c.hidden_size),
        ),
        Reshape(
            ours + "position.weight",
            positions,
            lambda c: (c.max_position_embeddings, c.hidden_size),
            lambda c: (1, c.max_position_embeddings, c.hidden_size),
        ),
    )


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields from a config.json, where sizes are one number for squares, or height and width."""
    pooled = values["pooler_output_size"]
    if pooled not in (None, values["hidden_size"]):
        message = "pooler_output_size is {pooled}; it must be hidden_size, {values}"
        raise InputError(message, pooled, values["hidden_size"])
    for key in ("image_size", "patch_size"):
        if not isinstance(values[key], int | list | tuple):
            raise InputError(
                "{key} is {values!r}; it must be a number, or height and width", key, values[key]
            )
    image = Image(
        size=values["image_size"], patch=values["patch_size"], channels=values["num_channels"]
    )
    own = {name: values.get(f"ownbert_{name}", default) for name, default in _OWN_KEYS.items()}
    return {"image": image, "max_position_embeddings": image.patches + 1, **own}


def _writes(config: EncoderConfig) -> dict[str, Any]:
    if config.image is None:
        raise InputError("vit needs a config with image=")
    image = config.image
    sizes = {"image_size": image.size, "patch_size": image.patch}
    values: dict[str, Any] = {
        **{key: pair[0] if pair[0] == pair[1] else list(pair) for key, pair in sizes.items()},
        "num_channels": image.channels,
        "pooler_output_size": config.hidden_size,
        "pooler_act": "tanh",
    }
    for name, default in _OWN_KEYS.items():
        if getattr(config, name) != default:
            values[f"ownbert_{name}"] = getattr(config, name)
    if config.qk_scale is not None:
        values["model_type"] = OWN + "vit"
    return values


def _arguments(kinds: Kinds, decoder: bool) -> Sequence[str]:
    further = ("head_mask", "labels") if kinds else ("bool_masked_pos", "head_mask")
    return ["pixel_values", *further, "interpolate_pos_encoding"]


VIT = Family(
    model_type="vit",
    weight_map=WeightMap(
        rules=(
            *image_rules(
                "vit.embeddings.patch_embeddings.projection",
                "vit.embeddings.cls_token",
                "vit.embeddings.position_embeddings",
            ),
            Fuse.of(
                _BLOCK + "attention.qkv", _LAYER + "attention.attention.", "query", "key", "value"
            ),
            Rename(_BLOCK + "attention.output", _LAYER + "attention.output.dense"),
            Rename(_BLOCK + "attention_norm", _LAYER + "layernorm_before"),
            Rename(_BLOCK + "feed_forward.up", _LAYER + "intermediate.dense"),
            Rename(_BLOCK + "feed_forward.down", _LAYER + "output.dense"),
            Rename(_BLOCK + "feed_forward_norm", _LAYER + "layernorm_after"),
            Rename("encoder.norm", "vit.layernorm"),
            Rename("pooler.dense", "vit.pooler.dense"),
            Rename("heads.classification.dense", "classifier"),
        ),
        prefix="vit.",
    ),
    architectures={
        "ViTModel": ArchitectureSpec(),
        "ViTForImageClassification": ArchitectureSpec((CLASSIFICATION,)),
    },
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "encoder_stride": 16,
        "pooler_output_size": None,
        "pooler_act": "tanh",
        "pruned_heads": {},
    },
    fixed=STRUCTURE,
    reads=_reads,
    writes=_writes,
    required={"pooler_act": ("tanh",), "quantization_config": (None,)},
    calls=Calls(_arguments),
)
