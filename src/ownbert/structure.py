"""Parts of a config: heads, what single families add, and how their values are checked."""

from dataclasses import dataclass

from ownbert.errors import InputError

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

# absolute: a learnt table; sinusoidal: Vaswani et al. 2017, section 3.5, sine and cosine in turn;
# sinusoidal_halves: all sines before all cosines (Marian), the same but for the order of channels;
# relative_key: Shaw et al. 2018; relative_key_query: Huang et al. 2020, method 4; rotary: Su et al.
# 2021; alibi: Press et al. 2022, symmetric where attention goes both ways.
POSITIONS = (
    "absolute",
    "sinusoidal",
    "sinusoidal_halves",
    "relative_key",
    "relative_key_query",
    "rotary",
    "alibi",
)

HEADS = (
    *("mlm", "nsp", "sop", "classification", "choice", "tokens", "span", "discriminator"),
    *("embedding", "generator"),
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
        require_counts(self, ("intra_bottleneck_size", "num_feedforward_networks"), least=1)
        if self.normalization_type not in ("no_norm", "layer_norm"):
            raise InputError(
                f"normalization_type {self.normalization_type!r} is not known; "
                "one of no_norm, layer_norm"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """Pictures that are read as rows of patches (Dosovitskiy et al. 2021, section 3.1).

    Sizes are (height, width) in pixels.
    """

    size: tuple[int, int]
    patch: tuple[int, int]
    channels: int = 3

    def __post_init__(self) -> None:
        for name in ("size", "patch"):
            value = getattr(self, name)
            pair = (value, value) if isinstance(value, int) else tuple(value)
            if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
                raise InputError(
                    f"image {name} is {value!r}; it must be two whole numbers from 1 on"
                )
            object.__setattr__(self, name, pair)
        require_counts(self, ("channels",), least=1)
        for pixels, patch, name in zip(self.size, self.patch, ("height", "width"), strict=True):
            if pixels % patch:
                raise InputError(
                    f"the image {name} {pixels} cannot be cut into patches of {patch}: it must be "
                    "a multiple"
                )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def patch_values(self) -> int:
        """Numbers in a patch: its pixels times the channels."""
        return self.patch[0] * self.patch[1] * self.channels


def require_counts(
    config: object, names: tuple[str, ...], *, least: int, may_be_none: tuple[str, ...] = ()
) -> None:
    """``InputError`` unless these fields are whole numbers from ``least`` on."""
    for name in names:
        value = getattr(config, name)
        if value is None and name in may_be_none:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} is {value!r}; it must be a whole number from {least} on")


def number(config: object, name: str) -> float:
    value = getattr(config, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; it must be a number")
    return value


def require_known(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} {value!r} is not known; one of {', '.join(known)}")
