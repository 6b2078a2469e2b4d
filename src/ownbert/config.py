"""What a network is made of: sizes and structure, nothing of training or of labels."""

from dataclasses import dataclass, fields, replace

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

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "tanh")


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """Structure of an encoder, in the words of BERT's ``config.json``.

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

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} is {value!r}; it must be a whole number from 1 on")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size {self.hidden_size} cannot be shared by num_attention_heads "
                f"{self.num_attention_heads}: it must be a multiple"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise InputError(
                f"hidden_act {self.hidden_act!r} is not known; one of {', '.join(ACTIVATIONS)}"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        for name in ("initializer_range", "layer_norm_eps"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be more than 0")
        if self.pad_token_id not in range(self.vocab_size):
            raise InputError(
                f"pad_token_id {self.pad_token_id} is outside vocab_size {self.vocab_size}"
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

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


_COUNTS = tuple(
    f.name for f in fields(EncoderConfig) if f.type in (int, "int") and f.name != "pad_token_id"
)
