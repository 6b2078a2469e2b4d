"""Translation with a trained folder: streams texts, or translates files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert import limits
from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import model_checksums
from ownbert.checks import between, whole
from ownbert.exceptions import InputError, warn_of_input
from ownbert.files.input_files import refuse_same
from ownbert.files.resumable_file import ResumableFile, first_read, identity_of
from ownbert.files.text_files import open_text, refuse_unreadable
from ownbert.hub import model_folder
from ownbert.nn.prepack import prepack
from ownbert.objectives.span_corruption_lm import decoder_start_id
from ownbert.train.device import autocast, pick_device, pick_precision
from ownbert.translation.generate import Hypothesis, beam_search, greedy
from ownbert.translation.translation_folder import load_translation
from ownbert.translation.translation_pairs import encode_sources
from ownbert.translation.translation_recipe import LENGTH_PENALTY
from ownbert.translation.vocabulary import load_vocabularies

# Texts sorted by length at a time, so that those of a batch have similar lengths.
_BLOCK_TEXTS = 512


class Translator:
    """A translation model with its vocabularies, loaded from a folder.

    Args:
        folder: model folder.
        beams: width of the beam search; 1 is greedy.
        length_penalty: see ``ownbert.translation.generate.beam_search``.
        max_length: maximum tokens of a translation; by default twice the source length plus 20.
        batch_tokens: maximum source tokens times beams per batch.
        device: auto, cpu or cuda.
        precision: float32, bfloat16 or auto.
        cached: whether to cache keys and values of generated tokens, with the same results.

    Raises:
        InputError: a value is out of range, or the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        beams: int = 4,
        length_penalty: float = LENGTH_PENALTY,
        max_length: int | None = None,
        batch_tokens: int = 8192,
        device: str = "auto",
        precision: str = "float32",
        cached: bool = True,
    ) -> None:
        between(1, limits.BEAMS, "[]")("beams", beams)
        between(1, limits.BATCH_TOKENS, "[]")("batch_tokens", batch_tokens)
        if max_length is not None:
            between(1, limits.LENGTH, "[]")("max_length", max_length)
        most = limits.LENGTH_PENALTY
        between(-most, most, "[]")("length_penalty", length_penalty)
        if beams == 1 and length_penalty != LENGTH_PENALTY:
            warn_of_input(
                "{--length-penalty} has no effect with {--beams 1}, which makes only one "
                "translation"
            )
        self.folder = model_folder(folder)
        self.beams, self.penalty, self.max_length = beams, length_penalty, max_length
        self.batch_tokens, self.cached = batch_tokens, cached
        self.device = pick_device(device)
        self.precision = pick_precision(precision, self.device)
        model, values = load_translation(self.folder)
        self.source, self.target = load_vocabularies(self.folder)
        vocab_size = max(self.source.vocab_size, self.target.vocab_size)
        if vocab_size > model.config.vocab_size:
            raise InputError(
                "{folder}: the vocabulary has {vocab_size} tokens, the model only "
                "{config_vocab_size}; they do not belong together",
                folder,
                vocab_size,
                model.config.vocab_size,
            )
        start = decoder_start_id(self.target)
        self.start = _token_id(folder, values, "decoder_start_token_id", start)
        self.end = _token_id(folder, values, "eos_token_id", self.target.sep_id)
        self.packed = self.device.type == "cpu"
        self.model = prepack(model, self.precision) if self.packed else model.to(self.device)

    def __call__(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the translations in the order of the texts; a blank text gives "".

        Raises:
            InputError: a single string is given.
        """
        if isinstance(texts, str):
            raise InputError("texts is one string; give a list of texts")
        for block in self.blocks(texts):
            yield from self.translate_block(block)

    def blocks(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Split texts into blocks that are translated together.

        A resumed file must use the same blocks, because other batches may round differently.
        """
        rest = iter(texts)
        while block := list(islice(rest, _BLOCK_TEXTS)):
            yield block

    def translate_block(self, texts: Sequence[str]) -> list[str]:
        """Translate a block; a blank text gives ""."""
        return ["" if best is None else self.detokenize(best) for best in self.hypotheses(texts)]

    def settings(self) -> dict[str, Any]:
        """The settings that the translations depend on."""
        names = "beams", "penalty", "max_length", "batch_tokens", "precision"
        return {name: getattr(self, name) for name in names}

    def detokenize(self, hypothesis: Hypothesis) -> str:
        """The text of a hypothesis, without special tokens."""
        return self.target.decode(hypothesis.ids, skip_special_tokens=True).strip()

    def hypotheses(self, texts: Sequence[str]) -> list[Hypothesis | None]:
        """The best hypothesis for each text, with its score; None for a blank text."""
        rows = encode_sources(texts, self.source)
        results: list[Hypothesis | None] = [None] * len(texts)
        sizes = [len(row) for row in rows]
        around = len(self.source.start_ids) + 1
        order = [i for i in np.argsort(sizes, kind="stable") if sizes[i] > around]
        for numbers in self._batches(order, rows):
            for i, best in zip(numbers, self._search([rows[i] for i in numbers]), strict=True):
                results[i] = best
        return results

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
        options: dict[str, Any] = {
            "start": self.start,
            "end": self.end,
            "longest": [self.max_length or 2 * len(row) + 20 for row in rows],
            "cached": self.cached,
        }
        precision = "float32" if self.packed else self.precision
        with autocast(self.device, precision), torch.inference_mode():
            if self.beams == 1:
                return greedy(self.model, batch, **options)
            options |= {"beams": self.beams, "length_penalty": self.penalty}
            return beam_search(self.model, batch, **options)


def translate_file(
    translator: Translator,
    input: str | Path | Iterable[str],
    output: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Translate the lines of a file, or texts, into one line each; return their number.

    ``output`` is written completely or not at all, compressed if its name ends with .gz. For a
    file, translations of an interrupted run are kept beside ``output``, and ``resume`` continues
    there.

    Raises:
        InputError: a file cannot be read or written, or, with ``resume``, the model, the input or
            the search settings differ.
    """
    identity = None
    refuse_same([translator.folder, input], output)
    if isinstance(input, str | Path):
        path = Path(input)
        refuse_unreadable(path)
        identity = {
            "format": 1,
            "model": model_checksums(translator.folder),
            "input": identity_of(path),
            "search": translator.settings(),
        }
        texts = (text for _, text in open_text(path))
    elif resume:
        raise InputError("only an output file can be resumed; name it, or omit {--resume}")
    else:
        texts = input
    blocks = first_read(translator.blocks(texts))
    file = ResumableFile(output, identity, resume=resume)

    def lines(block: Sequence[str]) -> list[str]:
        return [f"{one_line(text)}\n" for text in translator.translate_block(block)]

    return file.fill(blocks, lines, progress)


def one_line(text: str) -> str:
    """Remove line breaks, which a model may generate, from a text."""
    return " ".join(text.splitlines())


def _token_id(folder: str | Path, values: Mapping[str, Any], key: str, default: int) -> int:
    """A token id in config.json, which must be in the vocabulary."""
    token = default if values.get(key) is None else values[key]
    size = values.get("decoder_vocab_size") or values["vocab_size"]
    whole(0, size - 1)(f"{Path(folder) / CONFIG}: {key}", token)
    return token
