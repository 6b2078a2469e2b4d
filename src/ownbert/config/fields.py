"""Checked fields of configurations, and what several of them share."""

from dataclasses import field, fields
from typing import Any

from ownbert import limits
from ownbert.checks import Check, count

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
WIDTH_CHECK = count(1, limits.WIDTH)


def checked(default: Any, check: Check) -> Any:
    """A field with its check, so that a damaged or hostile file cannot exhaust the memory."""
    return field(default=default, metadata={"check": check})


def check_fields(config: Any) -> None:
    """Raise ``InputError`` for the first field whose value fails its check."""
    for one in fields(config):
        if "check" in one.metadata:
            one.metadata["check"](one.name, getattr(config, one.name))
