"""The size and structure of an encoder or decoder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ownbert import limits
from ownbert.checks import (
    Interval,
    check_fields,
    checked,
    count,
    known,
    maybe,
    number_in,
    positive,
    up_to,
)
from ownbert.config import ACTIVATIONS, RATE_CHECK, WIDTH_CHECK
from ownbert.config.position_kinds import KINDS, POSITIONS, PositionKind
from ownbert.config.variants import Disentangled, Image, Mobile
from ownbert.exceptions import InputError, in_short
from ownbert.language.messages import Message

NORMS = ("layer_norm", "rms_norm")
# Segment ids of ``transformer_xl``: XLNet's two texts, <cls> and padding, with room for the ids of
# other models. Eight channels keep the products aligned.
SEGMENTS = 8
# How the gated layers are combined (nn/variants/sesame.py): the last layer only, or their sum.
LAYER_GATES = ("last", "sum")
# (layers, hidden size, heads) of the models that google-research/bert published (March 2020).
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
# Above it the lowest frequencies are zero in float32; models for 8,192 tokens use 160,000.
_LARGEST_BASE = 1e15
# With a kernel of three tokens the weights are uniform long before this.
WIDEST_BLUR = 100
_LAYERS = count(1, limits.LAYERS)
_BASE = number_in(
    Interval(1, _LARGEST_BASE, "(]", Message("more than 1 and at most {most:,}", _LARGEST_BASE))
)
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
    hidden_dropout_prob: float = checked(0.1, RATE_CHECK)
    attention_probs_dropout_prob: float = checked(0.1, RATE_CHECK)
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
    pruned_heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)
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
    activation_dropout: float = checked(0.0, RATE_CHECK)
    attention_rate_on_output: bool = False
    layer_gate: str | None = checked(None, maybe(known(*LAYER_GATES)))
    attention_blur: float | None = checked(None, maybe(number_in(up_to(WIDEST_BLUR))))
    drop_output: bool = False
    longest_distance: int | None = checked(None, maybe(count(1, limits.LENGTH)))
    mask_vector: bool = False
    drop_everywhere: bool = False
    disentangled: Disentangled | None = None
    image: Image | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            labels = ": use model.labels" if name in ("id2label", "label2id", "num_labels") else ""
            raise AttributeError(f"the structure of a model has no {name!r}{labels}")

    def __post_init__(self) -> None:
        if self.image is None:
            count(1, limits.VOCABULARY)("vocab_size", self.vocab_size)
            if self.pad_token_id not in range(self.vocab_size):
                message = "pad_token_id {pad_token_id} is outside vocab_size {vocab_size}"
                raise InputError(message, self.pad_token_id, self.vocab_size)
        else:
            self._check_image(self.image)
        check_fields(self)
        self._check_widths()
        self._check_layers()
        if self.mobile is not None:
            self._check_mobile()
        if self.disentangled is not None:
            self._check_disentangled(self.disentangled)
        self._check_sesame()
        object.__setattr__(self, "pruned_heads", self._checked_heads())

    def _check_widths(self) -> None:
        """Check heads and positions."""
        if self.head_width is None and self.attention_size % self.num_attention_heads:
            whole = self.attention_size == self.hidden_size
            name = "hidden_size" if whole else "intra_bottleneck_size"
            message = (
                "{name} {attention_size} must be a multiple of num_attention_heads "
                "{num_attention_heads}"
            )
            raise InputError(message, name, self.attention_size, self.num_attention_heads)
        if self.num_attention_heads * self.head_size > limits.WIDTH:
            message = (
                "num_attention_heads {num_attention_heads} with {head_size} channels each "
                "exceed {width:,} in total"
            )
            raise InputError(message, self.num_attention_heads, self.head_size, limits.WIDTH)
        if self.relative_buckets < 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise InputError(
                "relative_buckets is {relative_buckets} and relative_max_distance "
                "{relative_max_distance}; relative_buckets must be at least 4, and half of it "
                "less than relative_max_distance",
                self.relative_buckets,
                self.relative_max_distance,
            )
        if self.positions.rotary and self.head_size % 2:
            raise InputError(
                "position_embedding_type 'rotary' needs an even head size; hidden_size "
                "{hidden_size} / num_attention_heads {num_attention_heads} is odd",
                self.hidden_size,
                self.num_attention_heads,
            )
        if self.position_offset >= self.max_position_embeddings:
            raise InputError(
                "position_offset {position_offset} leaves no positions of "
                "max_position_embeddings {max_position_embeddings}",
                self.position_offset,
                self.max_position_embeddings,
            )

    def _check_layers(self) -> None:
        if self.local_attention is not None and self.num_hidden_groups is not None:
            raise InputError(
                "local_attention cannot be combined with num_hidden_groups: shared blocks are of "
                "one kind"
            )
        if self.add_cross_attention and not self.is_decoder:
            raise InputError("add_cross_attention needs is_decoder true")
        if self.num_hidden_groups and self.num_hidden_groups > self.num_hidden_layers:
            raise InputError(
                "num_hidden_groups {num_hidden_groups} is more than num_hidden_layers "
                "{num_hidden_layers}",
                self.num_hidden_groups,
                self.num_hidden_layers,
            )
        if self.num_blocks > limits.LAYERS:
            message = (
                "num_hidden_groups {num_hidden_groups} times inner_group_num {inner_group_num} "
                "is more than {layers:,} blocks"
            )
            raise InputError(message, self.num_hidden_groups, self.inner_group_num, limits.LAYERS)

    def _check_mobile(self) -> None:
        if self.norm_first or self.activation_dropout:
            raise InputError("mobile cannot be combined with norm_first or activation_dropout")
        if self.gated_feed_forward or not self.norm_bias:
            raise InputError("mobile cannot be combined with gated_feed_forward or norm_bias false")
        if self.positions.segments:
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
                    "{name} cannot be combined with mask_vector: the rows of a second stream "
                    "are not tokens of the text",
                    name,
                )
            if getattr(self, name) is not None and self.is_decoder:
                raise InputError(
                    "{name} cannot be combined with is_decoder: a token would see later ones", name
                )

    def _check_disentangled(self, disentangled: Disentangled) -> None:
        others = ("mobile", "num_hidden_groups", "pruned_heads", "is_decoder", "head_width")
        for name in (name for name in others if getattr(self, name)):
            raise InputError("disentangled attention cannot be combined with {name}", name)
        if self.position_embedding_type not in ("absolute", "none"):
            raise InputError(
                "disentangled attention requires position_embedding_type absolute or none, not "
                "{position_embedding_type}",
                self.position_embedding_type,
            )
        if disentangled.conv_kernel_size and self.hidden_size % disentangled.conv_groups:
            message = "hidden_size {hidden_size} must be a multiple of conv_groups {conv_groups}"
            raise InputError(message, self.hidden_size, disentangled.conv_groups)

    def _check_image(self, image: Image) -> None:
        for name, value in _TEXT_ONLY.items():
            if getattr(self, name) != value:
                raise InputError(
                    "image cannot be combined with {name} {getattr}: an image model reads no text",
                    name,
                    getattr(self, name),
                )
        if self.max_position_embeddings != image.patches + 1:
            raise InputError(
                "max_position_embeddings is {max_position_embeddings}; an image of {patches} "
                "patches and the class token need {patches2}",
                self.max_position_embeddings,
                image.patches,
                image.patches + 1,
            )

    def _checked_heads(self) -> dict[int, tuple[int, ...]]:
        """``pruned_heads`` with integer keys (strings in JSON), sorted, with layers counted from
        0."""
        checked: dict[int, tuple[int, ...]] = {}
        try:
            given = {int(i): [int(h) for h in heads] for i, heads in self.pruned_heads.items()}
        except (AttributeError, TypeError, ValueError):
            message = "pruned_heads is {pruned_heads}; it must map layers to the numbers of heads"
            raise InputError(message, in_short(self.pruned_heads)) from None
        for named, heads in given.items():
            block = named + self.num_blocks if named < 0 else named  # -1 is the last block
            if block not in range(self.num_blocks):
                message = "pruned_heads names layer {named}; the layers are 0..{num_blocks}"
                raise InputError(message, named, self.num_blocks - 1)
            pruned = tuple(sorted({*checked.get(block, ()), *heads}))
            unknown = [head for head in pruned if head not in range(self.num_attention_heads)]
            if unknown:
                last = self.num_attention_heads - 1
                message = "layer {block} has no head {unknown}; the heads are 0..{last}"
                raise InputError(message, block, unknown[0], last)
            if len(pruned) == self.num_attention_heads:
                raise InputError(
                    "layer {block} would lose all of its heads; keep at least one", block
                )
            if pruned:
                checked[block] = pruned
        return dict(sorted(checked.items()))

    @property
    def positions(self) -> PositionKind:
        """The kind of positions."""
        return KINDS[self.position_embedding_type]

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
        return self.longest if self.positions.table else None

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
        pruned = self.pruned_heads.get(block, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in pruned)

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
