"""Encoder-decoder checkpoints: the differences between Marian and T5."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any, Protocol

from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.exceptions import InputError, in_short
from ownbert.families.mapping.family import ArchitectureSpec
from ownbert.families.mapping.weight_map import WeightMap

Stacks = tuple[EncoderConfig, EncoderConfig, bool]
# The code for folders whose decoder generates text. Other parts of OwnBERT find it here, by name,
# and import nothing of it.
GENERATION = {
    "load": "ownbert.translation.translation_folder:load_translation",
    "translate": "ownbert.translation.decode:Translator",
    "explain": "ownbert.translation.explained_translations:ExplainedTranslator",
}


class _Writes(Protocol):
    def __call__(
        self, encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool
    ) -> dict[str, Any]: ...


class _Maps(Protocol):
    def __call__(
        self, encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool, head: str | None
    ) -> WeightMap: ...


@dataclass(frozen=True)
class EncoderDecoder:
    """A kind of checkpoint with an encoder and a decoder.

    Args:
        model_type: value in its ``config.json``.
        architectures: Transformers' classes by name; the first one generates text. The decoder of a
            class with another head reads the encoder's input again.
        read_config: function from a ``config.json`` to the encoder, the decoder, and whether the
            generator shares the word embeddings.
        write_config: function from these to the keys of a ``config.json``.
        weight_map: function from these and the kind of head to the weight map.
        one_table: whether encoder and decoder share the word embeddings even if the generator does
            not.
        defaults: keys of the ``config.json`` with their defaults.
        names: keys that are also known by a name of ``EncoderConfig``.
        dropouts: keys of the dropout rates of heads, by kind.
        generation: functions and classes for folders of the generating class, see ``door``.
    """

    model_type: str
    architectures: Mapping[str, ArchitectureSpec]
    read_config: Callable[[Mapping[str, Any]], Stacks]
    write_config: _Writes
    weight_map: _Maps
    one_table: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    dropouts: Mapping[str, str] = field(default_factory=dict)
    generation: Mapping[str, str] = field(default_factory=lambda: GENERATION)

    def door(self, name: str) -> Any:
        """The function or class in ``generation`` that loads, translates or explains."""
        return resolve_name(self.generation[name])

    @property
    def generating(self) -> str:
        """The class that generates text."""
        return next(iter(self.architectures))

    @property
    def answering(self) -> tuple[str, ...]:
        """The classes whose decoder reads the encoder's input again."""
        own = (name for name, spec in self.architectures.items() if spec.heads)
        return tuple(name for name in own if name != self.generating)

    def specs(
        self, architecture: str, values: Mapping[str, Any], *, shared: bool = True
    ) -> tuple[HeadSpec, ...]:
        """The heads of a class: one, or none."""
        values, found = {**self.defaults, **values}, []
        for spec in self.architectures[architecture].heads:
            if spec.kind in self.dropouts:
                spec = replace(spec, dropout=values[self.dropouts[spec.kind]])
            if spec.kind == "generator" and not shared:
                spec = replace(spec, tied=False, scaled=False)
            found.append(spec)
        return tuple(found)

    def second_reading(self, values: Mapping[str, Any]) -> SecondReading:
        """How the decoder of a class in ``answering`` reads the encoder's input."""
        values = {**self.defaults, **values}
        start, end = values.get("decoder_start_token_id"), values["eos_token_id"]
        start = values["pad_token_id"] if start is None else start
        for name, token in (("decoder_start_token_id", start), ("eos_token_id", end)):
            if not isinstance(token, int) or token not in range(values["vocab_size"]):
                raise InputError(
                    "{name} is {token}; one token of the vocabulary is needed",
                    name,
                    in_short(token),
                )
        return SecondReading(start, end)

    def architecture_of(self, head: str | None) -> str:
        """The class with a kind of head; None: without one."""
        kinds = () if head is None else (head,)
        names = (name for name, spec in self.architectures.items() if spec.kinds == kinds)
        return next(names, self.generating)

    def other_class(self, values: Mapping[str, Any]) -> str | None:
        """The class that a config.json names, if it does not generate text."""
        (named, *_) = values.get("architectures") or [None]
        return named if named in self.architectures and named != self.generating else None
