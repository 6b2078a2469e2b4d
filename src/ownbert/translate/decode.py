"""Translate with a trained folder: texts in, texts out, streamed."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.checkpoint.translation import load_translation
from ownbert.data.batch import Example, pack
from ownbert.errors import InputError
from ownbert.nn.generate import Hypothesis, beam_search, greedy
from ownbert.nn.kernels.prepack import prepack
from ownbert.train.device import autocast, pick_device, pick_precision
from ownbert.translate.pairs import sources_of
from ownbert.translate.vocabulary import load_vocabularies

# Beyond this there is nothing but the longest, or the shortest.
_PENALTIES = 10

# Texts that are sorted by length together, so that those of a batch are alike.
_AT_ONCE = 512


class Translator:
    """A trained folder, ready to translate.

    beams: 1 is greedy. length_penalty: see ``ownbert.nn.generate.beam_search``. max_length: of a
    translation in tokens; by default twice that of the source and 20 more. batch_tokens: how many
    tokens of sources, times beams, are translated together. cached: keep keys and values of what is
    written (the result is the same without).
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        beams: int = 4,
        length_penalty: float = 0.6,
        max_length: int | None = None,
        batch_tokens: int = 8192,
        device: str = "auto",
        precision: str = "float32",
        cached: bool = True,
    ) -> None:
        for name, value in (("beams", beams), ("batch_tokens", batch_tokens)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more")
        if max_length is not None and max_length < 1:
            raise InputError(f"max_length is {max_length}; it must be 1 or more")
        if not abs(length_penalty) <= _PENALTIES:
            raise InputError(
                f"length_penalty is {length_penalty}; it must be in [-{_PENALTIES}, {_PENALTIES}]"
            )
        self.folder = Path(folder)
        self.beams, self.penalty, self.max_length = beams, length_penalty, max_length
        self.batch_tokens, self.cached = batch_tokens, cached
        self.device = pick_device(device)
        self.precision = pick_precision(precision, self.device)
        model, values = load_translation(folder)
        self.source, self.target = load_vocabularies(self.folder)
        words = max(self.source.vocab_size, self.target.vocab_size)
        if words > model.config.vocab_size:
            raise InputError(
                f"{folder}: the vocabulary has {words} tokens, the model only "
                f"{model.config.vocab_size}; they are not of one model"
            )
        self.start = values.get("decoder_start_token_id", self.target.cls_id)
        self.end = values.get("eos_token_id", self.target.sep_id)
        self.packed = self.device.type == "cpu"
        self.model = prepack(model, self.precision) if self.packed else model.to(self.device)

    def __call__(self, texts: Iterable[str]) -> Iterator[str]:
        """The translations in the order of the texts; that of a blank text is empty."""
        if isinstance(texts, str):
            raise InputError("texts is one string; give a list of texts")
        for block in self.blocks(texts):
            yield from self.block(block)

    def blocks(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """The texts that are translated together: by them, results are the same to the last bit."""
        rest = iter(texts)
        while block := list(islice(rest, _AT_ONCE)):
            yield block

    def block(self, texts: Sequence[str]) -> list[str]:
        """The translations of a few texts; that of a blank text is empty."""
        return ["" if found is None else self.text(found) for found in self.written(texts)]

    def settings(self) -> dict[str, Any]:
        """What else the translations depend on."""
        names = "beams", "penalty", "max_length", "batch_tokens", "precision"
        return {name: getattr(self, name) for name in names}

    def text(self, written: Hypothesis) -> str:
        return self.target.decode(written.ids, skip_special_tokens=True).strip()

    def written(self, texts: Sequence[str]) -> list[Hypothesis | None]:
        """Ids and scores; None for a blank text."""
        rows = sources_of(texts, self.source)
        found: list[Hypothesis | None] = [None] * len(texts)
        order = [
            i for i in np.argsort([len(row) for row in rows], kind="stable") if len(rows[i]) > 2
        ]
        for numbers in self._batches(order, rows):
            for i, written in zip(numbers, self._search([rows[i] for i in numbers]), strict=True):
                found[i] = written
        return found

    def _batches(self, order: Sequence[int], rows: Sequence[np.ndarray]) -> Iterator[list[int]]:
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) + 1) * len(rows[i]) * self.beams > self.batch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _search(self, rows: Sequence[np.ndarray]) -> list[Hypothesis]:
        batch = pack([Example(row, np.zeros_like(row)) for row in rows]).to(self.device)
        asked: dict[str, Any] = {
            "start": self.start,
            "end": self.end,
            "longest": [self.max_length or 2 * len(row) + 20 for row in rows],
            "cached": self.cached,
        }
        precision = "float32" if self.packed else self.precision
        with autocast(self.device, precision), torch.inference_mode():
            if self.beams == 1:
                return greedy(self.model, batch, **asked)
            many = {"beams": self.beams, "length_penalty": self.penalty}
            return beam_search(self.model, batch, **asked, **many)
