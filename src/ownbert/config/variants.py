"""The options of single families and of images."""

from dataclasses import dataclass
from typing import ClassVar

from ownbert import limits
from ownbert.checks import check_fields, checked, count, each, known, truth
from ownbert.config import ACTIVATIONS, WIDTH_CHECK
from ownbert.exceptions import InputError, in_short

# The terms of disentangled attention (He et al. 2021, equation 4): content-to-position and
# position-to-content.
POSITION_TERMS = ("c2p", "p2c")


@dataclass(frozen=True, slots=True)
class SecondReading:
    """How the decoder of a T5 classifier reads its encoder's input, shifted right by one token."""

    start_id: int
    end_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Mobile:
    """The options of MobileBERT (Sun et al. 2020), named as in its ``config.json``."""

    intra_bottleneck_size: int = checked(128, WIDTH_CHECK)
    use_bottleneck: bool = True
    use_bottleneck_attention: bool = False
    key_query_shared_bottleneck: bool = True
    num_feedforward_networks: int = checked(4, count(1, 16))
    normalization_type: str = checked("no_norm", known("no_norm", "layer_norm"))
    trigram_input: bool = True
    classifier_activation: bool = checked(True, truth)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Disentangled:
    """The options of DeBERTa-v2 (He et al. 2021), named as in its ``config.json``.

    Args:
        relative_attention: whether the scores include relative positions.
        pos_att_type: the terms for relative positions, of ``POSITION_TERMS``. All scores are
            divided by sqrt(K (1 + n)) for n terms, even if ``relative_attention`` is false.
        share_att_key: whether relative positions use the query and key matrices of the content
            instead of separate ones.
        position_buckets: rows of the relative-position table on each side: small distances have one
            row each, larger ones share logarithmic buckets (He et al. 2023, section 3); 0: one row
            per distance.
        max_relative_positions: distance at which relative positions are clipped.
        norm_rel_ebd: whether a LayerNorm is applied to the relative-position table.
        conv_kernel_size: kernel size of the convolution parallel to the first block, an odd number;
            0: no convolution.
        conv_groups: number of groups of the convolution.
        conv_act: activation of the convolution.
        legacy: whether Transformers uses its old parameter names for the MLM head.
    """

    relative_attention: bool = checked(True, truth)
    pos_att_type: tuple[str, ...] = checked(POSITION_TERMS, each(known(*POSITION_TERMS)))
    share_att_key: bool = checked(False, truth)
    position_buckets: int = checked(0, count(0, limits.LENGTH))
    max_relative_positions: int = checked(512, count(1, limits.LENGTH))
    norm_rel_ebd: bool = checked(False, truth)
    conv_kernel_size: int = checked(0, count(0, 1_024))
    conv_groups: int = checked(1, WIDTH_CHECK)
    conv_act: str = checked("tanh", known(*ACTIVATIONS))
    legacy: bool = checked(True, truth)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "pos_att_type", tuple(dict.fromkeys(self.pos_att_type)))
        if self.position_buckets == 1:
            raise InputError("position_buckets is 1; it must be at least 2, or -1 for none")
        if self.conv_kernel_size and self.conv_kernel_size % 2 == 0:
            message = "conv_kernel_size is {conv_kernel_size}; it must be an odd number, or 0"
            raise InputError(message, self.conv_kernel_size)

    @property
    def terms(self) -> tuple[str, ...]:
        """The position terms that are added to the scores."""
        return self.pos_att_type if self.relative_attention else ()

    @property
    def span(self) -> int:
        """Rows of the relative-position table on each side."""
        return self.position_buckets or self.max_relative_positions


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """Images as sequences of patches (Dosovitskiy et al. 2021, section 3.1).

    Args:
        size: (height, width) of the image, in pixels.
        patch: (height, width) of a patch, in pixels.
        channels: 3 for RGB, 1 for greyscale.
    """

    # The module that reads patches, by name: only images need it.
    EMBEDDINGS: ClassVar[str] = "ownbert.vision.patches:PatchEmbeddings"

    size: tuple[int, int]
    patch: tuple[int, int]
    channels: int = checked(3, count(1, 4_096))

    def __post_init__(self) -> None:
        for name in ("size", "patch"):
            value = getattr(self, name)
            pair = (value, value) if isinstance(value, int) else tuple(value)
            if len(pair) != 2 or not all(type(n) is int and 0 < n <= limits.PIXELS for n in pair):
                message = (
                    "image {name} is {value}; it must be two whole numbers, at least 1 and at "
                    "most {pixels:,}"
                )
                raise InputError(message, name, in_short(value), limits.PIXELS)
            object.__setattr__(self, name, pair)
        check_fields(self)
        for pixels, patch, name in zip(self.size, self.patch, ("height", "width"), strict=True):
            if pixels % patch:
                message = "the image {name} {pixels} must be a multiple of the patch size {patch}"
                raise InputError(message, name, pixels, patch)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches (vertically, horizontally)."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def patch_values(self) -> int:
        """Values per patch: pixels times channels."""
        return self.patch[0] * self.patch[1] * self.channels
