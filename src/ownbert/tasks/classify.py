"""Classification: one label a text. B sequences, C labels."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ownbert.data.batch import Example, pack
from ownbert.data.sampling import labels_per_class
from ownbert.data.tables import LabelledRow, place, read_labelled
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.machine import autocast

# Tokens in one forward pass, and rows encoded and sorted by length at a time.
_BATCH_TOKENS = 8192
_ROWS = 2048


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as ids with [CLS] and [SEP], their label numbers, and how many were cut to fit."""

    ids: list[np.ndarray]
    labels: np.ndarray
    cut: int

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.asarray([len(ids) for ids in self.ids])

    def identity(self) -> str:
        """What tells these texts and labels from others."""
        digest = hashlib.sha256(self.labels.tobytes())
        for ids in self.ids:
            digest.update(ids.tobytes())
        return f"{len(self):,} texts ({digest.hexdigest()[:12]})"

    def example(self, epoch: int, index: int) -> Example:
        ids = self.ids[index]
        return Example(ids, np.zeros_like(ids), label=int(self.labels[index]))


def read_training(
    path: str | Path,
    *,
    text_column: str | None,
    label_column: str | None,
    per_class: int | None,
    seed: int,
) -> tuple[list[LabelledRow], tuple[str, ...]]:
    """Training rows (``per_class`` of each label, or all) and the labels in order.

    Labels that are all whole numbers are ordered as numbers. Raises ``InputError`` where there
    are not at least two.
    """
    rows = read_labelled(path, text_column=text_column, label_column=label_column)
    names = {row.label for row in rows}
    if len(names) < 2:
        raise InputError(f"{path}: all rows have the label {names.pop()!r}; at least two needed")
    if per_class is not None:
        rows = [rows[i] for i in labels_per_class([r.label for r in rows], per_class, seed)]
    numbers = all(name.lstrip("-").isdecimal() for name in names)
    return rows, tuple(sorted(names, key=(lambda n: (int(n), n)) if numbers else None))


def label_numbers(
    rows: Sequence[LabelledRow], labels: Sequence[str], *, source: str | Path, known: str
) -> np.ndarray:
    """Label numbers of rows. Raises ``InputError`` with file and line for a label that ``known``
    (what was learnt from) does not have."""
    number = {label: i for i, label in enumerate(labels)}
    for row in rows:
        if row.label not in number:
            shown = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
            raise InputError(
                f"{place(source, row.line)}: label {row.label!r} is not in {known}, "
                f"which has {shown}"
            )
    return np.asarray([number[row.label] for row in rows], dtype=np.int64)


def encode(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int | None
) -> tuple[list[np.ndarray], int]:
    """Ids with [CLS] and [SEP] of at most ``max_length`` tokens, and how many were cut."""
    ids, cut = [], 0
    room = None if max_length is None else max_length - 2
    for piece in tokenizer.encode_batch(texts):
        cut += room is not None and len(piece) > room
        inner = piece[:room]
        ids.append(np.asarray([tokenizer.cls_id, *inner, tokenizer.sep_id], dtype=np.int64))
    return ids, cut


@torch.inference_mode()
def probabilities(model: Model, ids: Sequence[np.ndarray], *, precision: str) -> np.ndarray:
    """(N, C) float32, in the order given; sorted by length and packed inside."""
    model.eval()
    order = np.argsort([len(i) for i in ids], kind="stable")
    out = np.empty((len(ids), len(model.labels)), dtype=np.float32)
    for chosen in by_tokens(order, [len(i) for i in ids]):
        batch = pack([Example(ids[i], np.zeros_like(ids[i])) for i in chosen]).to(model.device)
        with autocast(model.device, precision):
            logits = model(batch, ["classification"]).logits["classification"]  # (B, C)
        out[chosen] = logits.float().softmax(-1).cpu().numpy()
    return out


def by_tokens(
    order: np.ndarray, lengths: Sequence[int], most: int = _BATCH_TOKENS
) -> Iterator[np.ndarray]:
    """Indices of texts in ``order`` by batch, of so many tokens; a longer text is one by itself."""
    start = tokens = 0
    for end, index in enumerate(order):
        if tokens and tokens + lengths[index] > most:
            yield order[start:end]
            start, tokens = end, 0
        tokens += lengths[index]
    if start < len(order):
        yield order[start:]


def cut_warning(cut: int, total: int, max_length: int, what: str) -> str:
    """What to tell of texts that were too long."""
    return (
        f"warning: {cut:,} of {total:,} {what} are longer than the model's {max_length} tokens "
        "and are cut there"
    )


def blocks(
    texts: Iterable[str], rows: int = _ROWS, characters: float = math.inf
) -> Iterator[list[str]]:
    """Texts by the block of so many or so long, for input that need not fit in memory."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if len(block) == rows or size >= characters:
            yield block
            block, size = [], 0
    if block:
        yield block
