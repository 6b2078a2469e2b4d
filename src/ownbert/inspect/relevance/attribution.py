"""Which tokens, or patches of a picture, a model's answer rests on.

Attention maps alone (rollout), and with the gradient of the score of a class. T tokens, B
sequences, S tokens of one, H heads, C classes, D hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ownbert.data.batch import Batch
from ownbert.errors import InputError
from ownbert.nn.context import Context
from ownbert.nn.model import Model


@dataclass(frozen=True)
class Kept:
    """What was kept of a pass forwards and, for ``gradients``, backwards.

    attentions, gradients: by layer, then one (H, S, S) a sequence; the gradient is that of the
    score of the sequence's class. logits (B, C), targets (B).
    """

    attentions: Mapping[int, list[Tensor]]
    gradients: Mapping[int, list[Tensor]]
    logits: Tensor
    targets: Tensor


def attention_and_gradient(
    model: Model,
    batch: Batch,
    *,
    keep_attention: Sequence[int] | None = None,
    target: int | str | Sequence[int] | Tensor | None = None,
    head: str = "classification",
) -> Kept:
    """The attention maps of chosen layers and the gradients of each sequence's score by them.

    keep_attention: layers from 0, by default all. target: class by number or label, for all or
    one a sequence; by default the one with the highest score. One pass in each direction, without
    dropout, however many sequences there are: they do not see each other.
    """
    if head not in model.heads:
        raise InputError(f"the model has no head {head!r} whose score could be traced back")
    kept = frozenset(_layers(model, keep_attention))
    plain = model.encoder.plain_context(batch)
    context = Context(plain.layout, plain.positions, keep=kept, differentiable=True)
    training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            logits = model(batch, [head], context=context).logits[head]  # (B, C)
            targets = _targets(model, logits.detach(), target)
            score = logits.gather(1, targets[:, None]).sum()
            maps = [(i, b, a) for i in sorted(kept) for b, a in enumerate(context.attentions[i])]
            # A layer after which only other tokens count has no gradient.
            found = torch.autograd.grad(score, [a for *_, a in maps], materialize_grads=True)
    finally:
        model.train(training)
    attentions: dict[int, list[Tensor]] = {i: [] for i in sorted(kept)}
    gradients: dict[int, list[Tensor]] = {i: [] for i in sorted(kept)}
    for (layer, _, attention), gradient in zip(maps, found, strict=True):
        attentions[layer].append(attention.detach())
        gradients[layer].append(gradient)
    return Kept(attentions, gradients, logits.detach(), targets)


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """How much of each token reaches each other one: the layers' maps (H, S, S) -> (S, S).

    Abnar and Zuidema 2020, section 3: heads are averaged, half of every token is what it was (the
    residual connection), and the layers are multiplied. Rows sum to 1; row 0 is the first token's.
    """
    flow = _identity(attentions[0])
    for attention in attentions:
        mixed = attention.float().mean(0) + _identity(attention)
        flow = mixed / mixed.sum(-1, keepdim=True) @ flow
    return flow


def relevance(attentions: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """What each token means for each other one with regard to a score: (H, S, S) a layer -> (S, S).

    Chefer, Gur and Wolf 2021 ("Generic Attention-model Explainability"), equations 5 and 6: R is
    the identity at first, and every layer adds the mean over heads of the positive part of
    gradient x attention, times R.
    """
    found = _identity(attentions[0])
    for attention, gradient in zip(attentions, gradients, strict=True):
        found = found + (attention.float() * gradient.float()).clamp(min=0).mean(0) @ found
    return found


def gradient_relevance(
    model: Model,
    batch: Batch,
    target: int | str | Sequence[int] | Tensor | None = None,
    *,
    layers: Sequence[int] | None = None,
    head: str = "classification",
) -> list[Tensor]:
    """The relevance (S) of the tokens of each sequence for a class: the first token's row.

    The first token, on which heads stand, is among them with the 1 that it starts from; of a
    picture the patches follow, row by row (``over_patches``). target and layers: as ``target``
    and ``keep_attention`` of ``attention_and_gradient``.
    """
    kept = attention_and_gradient(model, batch, keep_attention=layers, target=target, head=head)
    return first_rows(kept)


def first_rows(kept: Kept) -> list[Tensor]:
    """The first token's row (S) of each sequence's relevance."""
    return [
        relevance(
            [maps[b] for maps in kept.attentions.values()],
            [maps[b] for maps in kept.gradients.values()],
        )[0]
        for b in range(len(kept.targets))
    ]


def over_patches(row: Tensor, model: Model) -> Tensor:
    """What a row (S) says of each patch, as they lie in the picture: (down, across)."""
    image = model.config.image
    if image is None:
        raise InputError("the model reads words: there are no patches")
    return row[1:].unflatten(0, image.grid)


def class_number(model: Model, label: str) -> int:
    """The number of a class by its label. ``InputError`` names the labels that there are."""
    if label not in model.labels:
        raise InputError(f"the model has no class {label!r}; one of {', '.join(model.labels)}")
    return model.labels.index(label)


def _layers(model: Model, asked: Sequence[int] | None) -> list[int]:
    count = len(model.encoder.schedule())
    layers = list(range(count)) if asked is None else list(asked)
    wrong = [layer for layer in layers if layer not in range(count)]
    if wrong or not layers:
        named = f"no layer {wrong[0]}" if wrong else "no layers to keep the attention of"
        raise InputError(f"there is {named}; the layers are 0..{count - 1}")
    return layers


def _targets(
    model: Model, logits: Tensor, target: int | str | Sequence[int] | Tensor | None
) -> Tensor:
    """The class (B) of each sequence."""
    if target is None:
        return logits.argmax(-1)
    if isinstance(target, str):
        target = class_number(model, target)
    there = f"0..{logits.shape[1] - 1}"
    try:
        classes = torch.as_tensor(target, device=logits.device)
    except (TypeError, ValueError, RuntimeError):  # names, rows of several lengths, huge numbers
        raise InputError(f"target must be numbers of classes, {there}, or a label") from None
    if classes.shape not in ((), (len(logits),)):
        raise InputError(
            f"target has the shape {tuple(classes.shape)}, and there are {len(logits)} sequences; "
            "it must be one class, or one a sequence"
        )
    if classes.dtype == torch.bool or classes.is_floating_point() or classes.is_complex():
        kind = str(classes.dtype).removeprefix("torch.")
        raise InputError(f"target holds {kind}; classes are whole numbers, {there}")
    wrong = [c for c in classes.flatten().tolist() if c not in range(logits.shape[1])]
    if wrong:
        raise InputError(f"there is no class {wrong[0]}; they are {there}")
    return classes.long().expand(len(logits))


def _identity(attention: Tensor) -> Tensor:
    return torch.eye(attention.shape[-1], device=attention.device)
