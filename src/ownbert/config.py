"""What a network is made of: sizes and structure, nothing of training or of labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ownbert.errors import InputError

# layers, hidden size, heads: the sizes that google-research/bert published (README, March 2020).
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

# "gelu" is the exact one, by erf, as in Transformers; Google's first code meant "gelu_new" by it.
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

# absolute: a learnt table; sinusoidal: Vaswani et al. 2017, section 3.5; relative_key: Shaw et al.
# 2018; relative_key_query: Huang et al. 2020, method 4; rotary: Su et al. 2021; alibi: Press et al.
# 2022, symmetric where attention goes both ways.
POSITIONS = (
    "absolute",
    "sinusoidal",
    "relative_key",
    "relative_key_query",
    "rotary",
    "alibi",
)

HEADS = (
    *("mlm", "nsp", "sop", "classification", "choice", "tokens", "span", "discriminator"),
    "embedding",
)


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A head, and what families do differently in it.

    kind: one of ``HEADS``. pooling: what a sentence head stands on, ``pooler`` or one of
    ``nn.pooling.POOLINGS``. segments: how the vectors of a document's segments become one, one of
    the latter; without it each sequence has its own answer. crf: whether the tags of a sequence
    are chosen together. dense: activation of a
    dense layer (D x D) before the last one; dropout_first: whether dropout comes before that too.
    activation: that of the mlm and discriminator heads, by default the encoder's. dropout: rate
    in the head, by default ``hidden_dropout_prob``. output: width, where it is not the number of
    labels.
    """

    kind: str
    pooling: str = "pooler"
    dense: str | None = None
    dropout_first: bool = True
    activation: str | None = None
    dropout: float | None = None
    output: int | None = None
    segments: str | None = None
    crf: bool = False

    @property
    def needs_pooler(self) -> bool:
        return self.kind in ("nsp", "sop", "classification", "choice") and self.pooling == "pooler"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mobile:
    """What MobileBERT (Sun et al. 2020) adds to BERT, in the words of its ``config.json``."""

    intra_bottleneck_size: int = 128
    use_bottleneck: bool = True
    use_bottleneck_attention: bool = False
    key_query_shared_bottleneck: bool = True
    num_feedforward_networks: int = 4
    normalization_type: str = "no_norm"
    trigram_input: bool = True
    classifier_activation: bool = True

    def __post_init__(self) -> None:
        _require_counts(self, ("intra_bottleneck_size", "num_feedforward_networks"), least=1)
        if self.normalization_type not in ("no_norm", "layer_norm"):
            raise InputError(
                f"normalization_type {self.normalization_type!r} is not known; "
                "one of no_norm, layer_norm"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """Structure of an encoder, in the words of BERT's ``config.json``.

    embedding_size: width of the word table where it is not that of the encoder (ALBERT, ELECTRA).
    position_offset: row of the position table at which a text begins (RoBERTa). Layers share
    weights in ``num_hidden_groups`` groups of ``inner_group_num`` blocks (ALBERT); without
    groups each layer has its own. pruned_heads: numbers of the heads that a block has lost.
    drop_attention_output, drop_feed_forward_output: whether a sublayer's output has dropout.
    scale_relative_positions: whether relative scores are divided by sqrt(K) as the others are.

    Raises ``InputError`` for sizes that cannot go together, naming both.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    position_embedding_type: str = "absolute"
    position_offset: int = 0
    embedding_size: int | None = None
    task_type_vocab_size: int = 0
    is_decoder: bool = False
    add_cross_attention: bool = False
    pruned_heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    chunk_size_feed_forward: int = 0
    num_hidden_groups: int | None = None
    inner_group_num: int = 1
    drop_attention_output: bool = True
    drop_feed_forward_output: bool = True
    scale_relative_positions: bool = True
    mobile: Mobile | None = None

    def __post_init__(self) -> None:
        _require_counts(self, _FROM_ONE, least=1)
        _require_counts(self, _FROM_ZERO, least=0)
        if self.attention_size % self.num_attention_heads:
            name = (
                "hidden_size"
                if self.attention_size == self.hidden_size
                else "intra_bottleneck_size"
            )
            raise InputError(
                f"{name} {self.attention_size} cannot be shared by num_attention_heads "
                f"{self.num_attention_heads}: it must be a multiple"
            )
        _require_known("hidden_act", self.hidden_act, ACTIVATIONS)
        _require_known("position_embedding_type", self.position_embedding_type, POSITIONS)
        if self.position_embedding_type == "rotary" and self.head_size % 2:
            raise InputError(
                "position_embedding_type 'rotary' needs an even head size; hidden_size "
                f"{self.hidden_size} / num_attention_heads {self.num_attention_heads} is odd"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= _number(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        for name in ("initializer_range", "layer_norm_eps"):
            if not _number(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be more than 0")
        if self.pad_token_id not in range(self.vocab_size):
            raise InputError(
                f"pad_token_id {self.pad_token_id} is outside vocab_size {self.vocab_size}"
            )
        if self.position_offset >= self.max_position_embeddings:
            raise InputError(
                f"position_offset {self.position_offset} leaves no positions of "
                f"max_position_embeddings {self.max_position_embeddings}"
            )
        if self.add_cross_attention and not self.is_decoder:
            raise InputError("add_cross_attention needs is_decoder true")
        if self.num_hidden_groups and self.num_hidden_groups > self.num_hidden_layers:
            raise InputError(
                f"num_hidden_groups {self.num_hidden_groups} is more than num_hidden_layers "
                f"{self.num_hidden_layers}"
            )
        object.__setattr__(self, "pruned_heads", self._checked_heads())

    def _checked_heads(self) -> dict[int, tuple[int, ...]]:
        """``pruned_heads`` with whole numbers, sorted (JSON makes its keys strings)."""
        checked = {}
        try:
            given = {int(i): [int(h) for h in heads] for i, heads in self.pruned_heads.items()}
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"pruned_heads is {self.pruned_heads!r}; it must give numbers of heads by layer"
            ) from None
        for number, heads in given.items():
            if number not in range(self.num_blocks):
                raise InputError(
                    f"pruned_heads names layer {number}; the layers are 0..{self.num_blocks - 1}"
                )
            gone = tuple(sorted(set(heads)))
            unknown = [head for head in gone if head not in range(self.num_attention_heads)]
            if unknown:
                last = self.num_attention_heads - 1
                raise InputError(f"layer {number} has no head {unknown[0]}; they are 0..{last}")
            if len(gone) == self.num_attention_heads:
                raise InputError(f"layer {number} would lose all of its heads; leave it one")
            if gone:
                checked[number] = gone
        return dict(sorted(checked.items()))

    @property
    def attention_size(self) -> int:
        """Width of the heads together: that of the bottleneck where there is one."""
        if self.mobile is not None and self.mobile.use_bottleneck:
            return self.mobile.intra_bottleneck_size
        return self.hidden_size

    @property
    def head_size(self) -> int:
        return self.attention_size // self.num_attention_heads

    @property
    def num_blocks(self) -> int:
        """Blocks that have weights of their own."""
        if self.num_hidden_groups is None:
            return self.num_hidden_layers
        return self.num_hidden_groups * self.inner_group_num

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens, or None where positions have no table to run out of."""
        if self.position_embedding_type != "absolute":
            return None
        return self.longest

    @property
    def longest(self) -> int:
        """Longest sequence that the model was made for, whether or not it can take more."""
        return self.max_position_embeddings - self.position_offset

    def group_of(self, layer: int) -> int:
        """The group whose blocks a layer runs, where layers share them (ALBERT)."""
        assert self.num_hidden_groups is not None
        # In floating point as in Transformers, which matters where groups are uneven.
        return int(layer / (self.num_hidden_layers / self.num_hidden_groups))

    def kept_heads(self, block: int) -> tuple[int, ...]:
        """Numbers of the heads that a block still has."""
        gone = self.pruned_heads.get(block, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in gone)

    @classmethod
    def of_size(cls, size: str, *, vocab_size: int, **changes) -> "EncoderConfig":
        """One of the published ``SIZES``; ``changes`` replace any field."""
        if size not in SIZES:
            raise InputError(f"size {size!r} is not known; one of {', '.join(SIZES)}")
        layers, hidden, heads = SIZES[size]
        config = cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
        )
        return replace(config, **changes)


_FROM_ONE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "embedding_size",
    "num_hidden_groups",
    "inner_group_num",
)
_FROM_ZERO = (
    "type_vocab_size",
    "position_offset",
    "task_type_vocab_size",
    "chunk_size_feed_forward",
)
_MAY_BE_NONE = ("embedding_size", "num_hidden_groups")


def _require_counts(config: object, names: tuple[str, ...], *, least: int) -> None:
    for name in names:
        value = getattr(config, name)
        if value is None and name in _MAY_BE_NONE:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} is {value!r}; it must be a whole number from {least} on")


def _number(config: object, name: str) -> float:
    value = getattr(config, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; it must be a number")
    return value


def _require_known(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} {value!r} is not known; one of {', '.join(known)}")
