"""XLNet's memory, which a sped-up model of Transformers returns.

B sequences, S longest sequence, R tokens of the memory, D hidden.
"""

from typing import Any, NamedTuple

from torch import Tensor

from ownbert.nn.model import Outputs
from ownbert.transformers.padded_inputs import PackedInputs


class Memory(NamedTuple):
    """Hidden states of earlier tokens: none, as calls that have some are left to Transformers."""

    given: tuple[Tensor, ...]
    cache: None
    returned: bool


def next_memory(
    config: Any, out: Outputs, packed: PackedInputs, memory: Memory
) -> tuple[Tensor, ...]:
    """The input of each layer, (R, B, D): the hidden states of the last ``mem_len`` tokens.

    Args:
        config: has ``mem_len`` and ``reuse_len``.
    """
    layers = []
    most, reused = config.mem_len or 0, config.reuse_len or 0
    for rows in out.hidden_states[:-1]:
        hidden = packed.shown(rows)[0].transpose(0, 1)  # (S, B, D)
        hidden = hidden[:reused] if reused > 0 else hidden
        layers.append(hidden[-most:].detach())
    return tuple(layers)
