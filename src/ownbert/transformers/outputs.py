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


# Names of logits by kind of head.
LOGITS = {"nsp": "seq_relationship_logits", "sop": "sop_logits"}
_BOTH_HEADS = ("loss", "prediction_logits", "{other}", "hidden_states", "attentions")
_HEAD = ("loss", "logits", "hidden_states", "attentions")
_CAUSAL = ("loss", "logits", "past_key_values", "hidden_states", "attentions", "cross_attentions")
_SPAN = ("loss", "start_logits", "end_logits", "hidden_states", "attentions")
_BASE = (
    *("last_hidden_state", "pooler_output", "hidden_states", "past_key_values", "attentions"),
    "cross_attentions",
)


def field_names(kinds: tuple[str, ...], *, decoder: bool) -> tuple[str, ...]:
    """Names of the outputs of a model with these heads, in the order of Transformers 4.57.6."""
    if not kinds:
        return _BASE
    if kinds == ("span",):
        return _SPAN
    if len(kinds) == 2:
        return tuple(name.format(other=LOGITS[kinds[1]]) for name in _BOTH_HEADS)
    return _CAUSAL if decoder else _HEAD


def logits_by_name(kinds: tuple[str, ...], logits: dict[str, Tensor]) -> dict[str, Tensor]:
    """Logits keyed by the names of ``field_names``."""
    if kinds == ("span",):
        start, end = logits["span"].unbind(-1)
        return {"start_logits": start, "end_logits": end}
    if len(kinds) == 2:
        return {"prediction_logits": logits["mlm"], LOGITS[kinds[1]]: logits[kinds[1]]}
    return {"logits": logits[kinds[0]]} if kinds else {}
