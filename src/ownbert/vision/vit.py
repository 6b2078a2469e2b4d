"""ViT (Dosovitskiy et al. 2021): image models, their batches, and conversion of timm's weights.

    from ownbert.vision import vit

    model = vit.make_model(image_size=28, patch_size=7, channels=1, labels=["cat", "dog"], ...)
    batch = vit.to_batch(pixel_values, model.config)
    scores = model(batch).logits["classification"]

B images, height and width in pixels, P patches per image, D hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.checkpoint import copy_weights, first_of, named_tensors
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Image
from ownbert.exceptions import InputError
from ownbert.families.mapping.weight_map import Rename, WeightMap
from ownbert.families.vit import CLASSIFICATION, STRUCTURE, image_rules
from ownbert.language.messages import join
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.vision.patches import picture_batch
from ownbert.vision.pixels import Processor as Processor

_BLOCK, _TIMM = "encoder.blocks.{i}.", "blocks.{i}."

# Names in timm's VisionTransformer; its ``qkv`` is fused in the same order as ours.
TIMM = WeightMap(
    (
        *image_rules("patch_embed.proj", "cls_token", "pos_embed"),
        Rename(_BLOCK + "attention.qkv", _TIMM + "attn.qkv"),
        Rename(_BLOCK + "attention.output", _TIMM + "attn.proj"),
        Rename(_BLOCK + "attention_norm", _TIMM + "norm1"),
        Rename(_BLOCK + "feed_forward.up", _TIMM + "mlp.fc1"),
        Rename(_BLOCK + "feed_forward.down", _TIMM + "mlp.fc2"),
        Rename(_BLOCK + "feed_forward_norm", _TIMM + "norm2"),
        Rename("encoder.norm", "norm"),
        Rename("heads.classification.dense", "head"),
    )
)


def make_model(
    *,
    image_size: int | tuple[int, int] = 224,
    patch_size: int | tuple[int, int] = 16,
    channels: int = 3,
    num_classes: int = 1000,
    hidden_size: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_ratio: float = 4.0,
    qkv_bias: bool = True,
    qk_scale: float | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    labels: Sequence[str] | None = None,
) -> Model:
    """Build a randomly initialised ViT, by default ViT-Base; LayerNorm has Google's epsilon, 1e-6.

    Args:
        image_size: image size in pixels, one number for squares or (height, width).
        patch_size: patch size in pixels, in the same form.
        channels: number of image channels.
        num_classes: number of classes; 0 for a model without a head.
        hidden_size: D.
        layers: L, number of layers.
        heads: H, number of heads.
        mlp_ratio: I / D.
        qkv_bias: whether queries, keys and values have biases.
        qk_scale: factor of the scores, by default 1 / sqrt(K).
        dropout: dropout rate after the position embeddings, after the output projection of
            attention, and in the MLP after the activation and after the second matrix (appendix
            B.1).
        attention_dropout: dropout rate of the attention weights.
        labels: class names, which replace ``num_classes``.
    """
    sizes: dict[str, Any] = {"size": image_size, "patch": patch_size}
    image = Image(**sizes, channels=channels)
    config = EncoderConfig(
        **STRUCTURE,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=int(hidden_size * mlp_ratio),
        hidden_dropout_prob=dropout,
        activation_dropout=dropout,
        attention_probs_dropout_prob=attention_dropout,
        max_position_embeddings=image.patches + 1,
        layer_norm_eps=1e-6,
        qkv_bias=qkv_bias,
        qk_scale=qk_scale,
        image=image,
    )
    names = [f"LABEL_{i}" for i in range(num_classes)] if labels is None else list(labels)
    specs = [CLASSIFICATION] if names else []
    return Model(config, specs, pooler=False, labels=names, model_type="vit")


def to_batch(pixel_values: Tensor, config: EncoderConfig) -> Batch:
    """Pack images into a batch on their device; gradients reach the pixels.

    Args:
        pixel_values: (B, channels, height, width).
        config: config of the model.

    Raises:
        InputError: the shape of the images does not match the model.
    """
    if config.image is None:
        raise InputError("this model reads text: it has no image in its config")
    return picture_batch(pixel_values, config.image)


def from_timm(
    state_dict: Mapping[str, Tensor],
    *,
    heads: int,
    image_size: int | tuple[int, int] | None = None,
    labels: Sequence[str] | None = None,
) -> Model:
    """Convert a VisionTransformer of timm to a model in evaluation mode.

    Args:
        state_dict: state dict of timm's model.
        heads: H, which the tensors do not determine.
        image_size: image size in pixels; needed if images are not square.
        labels: class names.

    Raises:
        InputError: there are tensors that ViT does not have (layer scale, registers, a second
            token).
    """
    try:
        hidden, channels, *patch = state_dict["patch_embed.proj.weight"].shape
        patches = state_dict["pos_embed"].shape[1] - 1
        inner = state_dict["blocks.0.mlp.fc1.weight"].shape[0]
    except KeyError as error:
        raise InputError(
            "no tensor {args}: not a VisionTransformer of timm", error.args[0]
        ) from None
    side = round(patches**0.5)
    with shapes_alone():
        model = make_model(
            image_size=image_size or (side * patch[0], side * patch[1]),
            patch_size=(patch[0], patch[1]),
            channels=channels,
            num_classes=len(state_dict.get("head.weight", ())),
            hidden_size=hidden,
            layers=1 + max(int(n.split(".")[1]) for n in state_dict if n.startswith("blocks.")),
            heads=heads,
            mlp_ratio=(inner + 0.5) / hidden,  # rounded down to an integer
            qkv_bias="blocks.0.attn.qkv.bias" in state_dict,
            labels=labels,
        )
    load_timm(model, state_dict)
    return model.eval()


def load_timm(model: Model, state_dict: Mapping[str, Tensor]) -> None:
    """Copy timm's tensors into a model; ``InputError`` if their names or shapes do not match."""
    problems = copy_weights(model, state_dict, TIMM).problems
    if problems:
        raise InputError(
            "the tensors do not match the model: {problems}", join(first_of(problems), "; ")
        )


def to_timm(model: Model) -> dict[str, Tensor]:
    """A model's tensors under timm's names, for ``VisionTransformer.load_state_dict``."""
    return named_tensors(model, TIMM)
