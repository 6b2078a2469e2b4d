"""The losses of models with Transformers' API.

B sequences, S longest sequence, V vocabulary, C classes. The label -100 is ignored.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.checks import known, maybe
from ownbert.exceptions import InputError
from ownbert.transformers.padded_inputs import check_range, check_shape

NO_LABEL = -100
REGRESSION, ONE_LABEL = "regression", "single_label_classification"
MANY_LABELS = "multi_label_classification"
check_problem = maybe(known(REGRESSION, ONE_LABEL, MANY_LABELS))


def class_labels(
    name: str, labels: Tensor, shape: tuple[int, ...], classes: int, ignored: int = NO_LABEL
) -> Tensor:
    """Flatten labels; raise ``InputError`` for a wrong shape, dtype or class."""
    if labels.numel() != math.prod(shape):
        check_shape(name, labels, tuple(shape))
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            "{name} contains {dtype}; it must contain whole numbers, torch.long", name, labels.dtype
        )
    if labels.device.type == "cpu":
        check_range(name, labels[labels != ignored], classes, "classes")
    return labels.flatten().long()


def causal_lm(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of the next token."""
    class_labels("labels", labels, logits.shape[:-1], logits.shape[-1])
    targets = F.pad(labels.long(), (0, 1), value=NO_LABEL)[..., 1:]
    return cross_entropy(logits.float(), targets)


def cross_entropy(logits: Tensor, labels: Tensor, name: str = "labels") -> Tensor:
    """Mean cross entropy of logits (..., C) and labels (...)."""
    targets = class_labels(name, labels, logits.shape[:-1], logits.shape[-1])
    return F.cross_entropy(logits.flatten(0, -2), targets, ignore_index=NO_LABEL)


def sequence(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """The loss for logits (B, C) and labels of sequences, selected by ``config.problem_type``.

    If this is None, it is set: regression (mean squared error) for a single output, single-label
    (cross entropy) for integer labels, else multi-label (binary cross entropy).
    """
    if config.problem_type is None:
        integers = labels.dtype in (torch.long, torch.int)
        several = ONE_LABEL if integers else MANY_LABELS
        config.problem_type = REGRESSION if logits.shape[-1] == 1 else several
    check_problem("problem_type", config.problem_type)
    if config.problem_type == ONE_LABEL:
        return cross_entropy(logits, labels)
    if labels.numel() != logits.numel():
        raise InputError(
            "labels has shape {shape}; for {problem_type} it must be {logits_shape}",
            tuple(labels.shape),
            config.problem_type,
            tuple(logits.shape),
        )
    targets = labels.view(logits.shape).to(logits.dtype)
    if config.problem_type == REGRESSION:
        return F.mse_loss(logits, targets)
    return F.binary_cross_entropy_with_logits(logits, targets)


def sequence_by_shape(logits: Tensor, labels: Tensor) -> Tensor:
    """DeBERTa's loss for logits (B, C) if ``config.problem_type`` is None.

    Regression (mean squared error) for a single output; cross entropy for class indices (B) or
    (B, 1), ignoring negative ones; or cross entropy with distributions (B, C).
    """
    count = logits.shape[-1]
    if labels.numel() not in (len(logits), logits.numel()):
        check_shape("labels", labels, (len(logits),), tuple(logits.shape))
    if count == 1:
        return F.mse_loss(logits.view(-1).to(labels.dtype), labels.view(-1))
    if labels.ndim > 1 and labels.shape[-1] > 1:
        return -(logits.log_softmax(-1) * labels).sum(-1).mean()
    classes = labels.flatten()
    labelled = classes >= 0
    if not bool(labelled.any()):
        return logits.new_zeros(())
    return cross_entropy(logits[labelled].float(), classes[labelled])


def span(values: Mapping[str, Tensor], given: Mapping[str, Any]) -> Tensor | None:
    """Mean of the cross entropies of an answer's start and end; None if neither is given.

    Args:
        values: (B, S) start_logits and end_logits.
        given: (B) start_positions and end_positions; positions beyond S are ignored.
    """
    losses = []
    missing = [given.get(f"{name}_positions") is None for name in ("start", "end")]
    if all(missing):
        return None
    if any(missing):
        raise InputError("give both start_positions and end_positions, or neither")
    for name in ("start", "end"):
        logits, positions = values[f"{name}_logits"], f"{name}_positions"
        rows, size = logits.shape
        targets = class_labels(positions, given[positions].clamp(0, size), (rows,), size, size)
        losses.append(F.cross_entropy(logits, targets, ignore_index=size))
    return (losses[0] + losses[1]) / 2


def replaced(logits: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean binary cross entropy of logits (B, S) over non-padding tokens."""
    check_shape("labels", labels, tuple(logits.shape))
    labels = labels.float()
    if attention_mask is not None:
        seen = attention_mask == 1
        logits, labels = logits[seen], labels[seen]
    return F.binary_cross_entropy_with_logits(logits, labels)
