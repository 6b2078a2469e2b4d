"""An encoder-decoder kind of checkpoint: what Marian and T5 differ in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from ownbert.config.encoder import EncoderConfig
from ownbert.config.heads import HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.errors import InputError, in_short
from ownbert.families.mapping.weight_map import WeightMap

Stacks = tuple[EncoderConfig, EncoderConfig, bool]


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
    """A kind of checkpoint with two stacks; both of one model read and write texts.

    Args:
        model_type: in its ``config.json``.
        architecture: Transformers' class with the head that writes words.
        base: the class without it, if there is one.
        read_config: encoder, decoder, and whether the head has the word table as its matrix.
        write_config: the keys of a ``config.json`` from these.
        weight_map: its tensors by our names and back, for two stacks and the kind of their head.
        head: the head, by whether its matrix is the word table.
        one_table: whether the stacks have one word table even where the head has its own matrix.
        dropouts: the keys of its dropout rates.
        answering: further classes, whose head on the decoder answers for the text that is read, by
            name: the head by the values of a ``config.json``.
        defaults: the keys of its ``config.json`` and their defaults.
        head_dropouts: by kind of head, the key of its dropout rate.
        normed_states: whether the last of a stack's hidden states follows its last norm.
    """

    model_type: str
    architecture: str
    read_config: Callable[[Mapping[str, Any]], Stacks]
    write_config: _Writes
    weight_map: _Maps
    base: str | None = None
    head: Callable[[bool], HeadSpec] = lambda shared: HeadSpec("generator")
    one_table: bool = False
    dropouts: Sequence[str] = ()
    answering: Mapping[str, Callable[[Mapping[str, Any]], HeadSpec]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    head_dropouts: Mapping[str, str] = field(default_factory=dict)
    normed_states: bool = False

    def heads(
        self, architecture: str, values: Mapping[str, Any], *, shared: bool
    ) -> list[HeadSpec]:
        """The heads of one of the classes: one, or none of the base."""
        if architecture == self.base:
            return []
        if architecture in self.answering:
            return [self.answering[architecture](values)]
        return [self.head(shared)]

    def answering_heads(self, values: Mapping[str, Any]) -> dict[str, HeadSpec]:
        """The heads of the classes that answer for a text, by kind."""
        return {spec.kind: spec for spec in (make(values) for make in self.answering.values())}

    def second_reading(self, values: Mapping[str, Any]) -> SecondReading:
        """How the decoder of such a class reads the text, from the values of a ``config.json``.

        Raises:
            InputError: a token is not one of the vocabulary.
        """
        values = {**self.defaults, **values}
        start, end = values.get("decoder_start_token_id"), values["eos_token_id"]
        start = values["pad_token_id"] if start is None else start
        for name, token in (("decoder_start_token_id", start), ("eos_token_id", end)):
            if not isinstance(token, int) or token not in range(values["vocab_size"]):
                raise InputError(
                    f"{name} is {in_short(token)}; one token of the vocabulary is needed"
                )
        return SecondReading(start, end)

    def architecture_of(self, head: str | None) -> str:
        """The name of the class with a kind of head; None: of the base."""
        if head is None:
            return self.base or self.architecture
        names = (name for name in self.answering if self.answering[name]({}).kind == head)
        return next(names, self.architecture)


def require_expressed(
    model_type: str, stacks: Sequence[EncoderConfig], again: Sequence[EncoderConfig]
) -> None:
    """``InputError`` if a field of the stacks is another one after it was written and read."""
    for old, new in zip(stacks, again, strict=True):
        for f in fields(EncoderConfig):
            if getattr(old, f.name) != getattr(new, f.name):
                raise InputError(f"{model_type} has no key for {f.name} {getattr(old, f.name)}")
