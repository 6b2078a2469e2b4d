"""Relevance of tokens, or of image patches, for a model's prediction.

From attention maps alone (rollout), or with the gradient of a class logit. B sequences, S tokens
of a sequence, H heads, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.inspect.internals.observing import evaluating, require_layers
from ownbert.nn.context import AsPacked
from ownbert.nn.model import Model


@dataclass(frozen=True)
class AttentionGradients:
    """Attention maps, and gradients of each sequence's class logit with respect to them: by layer,
    one (H, S, S) per sequence; logits (B, C), and the class (B) of each sequence; None if something
    else than class logits was explained."""

    attentions: Mapping[int, list[Tensor]]
    gradients: Mapping[int, list[Tensor]]
    logits: Tensor
    targets: Tensor | None = None

    def of(self, sequence: int) -> tuple[list[Tensor], list[Tensor]]:
        """The maps and gradients of a sequence, one of each per layer."""
        attentions, gradients = (
            [each[sequence] for each in by_layer.values()]
            for by_layer in (self.attentions, self.gradients)
        )
        return attentions, gradients


def attention_and_gradient(
    model: Model,
    batch: Batch,
    *,
    keep_attention: Sequence[int] | None = None,
    target: int | str | Sequence[int] | Tensor | None = None,
    head: str = "classification",
) -> AttentionGradients:
    """Compute attention maps of some layers, and gradients of class logits with respect to them.

    Takes one forward and one backward pass without dropout for any number of sequences, because
    sequences do not attend to each other.

    Args:
        model: model with the head.
        batch: batch of B sequences.
        keep_attention: layers from 0; by default all.
        target: a class by index or label, for all sequences or one for each; by default the
            predicted one.
        head: head of the logits.

    Raises:
        InputError: the head, layer or class does not exist.
    """
    if head not in model.heads:
        raise InputError("the model has no head {head!r} whose score could be explained", head)
    layers = sorted(set(_layers(model, keep_attention)))

    def score(logits: Tensor) -> Tensor:
        return logits.gather(1, _targets(model, logits.detach(), target)[:, None]).sum()

    maps = gradients_of(score, model, batch, head, layers)
    return replace(maps, targets=_targets(model, maps.logits, target))


def gradients_of(
    score: Callable[[Tensor], Tensor], model: Model, batch: Batch, head: str, layers: Sequence[int]
) -> AttentionGradients:
    """Compute attention maps of ``layers``, and the gradients of a score of the head's logits."""
    context = replace(
        model.encoder.plain_context(batch), keep=frozenset(layers), returned=AsPacked()
    )
    with evaluating(model), torch.enable_grad():
        logits = model(batch, [head], context=context).logits[head]
        maps = {layer: context.attentions[layer] for layer in layers}
        flat = [each for own in maps.values() for each in own]
        # A layer that does not affect the score has no gradient.
        grads = iter(torch.autograd.grad(score(logits), flat, materialize_grads=True))
    return AttentionGradients(
        {layer: [each.detach() for each in own] for layer, own in maps.items()},
        {layer: [next(grads) for _ in own] for layer, own in maps.items()},
        logits.detach(),
    )


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """Attention rollout (S, S): how much of each token (column) reaches each token (row), from
    attentions (H, S, S) of each layer.

    Heads are averaged, the identity gets half of the weight (residual connection), and layers are
    multiplied. Rows sum to 1.

    Source: Abnar and Zuidema 2020, section 3.
    """
    flow = _identity(attentions[0])
    for attention in attentions:
        mixed = attention.float().mean(0) + _identity(attention)
        flow = mixed / mixed.sum(-1, keepdim=True) @ flow
    return flow


def relevance(attentions: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """The relevance R (S, S) of each token (column) to each token (row) for a logit, from
    attentions (H, S, S) of each layer and gradients of the logit with respect to them.

    R starts as the identity, and every layer adds the mean over heads of the positive part of
    gradient x attention, times R.

    Source: Chefer, Gur and Wolf 2021 ("Generic Attention-model Explainability"), equations 5, 6.
    """
    total = _identity(attentions[0])
    for attention, gradient in zip(attentions, gradients, strict=True):
        total = total + (attention.float() * gradient.float()).clamp(min=0).mean(0) @ total
    return total


def gradient_relevance(
    model: Model,
    batch: Batch,
    target: int | str | Sequence[int] | Tensor | None = None,
    *,
    layers: Sequence[int] | None = None,
    head: str = "classification",
) -> list[Tensor]:
    """The relevance (S) of each sequence's tokens for a class: the first token's row; arguments as
    of ``attention_and_gradient``.

    Heads read the first token, whose initial relevance of 1 is included; for an image, its patches
    follow row by row (``over_patches``).
    """
    return first_rows(
        attention_and_gradient(model, batch, keep_attention=layers, target=target, head=head)
    )


def first_rows(maps: AttentionGradients) -> list[Tensor]:
    """The first token's row (S) of each sequence's relevance."""
    return [relevance(*maps.of(b))[0] for b in range(len(maps.logits))]


def class_number(model: Model, label: str) -> int:
    """The index of a class by its label; the message for an unknown one lists the known ones."""
    known(*model.labels)("class", label)
    return model.labels.index(label)


def _layers(model: Model, chosen: Sequence[int] | None) -> list[int]:
    count = len(model.encoder.schedule())
    layers = list(range(count)) if chosen is None else list(chosen)
    require_layers(layers, count)
    if not layers:
        raise InputError("there are no layers to keep; the layers are 0..{count}", count - 1)
    return layers


def _targets(
    model: Model, logits: Tensor, target: int | str | Sequence[int] | Tensor | None
) -> Tensor:
    """The class index (B) of each sequence."""
    if target is None:
        return logits.argmax(-1)
    if isinstance(target, str):
        target = class_number(model, target)
    valid = f"0..{logits.shape[1] - 1}"
    try:
        classes = torch.as_tensor(target, device=logits.device)
    except (TypeError, ValueError, RuntimeError):  # names, ragged lists, huge numbers
        raise InputError("target must be numbers of classes, {valid}, or a label", valid) from None
    if classes.shape not in ((), (len(logits),)):
        raise InputError(
            "target has the shape {shape}, and there are {count} sequences; it must be one "
            "class, or one per sequence",
            tuple(classes.shape),
            len(logits),
        )
    if classes.dtype == torch.bool or classes.is_floating_point() or classes.is_complex():
        kind = str(classes.dtype).removeprefix("torch.")
        raise InputError("target contains {kind}; classes are whole numbers, {valid}", kind, valid)
    wrong = [c for c in classes.flatten().tolist() if c not in range(logits.shape[1])]
    if wrong:
        raise InputError("there is no class {wrong}; the classes are {valid}", wrong[0], valid)
    return classes.long().expand(len(logits))


def _identity(attention: Tensor) -> Tensor:
    return torch.eye(attention.shape[-1], device=attention.device)
