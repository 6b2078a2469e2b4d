"""How Transformers' classes of a family are called, and what else they return (4.57.6)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

# The kinds of the heads of a class.
Kinds = tuple[str, ...]
# The arguments of a forward pass in their order, and the name of what takes any others.
Arguments = tuple[Sequence[str], str | None]

LAST = ("output_attentions", "output_hidden_states", "return_dict")
# Classes that take an encoder's output without being a decoder.
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
    cache_position: bool = False,
) -> Arguments:
    """The arguments of a class of most families.

    Args:
        kinds: of its heads.
        decoder: whether it generates text.
        inputs: arguments beside the ids and their mask.
        crossing: classes that take an encoder's output; decoders do too.
        cache_position: whether the class without a head has this argument.
    """
    names = ["input_ids", "attention_mask", *inputs]
    if decoder or kinds in crossing:
        names += ["encoder_hidden_states", "encoder_attention_mask"]
    names += labels_of(kinds)
    if decoder or (crossing and not kinds):
        names += ["past_key_values", "use_cache"]
    names += LAST
    if cache_position and not kinds:
        names.append("cache_position")
    return names, "kwargs" if decoder or kinds == ("nsp",) else None


@dataclass(frozen=True)
class Calls:
    """How the classes of a family are called, and what they return.

    Args:
        arguments: of the forward pass of a class, by the kinds of its heads and whether it
            generates text.
        unsupported: arguments of batches that are packed already.
        as_tuple: what ``return_dict=False`` returns of the named values; None: these, in their
            order.
        update_losses: classes whose loss is over the labels of all batches of an update.
        loss_by_shape: whether the shape of the labels decides the loss of a classification.
        normed_states: whether the last of the hidden states follows the last norm.
        memory: whether hidden states of earlier tokens are taken and returned.
    """

    arguments: Callable[[Kinds, bool], Arguments] = encoder_arguments
    unsupported: tuple[str, ...] = ()
    as_tuple: Callable[[Kinds, Any], tuple[Any, ...] | None] = lambda kinds, named: None
    update_losses: tuple[Kinds, ...] = ()
    loss_by_shape: bool = False
    normed_states: bool = False
    memory: bool = False
