"""Arguments and outputs of Transformers' classes of a family (4.57.6)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

# Kinds of the heads of a class.
Kinds = tuple[str, ...]

LAST = ("output_attentions", "output_hidden_states", "return_dict")
# Classes that accept an encoder's output although they are not decoders.
CROSSING: tuple[Kinds, ...] = ((), ("mlm",))
_LABELS: dict[Kinds, tuple[str, ...]] = {
    (): (),
    ("mlm", "nsp"): ("labels", "next_sentence_label"),
    ("mlm", "sop"): ("labels", "sentence_order_label"),
    ("span",): ("start_positions", "end_positions"),
}


def labels_of(kinds: Kinds) -> tuple[str, ...]:
    """The arguments of a class that are labels."""
    return _LABELS.get(kinds, ("labels",))


def encoder_arguments(
    kinds: Kinds,
    decoder: bool,
    *,
    inputs: Sequence[str] = ("token_type_ids", "position_ids", "head_mask", "inputs_embeds"),
    crossing: Collection[Kinds] = (),
) -> Sequence[str]:
    """The arguments of the forward pass of a class, in most families.

    Args:
        decoder: whether it generates text.
        inputs: arguments besides the ids and their mask.
        crossing: classes that accept an encoder's output, besides decoders.
    """
    names = ["input_ids", "attention_mask", *inputs]
    if decoder or kinds in crossing:
        names += ["encoder_hidden_states", "encoder_attention_mask"]
    names += labels_of(kinds)
    if decoder or (crossing and not kinds):
        names += ["past_key_values", "use_cache"]
    return [*names, *LAST]


@dataclass(frozen=True)
class Calls:
    """Arguments and outputs of the classes of a family.

    Args:
        arguments: function from the kinds of the heads of a class, and whether it generates text,
            to the arguments of its forward pass.
        unsupported: arguments that only Transformers supports.
        loss_by_shape: whether the shape of the labels determines the classification loss.
        normed_states: whether the last of the hidden states is after the final norm.
        memory: whether Transformers returns hidden states of earlier tokens (XLNet).
    """

    arguments: Callable[[Kinds, bool], Sequence[str]] = encoder_arguments
    unsupported: tuple[str, ...] = ()
    loss_by_shape: bool = False
    normed_states: bool = False
    memory: bool = False
