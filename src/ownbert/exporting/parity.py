"""Compares the outputs of an exported file and its model on the same texts.

B texts, S longest text, T tokens, C choices.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.batches.batch import pack
from ownbert.batches.example import Example, padded, split_sequences
from ownbert.checkpoint import Description, load_tokenizer
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.exporting.padded import PaddedModel, named_outputs
from ownbert.inference.engines import Engine
from ownbert.inference.vector_files import records_of
from ownbert.nn.model import Model
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.task import NoTaskHead, Task, task_of
from ownbert.tasks.text_input import TextInputBuilder, UnknownWords, join
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import has_tokenizer

# Maximum number of compared texts, and of tokens per text.
MOST_TEXTS, MOST_TOKENS = 256, 1024
CHOICES = 3
# Texts per batch, except the first one, so that at least two shapes are tested.
_BATCH = 8
# Maximum elements of the largest output of a batch, which may have the width of a vocabulary.
_MOST_NUMBERS = 1 << 25
# Sequence lengths for a folder without a tokenizer.
_LENGTHS = (3, 1, 7, 16, 29, 2, 11, 40, 5, 23, 64, 128)


@dataclass
class OutputParity:
    """The deviation of an output of the file from the model's, over the ``values`` of real tokens.

    Cosines are those of vectors: of a token's or text's values or, for scalar outputs, of all
    tokens of a text or all texts of a batch.
    """

    largest_difference: float = 0.0
    least_cosine: float = 1.0
    values: int = 0


@dataclass
class Parity:
    """The results of a comparison: numbers of texts and tokens, the origin of the texts, and the
    deviations by name of the output."""

    texts: int = 0
    tokens: int = 0
    source: str = ""
    outputs: dict[str, OutputParity] = field(default_factory=dict)

    @property
    def largest_difference(self) -> float:
        return float(np.max([one.largest_difference for one in self.outputs.values()]))

    @property
    def least_cosine(self) -> float:
        return float(np.min([one.least_cosine for one in self.outputs.values()]))


@dataclass(frozen=True)
class Sequences:
    """The compared ``examples``, the origin of their texts, and a warning if they do not fit.

    An example is one sequence or, for multiple choice, a question with a sequence per choice.
    """

    examples: Sequence[Example]
    source: str
    warning: str | None = None


def sequences_of(
    description: Description, model: Model, *, data: Any = None, text_column: str | None = None
) -> Sequences:
    """The sequences for comparing a file with its model.

    Args:
        data: file with rows of the folder's task, or of texts if it has none; by default texts
            included in this package, in which random tokens replace unknown ones, or random ids
            without a tokenizer.
    """
    config, folder, choices = model.config, description.folder or Path(), "choice" in model.heads
    longest = min(config.max_length or MOST_TOKENS, MOST_TOKENS)
    if not has_tokenizer(folder):
        if data is not None:
            raise InputError(
                "{folder} has no tokenizer, so texts cannot be read; omit {data}", folder, data
            )
        return Sequences(_random_examples(config, longest), "random ids")
    columns = ColumnNames(text=text_column)
    if data is not None:
        with contextlib.suppress(NoTaskHead):
            task = task_of(description, columns)
            if task.head != "embedding":
                return _sequences_of_rows(task, description, data, longest)
    tokenizer = load_tokenizer(folder, config=config)
    texts, source = _texts(data, columns)
    builder = TextInputBuilder(tokenizer, config, longest)
    ids = builder.ids(texts)
    if data is None:
        unknown = [i == tokenizer.unk_id for one in ids for i in one]
        if 2 * sum(unknown) > len(unknown):
            source = "random tokens of the vocabulary"
        ids = _without_unknown(ids, tokenizer)
    pairs = builder.pair_room >= 2
    examples = []
    for number, first in enumerate(ids):
        others = [ids[(number + i) % len(ids)] for i in range(1, CHOICES + 1)]
        if choices:
            examples.append(join([builder.example((first, other))[0] for other in others]))
        else:
            given = (first, others[0]) if pairs and number % 3 == 2 else (first,)
            examples.append(builder.example(given)[0])
    unknown = UnknownWords(tokenizer)
    unknown.count([e.token_ids for e in examples], texts)
    return Sequences(examples, source, unknown.warning() if data is not None else None)


def _sequences_of_rows(task: Task, description: Description, data: Any, longest: int) -> Sequences:
    """The first rows of a file as sequences, without targets; a row's choices stay together."""
    rows = list(islice(task.stream(data), MOST_TEXTS))
    builder = task.input_builder(description, min(task.max_length or longest, longest))
    examples = task.encode(rows, builder, training=False).examples
    unknown = UnknownWords(builder.tokenizer)
    unknown.count([e.token_ids for e in examples], task.texts_of(rows))
    if task.head == "choice":
        compared = [Example(e.token_ids, e.type_ids, parts=e.parts) for e in examples]
    else:
        sequences = islice(zip(*split_sequences(examples), strict=True), MOST_TEXTS)
        compared = [Example(i.astype(np.int64), types.astype(np.int64)) for i, types in sequences]
    return Sequences(compared, Path(data).name, unknown.warning())


def _without_unknown(ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[list[int]]:
    """``ids`` with random ones instead of unknown tokens, for texts in another language."""
    rng, special = np.random.default_rng(0), {*tokenizer.special.values()}
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    known = [i for i, token in enumerate(tokens) if token not in special]
    if not known:
        return [list(one) for one in ids]
    return [[int(rng.choice(known)) if i == tokenizer.unk_id else i for i in one] for one in ids]


def _texts(data: Any, columns: ColumnNames) -> tuple[list[str], str]:
    if data is None:
        packaged = files("ownbert.exporting").joinpath("texts.txt").read_text(encoding="utf-8")
        return packaged.splitlines(), "texts of the package"
    texts = [text for _, text in islice(records_of(data, columns), MOST_TEXTS)]
    if not texts:
        raise InputError("{data} has no texts to compare on", data)
    return texts, Path(data).name


def _random_examples(config: EncoderConfig, longest: int) -> list[Example]:
    rng = np.random.default_rng(0)
    examples = []
    for length in _LENGTHS:
        ids = rng.integers(0, config.vocab_size, min(length, longest))
        ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
        types = rng.integers(0, max(1, config.type_vocab_size), len(ids))
        examples.append(Example(ids, types))
    return examples


def compare(model: Model, graph: PaddedModel, engine: Engine, given: Sequences) -> Parity:
    """Run the model on packed batches and a file on padded ones, and compare the outputs of
    ``graph``."""
    results = Parity(source=given.source)
    for examples in batches(given.examples, model.config):
        batch = pack(examples)
        with torch.inference_mode():
            named = named_outputs(graph.kinds, model(batch))
        ids, types = split_sequences(examples)
        inputs = padded(ids, model.config.pad_token_id, types if graph.types else None)
        mask = inputs["attention_mask"] == 1  # (B, S)
        if graph.choices:
            named = {"logits": named["logits"].view(len(examples), -1)}
            inputs = {name: x.reshape(len(examples), -1, x.shape[1]) for name, x in inputs.items()}
        expected = {name: x.numpy() for name, x in named.items()}  # (T, ...) or (B, ...)
        lengths = list(batch.layout.lengths)
        outputs = engine(inputs)
        if missing := expected.keys() - outputs.keys():
            raise InputError(
                "the exported file has no output {missing}", ", ".join(sorted(missing))
            )
        for name, theirs in expected.items():
            ours = np.asarray(outputs[name])
            parity = results.outputs.setdefault(name, OutputParity())
            if graph.per_token(name):
                ours = ours[mask]
            _add(parity, ours.astype(np.float32), theirs, lengths if graph.per_token(name) else [])
        results.texts += len(examples)
        results.tokens += sum(lengths)
    return results


def batches(examples: Sequence[Example], config: EncoderConfig) -> Iterator[Sequence[Example]]:
    """Yield batches of several sizes, the first with one example, and with the same number of
    sequences per example."""
    start, size, widest = 0, 1, max(config.vocab_size, config.hidden_size)
    while start < len(examples):
        chosen = examples[start : start + size]
        parts = [len(example.lengths) for example in chosen]
        same = (i for i, count in enumerate(parts) if count != parts[0])
        chosen = chosen[: next(same, len(chosen))]
        while len(chosen) > 1:
            lengths = [length for example in chosen for length in example.lengths]
            if len(lengths) * max(lengths) * widest <= _MOST_NUMBERS:
                break
            chosen = chosen[:-1]
        yield chosen
        start, size = start + len(chosen), _BATCH


def _add(
    deviation: OutputParity, ours: np.ndarray, theirs: np.ndarray, of_texts: Sequence[int]
) -> None:
    """Add an output of a batch, (T, ...) or (B, ...), to its deviation; ``lengths`` are those of
    the texts, for outputs per token."""
    if ours.shape != theirs.shape:
        deviation.largest_difference = float("nan")
        return
    deviation.values += ours.size
    difference = float(np.abs(ours - theirs).max())
    # NumPy's maximum and minimum propagate NaN.
    deviation.largest_difference = float(np.maximum(deviation.largest_difference, difference))
    if ours.ndim == 1 and of_texts:
        ends = np.cumsum(of_texts)[:-1]
        pairs = list(zip(np.split(ours, ends), np.split(theirs, ends), strict=True))
    elif ours.ndim == 1 or ours.shape[1] == 1:
        pairs = [(ours.ravel(), theirs.ravel())]
    else:
        pairs = [(ours, theirs)]
    for a, b in pairs:
        a, b = (np.atleast_2d(x).astype(np.float64) for x in (a, b))
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        same = (a == b).all(1)  # including two zero vectors
        cosines = (a * b).sum(1) / np.where(lengths == 0, 1, lengths)
        least = np.where(same, 1.0, cosines).min()
        deviation.least_cosine = float(np.minimum(deviation.least_cosine, least))
