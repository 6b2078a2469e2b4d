"""Outputs of models with Transformers' API: values by name, by index and as a tuple."""

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor


class ModelOutput(OrderedDict):
    """Named values without None: ``out.logits``, ``out["logits"]``, ``out[0]``.

    As an attribute, an output of the class that this call did not return is None.
    """

    def __init__(self, fields: Any = (), values: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__((name, values[name]) for name in fields if values.get(name) is not None)
        self.__dict__["_fields"] = fields

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return super().__getitem__(name)
        if name in self.__dict__.get("_fields", ()):
            return None
        raise AttributeError(f"the output has no {name!r}; it has {', '.join(self)}")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in order, without None."""
        return tuple(self.values())


_OTHER_LOGITS = {"nsp": "seq_relationship_logits", "sop": "sop_logits"}
_BASE = (
    *("last_hidden_state", "pooler_output", "hidden_states", "past_key_values", "attentions"),
    "cross_attentions",
)
_CAUSAL = ("loss", "logits", "past_key_values", "hidden_states", "attentions", "cross_attentions")


def field_names(kinds: tuple[str, ...], *, decoder: bool) -> tuple[str, ...]:
    """Names of the outputs of a model with these heads, in the order of Transformers 4.57.6."""
    if not kinds or decoder:
        return _CAUSAL if kinds else _BASE
    return ("loss", *_logits_names(kinds), "hidden_states", "attentions")


def _logits_names(kinds: tuple[str, ...]) -> tuple[str, ...]:
    if kinds == ("span",):
        return "start_logits", "end_logits"
    return ("prediction_logits", _OTHER_LOGITS[kinds[1]]) if len(kinds) == 2 else ("logits",)


def logits_by_name(kinds: tuple[str, ...], logits: dict[str, Tensor]) -> dict[str, Tensor]:
    """Logits keyed by the names of ``field_names``."""
    if not kinds:
        return {}
    parts = logits["span"].unbind(-1) if kinds == ("span",) else [logits[kind] for kind in kinds]
    return dict(zip(_logits_names(kinds), parts, strict=True))
