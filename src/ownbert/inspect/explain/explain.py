"""Explains the predictions of a model folder by the relevance of each word."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.batches.batch import Example
from ownbert.checkpoint import load, load_tokenizer
from ownbert.checkpoint.transformer_folder import is_translation
from ownbert.checks import known
from ownbert.exceptions import InputError, warn_of_input
from ownbert.hub import model_folder
from ownbert.inference.blend import blend_of
from ownbert.inference.compute import Compute
from ownbert.inference.fill_mask import masked_example
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Networks, Opened
from ownbert.inference.opened_blend import OpenedBlend
from ownbert.inference.pipeline import Predictor
from ownbert.inspect.explain.explained_translations import ExplainedTranslator
from ownbert.inspect.explain.input_words import (
    Word,
    in_one_text,
    rows_of,
    sentences_of,
    skipped_warning,
    text_rows,
    words_of,
)
from ownbert.inspect.explain.linear_words import CONTRIBUTIONS, LinearShares, answers_linearly
from ownbert.inspect.explain.methods import ExplainedTarget, Relevance, method_named
from ownbert.inspect.explain.targets import Target, likeliest, masked_word, probability, targets_of
from ownbert.inspect.internals.head_choice import ALL_HEADS, HeadChoice
from ownbert.inspect.internals.observation import (
    BUDGET,
    LayerQuestion,
    Observation,
    masked_question,
    observe,
)
from ownbert.inspect.observing import masked_words, require_room, text_ids
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.forward.batched_forward import blocks
from ownbert.tasks.rows import Row
from ownbert.tasks.task import NoTaskHead

METHOD = "integrated_gradients"
UNITS = ("word", "sentence")
# Maximum words of an input: some methods run the model once per word.
_MOST_WORDS = 8192
# Texts of more tokens are explained for one label only, because each label needs its own passes.
_LONG = 1024
# Rows predicted at a time.
_ROWS = 32


@dataclass(frozen=True)
class Explanation:
    """The relevance of a row's words for a prediction.

    Args:
        row: index among the given rows; rows without words have no explanation.
        texts: texts of the row.
        target: explained target, such as a label.
        probability: probability of the target, or its value.
        method: name of the method.
        words: U words as character spans in the texts.
        values: (U) relevance of each word, positive if it supports the target.
        gap: for integrated gradients, see ``Relevance``.
        answers: most probable predictions with their probabilities, for discrete predictions.
    """

    row: int
    texts: tuple[str, ...]
    target: str
    probability: float
    method: str
    words: tuple[Word, ...]
    values: np.ndarray
    gap: float | None = None
    answers: tuple[tuple[str, float], ...] = ()

    def word(self, index: int) -> str:
        """The word as written in its text."""
        word = self.words[index]
        return self.texts[word.text][word.start : word.end]

    def pieces(self, number: int) -> Iterator[tuple[str, float]]:
        """Yield the parts of a text; words with their share of the largest value, others with 0."""
        largest = float(np.abs(self.values).max(initial=0)) or 1.0
        text, end = self.texts[number], 0
        for word, value in zip(self.words, self.values.tolist(), strict=True):
            if word.text == number and word.start >= end:
                yield text[end : word.start], 0.0
                yield text[word.start : word.end], value / largest
                end = word.end
        yield text[end:], 0.0

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        return {
            "texts": list(self.texts),
            "target": self.target,
            "score": round(self.probability, 6),
            "method": self.method,
            "words": [
                {"word": self.word(i), "text": word.text, "start": word.start, "end": word.end}
                | {"value": float(f"{value:.6g}")}
                for i, (word, value) in enumerate(zip(self.words, self.values, strict=False))
            ],
            **({} if self.gap is None else {"gap": round(self.gap, 6)}),
        }

    def __repr__(self) -> str:
        order = np.argsort(-np.abs(self.values), kind="stable")[:5]
        most = ", ".join(f"{self.word(i)} {self.values[i]:+.3g}" for i in order)
        return f"Explanation({self.target!r}, {self.probability:.3f}: {most})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: supporting words in blue, opposing words in red."""
        shown = [f"<b>{html.escape(self.target)}</b> {self.probability:.3f}"]
        for number in range(len(self.texts)):
            line = ""
            for text, share in self.pieces(number):
                color = f"rgba({'33,102,172' if share > 0 else '178,24,43'},{abs(share):.2f})"
                escaped = html.escape(text)
                line += f'<span style="background:{color}">{escaped}</span>' if share else escaped
            shown.append(line)
        return "<br>".join(shown)


@dataclass(frozen=True)
class ExplainedRow:
    """A row as model input; tagged words are joined into one text.

    Args:
        number: index among the given rows.
    """

    number: int
    texts: tuple[str, ...]
    example: Example
    words: Sequence[Word]
    targets: Sequence[Target]

    def explanation(self, target: str, probability: float, method: str, *found: Any) -> Explanation:
        """The explanation of a target by values, their gap and the most probable answers."""
        words = tuple(self.words)
        return Explanation(self.number, self.texts, target, probability, method, words, *found)


class Explainer:
    """Explains the predictions of a folder, which is loaded once.

    For a ``fit`` folder, the network is explained; if the folder predicts with linear models only,
    their exact word contributions. For a folder with an MLM head and no task head, the predictions
    for [MASK] are explained; for a translation model, the words of each translation.

    Args:
        folder: folder of a fine-tuned text model, a pretrained model or a translation model; or an
            ``Opened`` one, for which ``columns`` and ``device`` are ignored.
        columns: columns named by the user; by default those used in training.
        device: auto, cpu or cuda.
        network: explain the network of a ``fit`` folder that predicts with linear models.

    Attributes:
        skipped: number of texts without words so far, which have no explanation.

    Raises:
        InputError: the folder is not supported.
    """

    @in_float32
    def __init__(
        self,
        folder: str | Path | Opened,
        *,
        columns: ColumnNames | None = None,
        device: str = "auto",
        network: bool = False,
    ) -> None:
        self.folder = folder.folder if isinstance(folder, Opened) else model_folder(folder)
        self.columns = columns or ColumnNames()
        self.skipped = 0
        self.predictor: Predictor | None = None
        self.translator: ExplainedTranslator | None = None
        self.linear: LinearShares | None = None
        if not isinstance(folder, Opened) and is_translation(self.folder):
            self.translator = ExplainedTranslator(self.folder, device)
            self.models = [self.translator.model]
            self.tokenizer, self.head = self.translator.tokenizer, self.translator.head
            self.mask = self.translator.unknown
            return
        try:
            given = folder if isinstance(folder, Opened) else self.folder
            opened = _open_explained(given, self.columns, device, network=network)
        except NoTaskHead as error:
            self.models = [load(error.description)]
            if "mlm" not in self.models[0].heads:
                raise
            self.tokenizer, self.head = load_tokenizer(error.description), "mlm"
            self.mask = self.tokenizer.mask_id
            return
        self.predictor, self.head = Predictor(opened), opened.task.head
        if isinstance(opened, OpenedBlend):
            self.linear, self.models = LinearShares(opened), []
            return
        if opened.task.reads_arrays:
            raise InputError(f"{folder} reads images; use ownbert relevance")
        assert isinstance(opened, Networks)  # the folder was opened with network=True
        if not opened.models:
            raise InputError(f"{folder} was exported; name the folder of the model")
        self.models, self.tokenizer = opened.models_with_gradients(), opened.tokenizer
        self.mask = self.tokenizer.mask_or_unknown_id

    @in_float32
    def __call__(
        self,
        data: Any,
        *,
        method: str | Sequence[str] = METHOD,
        target: str | None = None,
        by: str = "word",
        rows: int | None = None,
    ) -> list[Explanation]:
        """Explain predictions for rows: one explanation per row, or per entity or label.

        Args:
            data: rows in any form accepted by ``Predictor``, or a list of ``Row``.
            method: a name in ``METHODS``, or several.
            target: a label, the number of a choice, or an entity type; by default the prediction.
            by: "word" or "sentence".
            rows: maximum number of rows to read.

        Raises:
            InputError: rows, method or target are invalid.
        """
        before = self.skipped
        pairs = self.explained(data, method=method, target=target, by=by, rows=rows)
        explained = [each for _, explanations in pairs for each in explanations]
        if explained and self.skipped > before:
            warn_of_input(skipped_warning(self.skipped - before))
        return explained

    def explained(
        self,
        data: Any,
        *,
        method: str | Sequence[str] = METHOD,
        target: str | None = None,
        by: str = "word",
        rows: int | None = None,
        labels: int = 1,
    ) -> Iterator[tuple[ExplainedRow, list[Explanation]]]:
        """Yield rows as model inputs with their explanations; see ``__call__``.

        Args:
            labels: number of most probable labels to explain for single-label tasks; long texts
                are explained for the prediction only.
        """
        names = [method] if isinstance(method, str) else list(method)
        known(*UNITS)("by", by)
        if self.linear is not None:
            if names not in ([METHOD], [CONTRIBUTIONS]):
                raise InputError(
                    f"{self.folder} predicts with linear models, for which the share of each "
                    "word is exact; omit the method"
                )
            assert self.predictor is not None
            read = islice(rows_of(self.predictor, data), rows)
            yield from self._of_linear_models(self.linear, read, target, by, labels)
            return
        methods = {name: method_named(name) for name in names}
        for encoded in self.encoded(data, target, by, labels, rows):
            explanations = []
            for found, of_models in self.explained_targets(encoded):
                for name, function in methods.items():
                    values, gap = _mean([function(explained) for explained in of_models])
                    about = found.name, found.shown, name, values, gap, found.answers
                    explanations.append(encoded.explanation(*about))
            yield encoded, explanations

    def _of_linear_models(
        self, linear: LinearShares, read: Iterable[Row], target: str | None, by: str, labels: int
    ) -> Iterator[tuple[ExplainedRow, list[Explanation]]]:
        """Explain linear models by the exact contributions of words."""
        nothing = Example(np.zeros(0, np.int64), np.zeros(0, np.int64))
        for number, row in enumerate(read):
            words = linear.words(row)
            words = words if by == "word" else sentences_of(words, row.texts)
            if not words:
                self.skipped += 1
                continue
            encoded = ExplainedRow(number, row.texts, nothing, words, ())
            answers, explanations = linear.answers(row), []
            for index, name, shown in linear.targets(row, target, labels):
                values = linear.shares(row, index, words)
                about = name, shown, CONTRIBUTIONS, values, None, answers
                explanations.append(encoded.explanation(*about))
            yield encoded, explanations

    def observe(
        self, encoded: ExplainedRow, *, choice: HeadChoice = ALL_HEADS, budget: int = BUDGET
    ) -> Observation | None:
        """Record the internals of the model on a row; with several models, those of the first.

        Args:
            encoded: a row from ``explained``.
            choice: layers and heads whose attention is recorded.
            budget: maximum bytes of attention weights.

        Returns:
            The observation; None for translation models.

        Raises:
            InputError: a layer or head does not exist, or too many are chosen.
        """
        if self.translator is not None or self.linear is not None:
            if choice != ALL_HEADS:
                what = "linear models" if self.linear is not None else "translations"
                raise InputError(f"a page of {what} shows no attention: omit --layers and --heads")
            return None
        return observe(
            self.models[0],
            self.tokenizer,
            encoded.example,
            head=self.head,
            questions=[self._question(i, each) for i, each in enumerate(encoded.targets)],
            choice=choice,
            budget=budget,
        )

    def _question(self, number: int, target: Target) -> LayerQuestion:
        """The quantity of a target to compute from each layer: its probability or its value."""
        likely = target.probability
        question = LayerQuestion(target.name, likely or target.score, likely is not None)
        if self.head == "mlm":
            words = masked_question(self.tokenizer, number, 0)
            return replace(question, distribution=words.distribution, names=words.names)
        task = None if self.predictor is None else self.predictor.task
        if not isinstance(task, SingleLabelTask):
            return question
        return replace(
            question,
            distribution=lambda logits, batch: probability(task, logits, batch)[0],
            names=lambda index: str(task.labels[index]),
        )

    def explained_targets(
        self, encoded: ExplainedRow
    ) -> Iterator[tuple[Target, list[ExplainedTarget]]]:
        """Yield each target of a row, with one entry for each model of the folder."""
        for target in encoded.targets:
            given = encoded.example, encoded.words, target, self.mask
            yield target, [ExplainedTarget(model, self.head, *given) for model in self.models]

    def encoded(
        self,
        data: Any,
        target: str | None = None,
        by: str = "word",
        labels: int = 1,
        rows: int | None = None,
    ) -> Iterator[ExplainedRow]:
        """Yield rows as model inputs, with words and targets; see ``__call__``. Rows without words
        or without a prediction are skipped."""
        if self.translator is not None:
            explained = self.translator.translated(text_rows(data, self.columns.text), target)
        elif self.predictor is None:
            explained = (
                (row, *self._masked(row, target)) for row in text_rows(data, self.columns.text)
            )
        else:
            explained = self._answered(self.predictor, data, target, labels)
        for number, (row, example, targets) in enumerate(islice(explained, rows)):
            are_words = self.head == "tokens"
            read = example.source or example
            words, texts = words_of(read, row.texts, self.tokenizer, are_words=are_words), row.texts
            if are_words:
                words, whole = in_one_text(words, texts)
                texts = (whole,)
            masks = () if example.masked_positions is None else example.masked_positions.tolist()
            words = [word for word in words if not set(masks) & set(word.positions)]
            words = words if by == "word" else sentences_of(words, texts)
            if len(words) > _MOST_WORDS:
                raise InputError(
                    f"a text has {len(words):,} words, but at most {_MOST_WORDS:,} can be "
                    "explained; use --by sentence"
                )
            if words and targets:
                yield ExplainedRow(number, tuple(texts), example, words, targets)
            elif not words:
                self.skipped += 1

    def _answered(
        self, predictor: Predictor, data: Any, target: str | None, labels: int
    ) -> Iterator[tuple[Row, Example, list[Target]]]:
        task, reader = predictor.task, predictor.rows_predictor
        assert isinstance(reader, Networks)
        for rows in blocks(rows_of(predictor, data), _ROWS, size=lambda row: 0):
            encoded = reader.encoded(rows)
            parts = (rows, encoded.examples, reader.raws_of(encoded), encoded.notes)
            for row, example, raw, note in zip(*parts, strict=True):
                most = labels if len(example.token_ids) <= _LONG else 1
                targets = targets_of(task, self.models[0], row, example, raw, note, target, most)
                yield row, example, targets

    def _masked(self, row: Row, target: str | None) -> tuple[Example, list[Target]]:
        """The most probable word for each mask, or the wanted one."""
        model, tokenizer = self.models[0], self.tokenizer
        if model.config.mask_vector:
            raise InputError(
                f"{self.folder} is an xlnet, whose masked words cannot be explained; use a "
                "fine-tuned model"
            )
        ids = text_ids(row.texts[0], tokenizer)
        require_room(model, ids)
        if tokenizer.mask_id not in ids:
            raise InputError(
                f"{self.folder} predicts masked words; put {tokenizer.special['mask_token']} "
                "into the text"
            )
        example = masked_example(ids, tokenizer)
        token = None if target is None else tokenizer.id_of(target)
        if target is not None and token is None:
            raise InputError(f"{target!r} is not a token of the vocabulary")
        targets = []
        for number, found in enumerate(masked_words(model, example)):
            first = int(found.argmax()) if token is None else token
            (best,) = tokenizer.tokens([first])
            answers = likeliest(found, lambda index: tokenizer.tokens([index])[0])
            shown = float(found[first])
            targets.append(masked_word(example, first, number, best, shown, answers))
        return example, targets


@in_float32
def explain(
    folder: str | Path,
    data: Any,
    *,
    method: str = METHOD,
    target: str | None = None,
    by: str = "word",
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    network: bool = False,
) -> list[Explanation]:
    """Explain a model's predictions by the relevance of words; see ``Explainer``."""
    given: Any = {"columns": ColumnNames(text_column, second_column), "device": device}
    return Explainer(folder, network=network, **given)(data, method=method, target=target, by=by)


def _open_explained(
    folder: Path | Opened, columns: ColumnNames, device: str, *, network: bool
) -> Opened:
    """Open the linear models if only these are used and ``network`` is false, else the network."""
    blend = folder.blend if isinstance(folder, OpenedBlend) else None
    if isinstance(folder, Path):
        blend = blend_of(folder)
    elif blend is None:
        return folder
    place = folder if isinstance(folder, Path) else folder.folder
    linear = not network and blend is not None and answers_linearly(place, blend)
    if linear and isinstance(folder, Opened):
        return folder
    # Without packed weights, which have no gradients.
    return open_folder(place, Compute(device, network=not linear, packed=False), columns=columns)


def _mean(relevances: Sequence[Relevance]) -> tuple[np.ndarray, float | None]:
    gaps = [relevance.gap for relevance in relevances if relevance.gap is not None]
    return np.mean([relevance.values for relevance in relevances], axis=0), max(gaps, default=None)
