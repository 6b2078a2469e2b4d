"""Channels with which a BERT that contains a linear model (``token_scores``) tells tokens apart.

Each token has a random code of plus and minus one. Heads that compare codes attend to equal tokens
(``repeated_tokens``), and units of a feed-forward network that compare them detect pairs
(``token_pairs``). LayerNorm divides all channels of a token by the same number, so thresholds are
channels too, not biases.

V tokens of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.nn.model import Model

CODE, SEED = 32, 3024  # channels of a code, and the seed of the codes
# Sines and cosines of positions, two channels for each frequency.
FREQUENCIES = 16
# Copies of one value: dropout could remove a single channel.
_COPIES = {"constant": 6, "mark": 4, "share": 4}
# Size of the values, relative to those of the other channels. Ballast is larger: the larger the
# values that all tokens share, the less LayerNorm's divisor varies between tokens. Even larger ones
# would make 8-bit integers round the other channels too much. No weight reads the ballast, because
# 8-bit integers cannot hold weights of very different sizes either.
SIZE, _LARGE = 0.3, 3.0
# Minimum number of ballast channels for repeated tokens.
_BALLAST = 4


@dataclass(frozen=True)
class CodeChannels:
    """The indices of the channels. The channel after the last one stays empty.

    Args:
        first: index of the first channel.
        damped: whether there are channels for repeated tokens.
        paired: whether there are channels for pairs.
        unused: number of other channels, which may be ballast too.
    """

    first: int
    damped: bool
    paired: bool
    unused: int = 0

    @property
    def widths(self) -> dict[str, int]:
        """Number of channels for each purpose.

        ``own``: the code of the token; the first token has none. ``constant`` and ``ballast``: the
        same for every token. ``mark``: only in the first token. ``share``: see
        ``repeated_tokens``. ``before`` and ``place``: the code of the previous token, and the
        position, see ``token_pairs``.
        """
        damped, paired = self.damped, self.paired
        names = ("constant",) * (damped or paired) + ("mark", "share") * damped
        widths = {"own": CODE} if names else {}
        widths |= {name: _COPIES[name] for name in names}
        widths |= {"before": CODE, "place": 2 * FREQUENCIES} if paired else {}
        return widths | {"ballast": _BALLAST * damped + self.unused // 2 * 2}

    def __getitem__(self, name: str) -> Tensor:
        widths = self.widths
        names = [*widths]
        begin = self.first + sum(widths[own] for own in names[: names.index(name)])
        return begin + torch.arange(widths[name])

    @property
    def zero(self) -> int:
        """The empty channel. It shows the mean that LayerNorm subtracts from every channel."""
        return self.first + sum(self.widths.values())

    @property
    def energy(self) -> float:
        """The sum of squares over the channels of most tokens, relative to that of one other
        channel. Sines and cosines add up to 1."""
        counted = {**self.widths, "mark": 0}
        if self.paired:
            counted["place"] = FREQUENCIES
        ballast = counted.pop("ballast")
        return SIZE**2 * sum(counted.values()) + _LARGE**2 * ballast

    def one(self, name: str) -> Tensor:
        """The values that stand for 1 in channels with the same value. Their sum is 0, so that the
        mean over all channels stays the same."""
        size = _LARGE if name == "ballast" else SIZE
        return size * torch.tensor([1.0, -1.0]).repeat(self.widths[name] // 2)

    def readout(self, name: str) -> Tensor:
        """The weights that read a number from these channels."""
        return self.one(name) / self.one(name).square().sum()

    def add_codes(self, wide: Model, deviation: Tensor, first_token: int) -> None:
        """Set the embeddings of the codes, constants and marks.

        Args:
            wide: the model.
            deviation: (V, 1), the standard deviation of the embedding of each token.
            first_token: id of the token that begins every text.
        """
        embeddings: Any = wide.encoder.embeddings
        word = embeddings.word.weight
        word[:, self["ballast"]] = self.one("ballast") * deviation
        if self.damped or self.paired:
            word[:, self["own"]] = SIZE * codes(wide.config.vocab_size) * deviation
            word[:, self["constant"]] = self.one("constant") * deviation
        if self.damped:
            word[first_token, self["own"]] = 0.0
            word[first_token, self["mark"]] = self.one("mark") * deviation[first_token]


def can_hold_codes(model: Model) -> bool:
    """Whether a model for which ``can_hold_scores`` is true can compare tokens."""
    config = model.config
    return config.head_size >= max(CODE, 2 * FREQUENCIES) and config.num_hidden_layers > 1


def codes(vocab_size: int) -> Tensor:
    """(V, 32): half of each code is 1 and half is -1, so that its mean is 0."""
    order = np.random.default_rng(SEED).random((vocab_size, CODE)).argsort(1)
    return torch.from_numpy(np.where(order < CODE // 2, 1.0, -1.0).astype(np.float32))


def cancel_mean(weights: Tensor, zero: int) -> None:
    """Make each row of a matrix (rows, channels) subtract the mean that LayerNorm subtracts."""
    weights[:, zero] -= weights.sum(1)
