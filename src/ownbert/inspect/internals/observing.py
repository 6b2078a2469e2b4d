"""Runs a model on one text and observes it. T tokens, H heads, K head size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch, Example, pack
from ownbert.exceptions import InputError
from ownbert.nn.context import Context
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

AttendObserver = Callable[[Tensor, Tensor, Tensor, Context, int], None]


def core_model(model: nn.Module) -> Model:
    """Return ``model``, or raise ``InputError`` if the module is something else."""
    if not isinstance(model, Model):
        raise InputError(
            "{kind} is not a model of OwnBERT; give one, or a folder", type(model).__name__
        )
    return model


def text_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a text with special tokens."""
    (ids,) = tokenizer.encode_batch([text])
    return tokenizer.input_format.one(ids)


def text_batch(model: Model, ids: Sequence[int], note: str = "") -> Batch:
    """A batch of one text on the model's device; ``note`` is appended to the message if there are
    too many ids for the model."""
    require_room(model, ids, note)
    array = np.asarray(ids, dtype=np.int64)
    return pack([Example(array, np.zeros_like(array))]).to(model.device)


def require_room(model: Model, ids: Sequence[int] | np.ndarray, note: str = "") -> None:
    """Raise ``InputError`` if a text has too many ids for a model; see ``text_batch``."""
    longest = model.config.max_length
    if longest is not None and len(ids) > longest:
        raise InputError(
            "the text has {count:,} tokens{note}; the model takes at most {longest:,}",
            len(ids),
            note,
            longest,
        )


def require_layers(layers: Iterable[int], count: int) -> None:
    """Raise ``InputError`` if one of ``layers`` is not among ``count`` layers."""
    for layer in layers:
        if layer not in range(count):
            raise InputError(
                "there is no layer {layer}; the layers are 0..{count}", layer, count - 1
            )


def ranges(numbers: Iterable[int]) -> str:
    """Format 0, 1, 2, 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def masked_words(model: Model, example: Example) -> np.ndarray:
    """(masks, V) probabilities of the masked words."""
    with evaluating(model), torch.inference_mode():
        logits = model(pack([example]).to(model.device), ["mlm"]).logits["mlm"]
    return logits.float().softmax(-1).cpu().numpy()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode; then restore each module's previous mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def observing_attend(attention: nn.Module, observer: AttendObserver) -> Iterator[None]:
    """Call ``observer`` with queries, keys and values (T, H, K), the context and the layer.

    These are arguments of ``Attention.attend``, which module hooks do not see.
    """
    attend: Any = attention.attend

    def observed(q: Tensor, k: Tensor, v: Tensor, context: Context, layer: int) -> Tensor:
        observer(q, k, v, context, layer)
        return attend(q, k, v, context, layer)

    object.__setattr__(attention, "attend", observed)
    try:
        yield
    finally:
        object.__delattr__(attention, "attend")
