"""The size and structure of a network, independent of training and labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ownbert import limits
from ownbert.checks import (
    Check,
    Interval,
    between,
    count,
    each,
    known,
    list_of,
    maybe,
    number,
    number_in,
    one_of,
    positive,
    record,
    truth,
    up_to,
    whole,
)
from ownbert.errors import InputError, in_short

# "gelu" is the exact GELU, with erf, as in Transformers; Google's approximation is "gelu_new".
ACTIVATIONS = (
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_python",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "relu6",
    "leaky_relu",
    "silu",
    "swish",
    "mish",
    "tanh",
    "sigmoid",
    "linear",
)

# absolute: a learnt table; sinusoidal: Vaswani et al. 2017, section 3.5, sines and cosines
# interleaved; sinusoidal_halves: all sines before all cosines (Marian); relative_key: Shaw et al.
# 2018; relative_key_query: Huang et al. 2020, method 4; rotary: Su et al. 2021; alibi: Press et al.
# 2022, symmetric in bidirectional attention; relative_buckets: Raffel et al. 2020, section 2.1;
# transformer_xl: sinusoids of relative positions (Dai et al. 2019) and a same-segment term (Yang et
# al. 2019); none: no position embeddings, and no position in the scores unless attention is
# disentangled (DeBERTa-v3).
POSITIONS = (
    "absolute",
    "sinusoidal",
    "sinusoidal_halves",
    "relative_key",
    "relative_key_query",
    "rotary",
    "alibi",
    "relative_buckets",
    "transformer_xl",
    "none",
)
NORMS = ("layer_norm", "rms_norm")
# Segment ids of ``transformer_xl``: XLNet's two texts, <cls> and padding, with room for the ids of
# other models. Eight channels keep the products aligned.
SEGMENTS = 8

# How the gated layers are combined (nn/variants/sesame.py): the last layer only, or their sum.
LAYER_GATES = ("last", "sum")

# The terms of disentangled attention (He et al. 2021, equation 4): content-to-position and
# position-to-content.
POSITION_TERMS = ("c2p", "p2c")

# How token vectors are pooled to one vector without BERT's pooler (nn/pooling.py).
POOLINGS = ("first", "last", "mean", "max", "attention", "gru", "lstm")
HEADS = (
    *("mlm", "nsp", "sop", "classification", "choice", "tokens", "span", "discriminator"),
    *("embedding", "generator", "beam_span"),
)

# (layers, hidden size, heads) of the models that google-research/bert published (March 2020).
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


# Number of classes; the largest published label sets are about this large.
MOST_LABELS = 1_000_000
# Above it the lowest frequencies are zero in float32; models for 8,192 tokens use 160,000.
_LARGEST_BASE = 1e15
# With a kernel of three tokens the weights are uniform long before this.
WIDEST_BLUR = 100
WIDTH_CHECK = count(1, limits.WIDTH)
_LAYERS = count(1, limits.LAYERS)
_RATE = number_in(between(0, 1, "[)"))
_BASE = number_in(Interval(1, _LARGEST_BASE, "(]", f"more than 1 and at most {_LARGEST_BASE:,}"))


def checked(default: Any, check: Check) -> Any:
    """A field with its check, so that a damaged or hostile file cannot exhaust the memory."""
    return field(default=default, metadata={"check": check})


def check_fields(config: Any) -> None:
    """Raise ``InputError`` for the first field whose value fails its check."""
    for one in fields(config):
        if "check" in one.metadata:
            one.metadata["check"](one.name, getattr(config, one.name))


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A head, with the options in which families differ.

    Args:
        kind: one of ``HEADS``.
        pooling: how token vectors are pooled: ``pooler`` or one of ``POOLINGS``.
        dense: activation of a dense layer (D x D) before the output layer; None: no such layer.
        dropout_first: whether dropout is also applied before the dense layer.
        activation: activation of the mlm and discriminator heads, by default the encoder's.
        dropout: dropout rate of the head, by default ``hidden_dropout_prob``.
        output: output width, by default the number of labels.
        segments: how the segment vectors of a document are pooled, one of ``POOLINGS``; None: each
            sequence is classified separately.
        crf: whether tag sequences are decoded with a CRF.
        features: sizes of the embedding tables of word features, one for each column of tags
            (nn/variants/feature_embeddings.py); None: no such columns.
        feature_size: width of the embedding of a word feature.
        ngrams: rows of the table of hashed n-gram embeddings, whose sum is concatenated to the
            pooled vector; None: no such table.
        dense_bias: whether the dense layer has a bias.
        output_bias: whether the decoder of an mlm head, or the matrix of a generator, has a bias.
        dense_norm: whether a norm follows the dense layer (always true of an mlm head).
        transform: whether an mlm head has its dense layer and norm (not in XLNet).
        tied: whether a generator shares the word embeddings when encoder and decoder share them.
        scaled: whether a generator divides hidden states by sqrt(D) (T5).
        dense_dropout: dropout rate before the dense layer, by default ``dropout``.
    """

    kind: str = field(metadata={"check": one_of(*HEADS)})
    pooling: str = checked("pooler", one_of("pooler", *POOLINGS))
    dense: str | None = checked(None, maybe(one_of(*ACTIVATIONS)))
    dropout_first: bool = checked(True, truth)
    activation: str | None = checked(None, maybe(one_of(*ACTIVATIONS)))
    dropout: float | None = checked(None, maybe(number(0, 1)))
    output: int | None = checked(None, maybe(whole(1, MOST_LABELS)))
    segments: str | None = checked(None, maybe(one_of(*POOLINGS)))
    crf: bool = checked(False, truth)
    ngrams: int | None = checked(None, maybe(whole(1, 1 << 23)))
    dense_bias: bool = checked(True, truth)
    dense_norm: bool = checked(False, truth)
    output_bias: bool = checked(True, truth)
    transform: bool = checked(True, truth)
    tied: bool = checked(True, truth)
    scaled: bool = checked(False, truth)
    dense_dropout: float | None = checked(None, maybe(number(0, 1)))
    features: tuple[int, ...] | None = checked(
        None, maybe(list_of(whole(1, MOST_LABELS), most=limits.FEATURES))
    )
    feature_size: int = checked(10, whole(1, limits.WIDTH))

    def __post_init__(self) -> None:
        if self.features is not None:  # JSON has no tuples
            object.__setattr__(self, "features", tuple(self.features))

    @property
    def needs_pooler(self) -> bool:
        return self.kind in ("nsp", "sop", "classification", "choice") and self.pooling == "pooler"


# The schema of a head in config.json.
HEAD_KEYS = record(
    {one.name: one.metadata["check"] for one in fields(HeadSpec)}, required=("kind",), closed=True
)


@dataclass(frozen=True, slots=True)
class SecondReading:
    """How the decoder of a T5 classifier reads its encoder's input, shifted right by one token.

    Args:
        start_id: id of the decoder's first token.
        end_id: id of the token at the end of each text.
    """

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

    Raises:
        InputError: values are invalid.
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
            raise InputError(
                f"conv_kernel_size is {self.conv_kernel_size}; it must be an odd number, or 0"
            )

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

    size: tuple[int, int]
    patch: tuple[int, int]
    channels: int = checked(3, count(1, 4_096))

    def __post_init__(self) -> None:
        for name in ("size", "patch"):
            value = getattr(self, name)
            pair = (value, value) if isinstance(value, int) else tuple(value)
            if len(pair) != 2 or not all(type(n) is int and 0 < n <= limits.PIXELS for n in pair):
                raise InputError(
                    f"image {name} is {in_short(value)}; it must be two whole numbers, at least 1 "
                    f"and at most {limits.PIXELS:,}"
                )
            object.__setattr__(self, name, pair)
        check_fields(self)
        for pixels, patch, name in zip(self.size, self.patch, ("height", "width"), strict=True):
            if pixels % patch:
                raise InputError(
                    f"the image {name} {pixels} must be a multiple of the patch size {patch}"
                )

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


# The options that turn an encoder into an XLNet (Yang et al. 2019).
XLNET_STRUCTURE: Mapping[str, Any] = {
    "type_vocab_size": 0,
    "position_embedding_type": "transformer_xl",
    "norm_embeddings": False,
    "qkv_bias": False,
    "output_bias": False,
    "drop_output": True,
    "mask_vector": True,
}

# The options that turn an encoder into a T5: pre-norm with RMSNorm, no biases, relative buckets.
T5_STRUCTURE: Mapping[str, Any] = {
    "type_vocab_size": 0,
    "position_embedding_type": "relative_buckets",
    "norm_embeddings": False,
    "norm_first": True,
    "final_norm": True,
    "norm_type": "rms_norm",
    "norm_bias": False,
    "qkv_bias": False,
    "output_bias": False,
    "feed_forward_bias": False,
    "qk_scale": 1.0,
    "drop_everywhere": True,
}

# Fields that only text models use, with their values in an image model.
_TEXT_ONLY = {
    "vocab_size": 0,
    "pad_token_id": 0,
    "type_vocab_size": 0,
    "task_type_vocab_size": 0,
    "embedding_size": None,
    "mobile": None,
    "disentangled": None,
    "position_embedding_type": "absolute",
    "position_offset": 0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """Structure of an encoder or decoder, with the keys of BERT's ``config.json``.

    Args:
        embedding_size: E, by default D (smaller in ALBERT and ELECTRA).
        position_offset: row of the position table for the first token (RoBERTa).
        num_hidden_groups: number of groups of layers that share weights (ALBERT); None: no sharing.
        inner_group_num: number of blocks in a group.
        pruned_heads: indices of the pruned heads of each block.
        drop_attention_output: whether dropout is applied to the output of attention.
        drop_feed_forward_output: whether dropout is applied to the output of the feed-forward
            network.
        scale_relative_positions: whether relative scores are divided by sqrt(K) as well.
        norm_first: whether sublayers normalise their input (pre-norm, Xiong et al. 2020) instead of
            their output (post-norm).
        final_norm: whether a LayerNorm follows the last block.
        norm_embeddings: whether a LayerNorm precedes the first block.
        scale_embeddings: whether embeddings are multiplied by sqrt(D) (Vaswani et al. 2017, section
            3.4).
        first_norm: with ``norm_first``, whether the attention of the first block has a norm as
            well; false if the embeddings are normalised already (ModernBERT).
        norm_type: ``layer_norm``, or ``rms_norm``, without mean subtraction and bias (Zhang and
            Sennrich 2019).
        norm_bias: whether norms have biases.
        qkv_bias: whether queries, keys and values have biases.
        output_bias: whether the output projection of attention has a bias.
        head_width: K, by default D / H (different in T5).
        qk_scale: factor of the scores, by default 1 / sqrt(K).
        local_attention: window size in layers of local attention: tokens attend to those at most
            half of it away; None: all layers have global attention.
        global_attn_every_n_layers: with ``local_attention``, layers 0, n, 2 n, ... have global
            attention (Warner et al. 2024, section 2.1.2).
        rotary_base: base of the rotary frequencies.
        local_rotary_base: base in layers of local attention; None: ``rotary_base``.
        relative_buckets: number of relative-position buckets, each with one bias per head.
        relative_max_distance: distance from which on all positions share the last bucket.
        gated_feed_forward: whether the feed-forward network is gated (GLU, Shazeer 2020).
        feed_forward_bias: whether the feed-forward matrices have biases.
        activation_dropout: dropout rate inside the feed-forward network.
        attention_rate_on_output: whether dropout after attention has the rate of the attention
            weights.
        layer_gate: squeeze and excitation over layers (SesameBERT, Su and Cheng 2019), one of
            ``LAYER_GATES``; None: none.
        attention_blur: sigma, in tokens, of a Gaussian blur of the attention weights over each
            token and its two neighbours (SesameBERT); None: no blur.
        drop_output: whether dropout is applied to the last hidden states.
        longest_distance: with ``transformer_xl``, distance at which relative positions are clipped;
            None: no clipping.
        mask_vector: whether there is a learnt initial vector of the query stream for tokens to
            predict (Yang et al. 2019, section 2.3).
        drop_everywhere: whether dropout is also applied inside the feed-forward network and after
            the last norm (T5).
        disentangled: options of DeBERTa's disentangled attention; None: none.
        image: options of image models (ViT); None: a text model.

    Raises:
        InputError: values are invalid or inconsistent.
    """

    vocab_size: int
    hidden_size: int = checked(768, WIDTH_CHECK)
    num_hidden_layers: int = checked(12, _LAYERS)
    num_attention_heads: int = checked(12, WIDTH_CHECK)
    intermediate_size: int = checked(3072, count(1, 4 * limits.WIDTH))
    hidden_act: str = checked("gelu", known(*ACTIVATIONS))
    hidden_dropout_prob: float = checked(0.1, _RATE)
    attention_probs_dropout_prob: float = checked(0.1, _RATE)
    max_position_embeddings: int = checked(512, count(1, limits.LENGTH))
    type_vocab_size: int = checked(2, count(0, limits.WIDTH))
    initializer_range: float = checked(0.02, number_in(positive))
    layer_norm_eps: float = checked(1e-12, number_in(positive))
    pad_token_id: int = 0
    position_embedding_type: str = checked("absolute", known(*POSITIONS))
    position_offset: int = checked(0, count(0, limits.LENGTH))
    embedding_size: int | None = checked(None, maybe(WIDTH_CHECK))
    task_type_vocab_size: int = checked(0, count(0, limits.WIDTH))
    is_decoder: bool = False
    add_cross_attention: bool = False
    pruned_heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    chunk_size_feed_forward: int = checked(0, count(0, limits.COUNT))
    num_hidden_groups: int | None = checked(None, maybe(_LAYERS))
    inner_group_num: int = checked(1, _LAYERS)
    drop_attention_output: bool = True
    drop_feed_forward_output: bool = True
    scale_relative_positions: bool = True
    mobile: Mobile | None = None
    norm_first: bool = False
    final_norm: bool = False
    norm_embeddings: bool = True
    scale_embeddings: bool = False
    first_norm: bool = True
    norm_type: str = checked("layer_norm", known(*NORMS))
    norm_bias: bool = True
    qkv_bias: bool = True
    output_bias: bool = True
    head_width: int | None = checked(None, maybe(count(0, limits.WIDTH)))
    qk_scale: float | None = checked(None, maybe(number_in(positive)))
    local_attention: int | None = checked(None, maybe(count(0, limits.LENGTH)))
    global_attn_every_n_layers: int = checked(1, _LAYERS)
    rotary_base: float = checked(10_000.0, _BASE)
    local_rotary_base: float | None = checked(None, maybe(_BASE))
    relative_buckets: int = checked(32, count(0, limits.LENGTH))
    relative_max_distance: int = checked(128, count(0, limits.LENGTH))
    gated_feed_forward: bool = False
    feed_forward_bias: bool = True
    activation_dropout: float = checked(0.0, _RATE)
    attention_rate_on_output: bool = False
    layer_gate: str | None = checked(None, maybe(known(*LAYER_GATES)))
    attention_blur: float | None = checked(None, maybe(number_in(up_to(WIDEST_BLUR))))
    drop_output: bool = False
    longest_distance: int | None = checked(None, maybe(count(1, limits.LENGTH)))
    mask_vector: bool = False
    drop_everywhere: bool = False
    disentangled: Disentangled | None = None
    image: Image | None = None

    def __post_init__(self) -> None:
        if self.image is None:
            count(1, limits.VOCABULARY)("vocab_size", self.vocab_size)
            if self.pad_token_id not in range(self.vocab_size):
                raise InputError(
                    f"pad_token_id {self.pad_token_id} is outside vocab_size {self.vocab_size}"
                )
        else:
            self._check_image(self.image)
        check_fields(self)
        if self.head_width is None and self.attention_size % self.num_attention_heads:
            name = (
                "hidden_size"
                if self.attention_size == self.hidden_size
                else "intra_bottleneck_size"
            )
            raise InputError(
                f"{name} {self.attention_size} must be a multiple of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        if self.num_attention_heads * self.head_size > limits.WIDTH:
            raise InputError(
                f"num_attention_heads {self.num_attention_heads} with {self.head_size} channels "
                f"each exceed {limits.WIDTH:,} in total"
            )
        if self.relative_buckets < 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise InputError(
                f"relative_buckets is {self.relative_buckets} and relative_max_distance "
                f"{self.relative_max_distance}; relative_buckets must be at least 4, and half of "
                "it less than relative_max_distance"
            )
        if self.position_embedding_type == "rotary" and self.head_size % 2:
            raise InputError(
                "position_embedding_type 'rotary' needs an even head size; hidden_size "
                f"{self.hidden_size} / num_attention_heads {self.num_attention_heads} is odd"
            )
        if self.position_offset >= self.max_position_embeddings:
            raise InputError(
                f"position_offset {self.position_offset} leaves no positions of "
                f"max_position_embeddings {self.max_position_embeddings}"
            )
        if self.local_attention is not None and self.num_hidden_groups is not None:
            raise InputError(
                "local_attention cannot be combined with num_hidden_groups: shared blocks are of "
                "one kind"
            )
        if self.mobile is not None:
            self._check_mobile()
        if self.disentangled is not None:
            self._check_disentangled(self.disentangled)
        if self.add_cross_attention and not self.is_decoder:
            raise InputError("add_cross_attention needs is_decoder true")
        if self.num_hidden_groups and self.num_hidden_groups > self.num_hidden_layers:
            raise InputError(
                f"num_hidden_groups {self.num_hidden_groups} is more than num_hidden_layers "
                f"{self.num_hidden_layers}"
            )
        if self.num_blocks > limits.LAYERS:
            raise InputError(
                f"num_hidden_groups {self.num_hidden_groups} times inner_group_num "
                f"{self.inner_group_num} is more than {limits.LAYERS:,} blocks"
            )
        self._check_sesame()
        object.__setattr__(self, "pruned_heads", self._checked_heads())

    def _check_mobile(self) -> None:
        if self.norm_first or self.activation_dropout:
            raise InputError("mobile cannot be combined with norm_first or activation_dropout")
        if self.gated_feed_forward or not self.norm_bias:
            raise InputError("mobile cannot be combined with gated_feed_forward or norm_bias false")
        if self.position_embedding_type == "transformer_xl":
            raise InputError(
                "mobile cannot be combined with position_embedding_type 'transformer_xl'"
            )
        if self.head_width or self.norm_type != "layer_norm":
            raise InputError("mobile cannot be combined with head_width or norm_type")

    def _check_sesame(self) -> None:
        """Check ``layer_gate`` and ``attention_blur``."""
        if self.layer_gate is not None and self.final_norm:
            raise InputError(
                "layer_gate cannot be combined with final_norm: the norm after the last layer "
                "would undo its gate"
            )
        if self.attention_blur is not None and self.image is not None:
            raise InputError(
                "attention_blur is for texts: consecutive patches are not always neighbours"
            )
        for name in ("layer_gate", "attention_blur"):
            if getattr(self, name) is not None and self.mask_vector:
                raise InputError(
                    f"{name} cannot be combined with mask_vector: the rows of a second stream "
                    "are not tokens of the text"
                )
            if getattr(self, name) is not None and self.is_decoder:
                raise InputError(
                    f"{name} cannot be combined with is_decoder: a token would see later ones"
                )

    def _check_disentangled(self, disentangled: Disentangled) -> None:
        others = ("mobile", "num_hidden_groups", "pruned_heads", "is_decoder")
        for name in (name for name in others if getattr(self, name)):
            raise InputError(f"disentangled attention cannot be combined with {name}")
        if self.position_embedding_type not in ("absolute", "none"):
            raise InputError(
                "disentangled attention requires position_embedding_type absolute or none, not "
                f"{self.position_embedding_type}"
            )
        if disentangled.conv_kernel_size and self.hidden_size % disentangled.conv_groups:
            raise InputError(
                f"hidden_size {self.hidden_size} must be a multiple of conv_groups "
                f"{disentangled.conv_groups}"
            )

    def _check_image(self, image: Image) -> None:
        for name, value in _TEXT_ONLY.items():
            if getattr(self, name) != value:
                raise InputError(
                    f"image cannot be combined with {name} {getattr(self, name)}: an image model "
                    "reads no text"
                )
        if self.max_position_embeddings != image.patches + 1:
            raise InputError(
                f"max_position_embeddings is {self.max_position_embeddings}; an image of "
                f"{image.patches} patches and the class token need {image.patches + 1}"
            )

    def _checked_heads(self) -> dict[int, tuple[int, ...]]:
        """``pruned_heads`` with integer keys (strings in JSON), sorted, with layers counted from
        0."""
        checked: dict[int, tuple[int, ...]] = {}
        try:
            given = {int(i): [int(h) for h in heads] for i, heads in self.pruned_heads.items()}
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"pruned_heads is {in_short(self.pruned_heads)}; it must map layers to the "
                "numbers of heads"
            ) from None
        for named, heads in given.items():
            block = named + self.num_blocks if named < 0 else named  # -1 is the last block
            if block not in range(self.num_blocks):
                raise InputError(
                    f"pruned_heads names layer {named}; the layers are 0..{self.num_blocks - 1}"
                )
            gone = tuple(sorted({*checked.get(block, ()), *heads}))
            unknown = [head for head in gone if head not in range(self.num_attention_heads)]
            if unknown:
                last = self.num_attention_heads - 1
                raise InputError(f"layer {block} has no head {unknown[0]}; the heads are 0..{last}")
            if len(gone) == self.num_attention_heads:
                raise InputError(f"layer {block} would lose all of its heads; keep at least one")
            if gone:
                checked[block] = gone
        return dict(sorted(checked.items()))

    @property
    def attention_size(self) -> int:
        """Output width of attention and feed-forward networks: the bottleneck's width, or D."""
        if self.mobile is not None and self.mobile.use_bottleneck:
            return self.mobile.intra_bottleneck_size
        return self.hidden_size

    @property
    def head_size(self) -> int:
        return self.head_width or self.attention_size // self.num_attention_heads

    @property
    def score_scale(self) -> float | None:
        """Factor of the scores, None for 1 / sqrt(K); 1 / sqrt(K (1 + n)) with n position terms.

        Source: He et al. 2021, equation 4.
        """
        terms = 0 if self.disentangled is None else len(self.disentangled.pos_att_type)
        return (self.head_size * (1 + terms)) ** -0.5 if terms else self.qk_scale

    @property
    def num_blocks(self) -> int:
        """Number of blocks with separate weights."""
        if self.num_hidden_groups is None:
            return self.num_hidden_layers
        return self.num_hidden_groups * self.inner_group_num

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length in tokens; None without a position table."""
        if self.position_embedding_type != "absolute":
            return None
        return self.longest

    @property
    def longest(self) -> int:
        """Sequence length in tokens that the model was designed for, even if it accepts more."""
        return self.max_position_embeddings - self.position_offset

    def window_of(self, block: int) -> int | None:
        """Distance in tokens up to which a block attends; None: the whole sequence."""
        if self.local_attention is None or block % self.global_attn_every_n_layers == 0:
            return None
        return self.local_attention // 2

    def rotary_base_of(self, block: int) -> float:
        """Base of the rotary frequencies of a block."""
        if self.local_rotary_base is None or self.window_of(block) is None:
            return self.rotary_base
        return self.local_rotary_base

    def group_of(self, layer: int) -> int:
        """The group of blocks that a layer uses, if layers share weights (ALBERT)."""
        assert self.num_hidden_groups is not None
        # Floating-point division as in Transformers; it matters for groups of unequal size.
        return int(layer / (self.num_hidden_layers / self.num_hidden_groups))

    def kept_heads(self, block: int) -> tuple[int, ...]:
        """Indices of the heads of a block that are not pruned."""
        gone = self.pruned_heads.get(block, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in gone)

    @classmethod
    def of_size(cls, size: str, *, vocab_size: int, **changes) -> "EncoderConfig":
        """Make a config of one of the published ``SIZES``; ``changes`` override any field."""
        known(*SIZES)("size", size)
        layers, hidden, heads = SIZES[size]
        config = cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
        )
        return replace(config, **changes)
