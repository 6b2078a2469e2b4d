"""The losses that the familiar face computes when it is given labels.

B sequences, S places, V vocabulary, C labels. -100 stands for a place without a label.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.errors import InputError

NO_LABEL = -100
REGRESSION = "regression"
ONE_LABEL = "single_label_classification"
MANY_LABELS = "multi_label_classification"


def masked_lm(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of (B, S, V) at the places with a label."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=NO_LABEL)


def causal_lm(logits: Tensor, labels: Tensor, count: Any = None) -> Tensor:
    """Cross entropy of the next token; summed and divided by ``count`` if that is given."""
    targets = F.pad(labels, (0, 1), value=NO_LABEL)[..., 1:]
    total = F.cross_entropy(
        logits.float().flatten(0, -2),
        targets.flatten(),
        ignore_index=NO_LABEL,
        reduction="mean" if count is None else "sum",
    )
    return total if count is None else total / count


def one_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of (..., C) and labels (...)."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def sequence(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """Loss of a text's labels by ``config.problem_type``, which is found from the labels if None.

    One output: squared error; whole numbers: cross entropy; otherwise a binary cross entropy each.
    """
    if config.problem_type is None:
        whole = labels.dtype in (torch.long, torch.int)
        several = ONE_LABEL if whole else MANY_LABELS
        config.problem_type = REGRESSION if logits.shape[-1] == 1 else several
    if config.problem_type == REGRESSION:
        return F.mse_loss(logits.squeeze(), labels.squeeze())
    if config.problem_type == ONE_LABEL:
        return one_of(logits, labels)
    if config.problem_type == MANY_LABELS:
        return F.binary_cross_entropy_with_logits(logits, labels)
    raise InputError(
        f"problem_type {config.problem_type!r} is not known; one of "
        f"{REGRESSION}, {ONE_LABEL}, {MANY_LABELS}"
    )


def span(start: Tensor, end: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Mean of the losses of where an answer starts and ends (B, S); places past S do not count."""
    size = start.shape[1]
    losses = [
        F.cross_entropy(logits, _column(places).clamp(0, size), ignore_index=size)
        for logits, places in ((start, starts), (end, ends))
    ]
    return (losses[0] + losses[1]) / 2


def _column(places: Tensor) -> Tensor:
    return places.squeeze(-1) if places.ndim > 1 else places


def replaced(logits: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Binary cross entropy of (B, S) at the tokens: was this one replaced?"""
    labels = labels.float()
    if attention_mask is not None:
        seen = attention_mask == 1
        logits, labels = logits[seen], labels[seen]
    return F.binary_cross_entropy_with_logits(logits, labels)
