"""Encoder-decoder checkpoints: the differences between Marian and T5."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """A kind of checkpoint with an encoder and a decoder.

    Args:
        model_type: value in its ``config.json``.
        architecture: Transformers' class with the generator head.
        read_config: function from a ``config.json`` to the encoder, the decoder, and whether the
            head shares the word embeddings.
        write_config: function from these to the keys of a ``config.json``.
        weight_map: function from these and the kind of head to the weight map.
        base: class without a head, if there is one.
        head: function from whether the word embeddings are shared to the generator head.
        one_table: whether encoder and decoder share the word embeddings even if the head does not.
        dropouts: keys of the dropout rates.
        answering: further classes by name, whose head is on a decoder that reads the encoder's
            input again: functions from a ``config.json`` to the head.
        defaults: keys of the ``config.json`` with their defaults.
        head_dropouts: keys of the dropout rates of heads, by kind.
        normed_states: whether the last of a stack's hidden states is after its final norm.
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
        """The heads of a class: one, or none for the base.

        Args:
            architecture: name of the class.
            values: content of the ``config.json``.
            shared: whether a generator head shares the word embeddings.
        """
        if architecture == self.base:
            return []
        if architecture in self.answering:
            return [self.answering[architecture](values)]
        return [self.head(shared)]

    def second_reading(self, values: Mapping[str, Any]) -> SecondReading:
        """How the decoder of a class in ``answering`` reads the encoder's input.

        Args:
            values: content of the ``config.json``.

        Returns:
            The special tokens for the decoder.

        Raises:
            InputError: a token is not in the vocabulary.
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
        """The class with a kind of head; None: the base."""
        if head is None:
            return self.base or self.architecture
        names = (name for name in self.answering if self.answering[name]({}).kind == head)
        return next(names, self.architecture)
