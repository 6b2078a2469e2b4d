"""Explains the predictions of a model folder by the relevance of each word."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.checkpoint import load, load_tokenizer
from ownbert.checkpoint.description import generator_in
from ownbert.checks import known
from ownbert.exceptions import InputError, named_repr, warn_of_input
from ownbert.hub import model_folder
from ownbert.inference.blend import network_note
from ownbert.inference.engines import Compute
from ownbert.inference.fill_mask import masked_example
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Networks, Opened, average
from ownbert.inference.opened_blend import OpenedBlend
from ownbert.inference.pipeline import Predictor
from ownbert.inspect.explain.blend_words import BlendWords, LinearShares, answers_linearly
from ownbert.inspect.explain.explanation import (
    ExplainedRow,
    Explanation,
    Word,
    in_one_text,
    sentences_of,
    words_of,
)
from ownbert.inspect.explain.methods import ExplainedTarget, Relevance, method_named
from ownbert.inspect.explain.targets import Target, likeliest, masked_word, probability, targets_of
from ownbert.inspect.internals.observation import (
    ALL_HEADS,
    BUDGET,
    HeadChoice,
    LayerQuestion,
    Observation,
    masked_question,
    observe,
)
from ownbert.inspect.internals.observing import masked_words, require_room, text_ids
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames, read_texts
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.row_network import blocks
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


class Explainer:
    """Explains the predictions of a folder, which is loaded once.

    For a ``fit`` folder, the predictions of ``predict`` are explained: those of a network by any
    method, those of linear models by the exact contribution of each word, and those of a blend by
    removing words (``OCCLUSION``). Other methods explain the network in the folder of a blend, and
    the explanations say so. For a folder with an MLM head and no task head, the predictions for
    [MASK] are explained; for a translation model, the words of each translation.

    Args:
        folder: folder of a fine-tuned text model, a pretrained model or a translation model; or an
            ``Opened`` one, for which ``columns`` and ``device`` are ignored.
        columns: columns named by the user; by default those used in training.
        device: auto, cpu or cuda.
        network: explain the network of a ``fit`` folder, also if other models predict.

    Attributes:
        skipped: number of texts without words so far, which have no explanation.
        blend: the blend to explain; None if networks are explained.
        note: a note if the network of a folder is explained whose predictions come from a blend.

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
        self.columns, self.device = columns or ColumnNames(), device
        self.skipped = 0
        self.predictor: Predictor | None = None
        self.translator: Any = None  # ``ExplainedTranslator``
        self.blend: BlendWords | None = None
        self.note: str | None = None
        self._factor = 1.0  # of the logits of the network in a blend
        kind = None if isinstance(folder, Opened) else generator_in(self.folder)
        if kind is not None:
            self.translator = kind.door("explain")(self.folder, device)
            self.models = [self.translator.model]
            self.tokenizer, self.head = self.translator.tokenizer, self.translator.head
            self.mask = self.translator.unknown
            return
        try:
            # Without packed weights, which have no gradients.
            compute = Compute(device, network=network, packed=False)
            opened: Opened = (
                folder
                if isinstance(folder, Opened) and not network
                else open_folder(self.folder, compute, columns=self.columns)
            )
        except NoTaskHead as error:
            self.models = [load(error.description)]
            if "mlm" not in self.models[0].heads:
                raise
            self.tokenizer, self.head = load_tokenizer(error.description), "mlm"
            self.mask = self.tokenizer.mask_id
            return
        self.predictor, self.head = Predictor(opened), opened.task.head
        if isinstance(opened, OpenedBlend):
            first, *others = opened.blend.members
            if others or first.kind != "network":
                linear = answers_linearly(opened.blend)
                self.blend, self.models = (LinearShares if linear else BlendWords)(opened), []
                return
            self._factor = first.weight
            opened = average(opened.networks)
        elif network:
            self.note = network_note(self.folder)
        if opened.task.reads_arrays:
            raise InputError("{folder} reads images; use ownbert relevance", folder)
        assert isinstance(opened, Networks)
        if not opened.models:
            raise InputError("{folder} was exported; name the folder of the model", folder)
        self._reader = opened
        self.models, self.tokenizer = opened.models_with_gradients(), opened.tokenizer
        self.mask = self.tokenizer.mask_or_unknown_id

    @cached_property
    def of_network(self) -> "Explainer":
        """The explainer of the folder's network, for methods that do not apply to a blend;
        ``InputError`` if there is none."""
        return Explainer(self.folder, columns=self.columns, device=self.device, network=True)

    @in_float32
    def __repr__(self) -> str:
        return named_repr(self, self.folder, device=self.device)

    def __call__(
        self,
        data: Any,
        *,
        method: str | Sequence[str] | None = None,
        target: str | None = None,
        by: str = "word",
        rows: int | None = None,
    ) -> list[Explanation]:
        """Explain predictions for rows: one explanation per row, or per entity or label.

        Args:
            data: rows in any form accepted by ``Predictor``, or a list of ``Row``.
            method: a name in ``METHODS``, or several; by default ``METHOD`` for networks, and
                leave_one_out for blends.
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
        method: str | Sequence[str] | None = None,
        target: str | None = None,
        by: str = "word",
        rows: int | None = None,
        labels: int = 1,
    ) -> Iterator[tuple[ExplainedRow, list[Explanation]]]:
        """Yield rows as model inputs with their explanations; see ``__call__``.

        ``labels``: number of most probable labels to explain for single-label tasks; long texts are
        explained for the prediction only.
        """
        names = [method] if isinstance(method, str) else list(method or ())
        known(*UNITS)("by", by)
        if self.blend is not None:
            linear = isinstance(self.blend, LinearShares)
            if not names or (linear and names == [METHOD]):
                names = [self.blend.methods[0]]
            if set(names) <= set(self.blend.methods):
                assert self.predictor is not None
                read = islice(rows_of(self.predictor, data), rows)
                yield from self._of_blend(self.blend, read, names, target, by, labels)
                return
            if linear:
                raise InputError(
                    "{folder} predicts with linear models, for which the share of each word is "
                    "exact; omit the method",
                    self.folder,
                )
            for name in names:
                method_named(name)
            network, self.note = self.of_network, self.of_network.note
            before = network.skipped
            how: Any = {"method": names, "target": target, "by": by, "rows": rows}
            yield from network.explained(data, labels=labels, **how)
            self.skipped += network.skipped - before
            return
        methods = {name: method_named(name) for name in names or [METHOD]}
        for encoded in self.encoded(data, target, by, labels, rows):
            explanations = []
            for found, of_models in self.explained_targets(encoded):
                for name, function in methods.items():
                    values, gap = _mean([function(explained) for explained in of_models])
                    values = values * self._factor
                    about = found.name, found.shown, name, values, gap, found.answers
                    explanation = encoded.explanation(*about)
                    explanations.append(replace(explanation, of_network=self.note is not None))
            yield encoded, explanations

    def _of_blend(
        self,
        blend: BlendWords,
        read: Iterable[Row],
        methods: Sequence[str],
        target: str | None,
        by: str,
        labels: int,
    ) -> Iterator[tuple[ExplainedRow, list[Explanation]]]:
        """Explain a blend by the relevance of words for its own predictions."""
        nothing = Example(np.zeros(0, np.int64), np.zeros(0, np.int64))
        for number, row in enumerate(read):
            if not (words := self._units(blend.words(row), row.texts, by)):
                continue
            encoded = ExplainedRow(number, row.texts, nothing, words, ())
            answers, explanations = blend.answers(row), []
            for index, name, shown in blend.targets(row, target, labels):
                for method in methods:
                    values = blend.relevance(row, index, words, method)
                    about = name, shown, method, values, None, answers
                    explanations.append(encoded.explanation(*about))
            yield encoded, explanations

    def observe(
        self, encoded: ExplainedRow, *, choice: HeadChoice = ALL_HEADS, budget: int = BUDGET
    ) -> Observation | None:
        """Record the internals of the model on a row; with several models, those of the first.

        Args:
            choice: layers and heads whose attention is recorded.
            budget: maximum bytes of attention weights.

        Returns:
            None for translation models and blends.

        Raises:
            InputError: a layer or head does not exist, or too many are chosen.
        """
        if self.blend is not None and len(encoded.example.token_ids):
            return self.of_network.observe(encoded, choice=choice, budget=budget)
        if self.translator is not None or self.blend is not None:
            if choice == ALL_HEADS:
                return None
            if self.blend is not None and not isinstance(self.blend, LinearShares):
                raise InputError(
                    "a page of a blend shows no attention: add {--network}, or omit {--layers} "
                    "and {--heads}"
                )
            what = "translations" if self.blend is None else "linear models"
            raise InputError(
                "a page of {what} shows no attention: omit {--layers} and {--heads}", what
            )
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
            rows_of_texts = text_rows(data, self.columns.text)
            explained = ((row, *self._masked(row, target)) for row in rows_of_texts)
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
            words = self._units(words, texts, by)
            if words and targets:
                yield ExplainedRow(number, tuple(texts), example, words, targets)

    def _units(self, words: list[Word], texts: Sequence[str], by: str) -> list[Word]:
        """Words, or sentences; a text without any is counted as skipped."""
        words = words if by == "word" else sentences_of(words, texts)
        if len(words) > _MOST_WORDS:
            raise InputError(
                "a text has {count:,} words, but at most {most_words:,} can be explained; use "
                "{--by} sentence",
                *(len(words), _MOST_WORDS),
            )
        self.skipped += not words
        return words

    def _answered(
        self, predictor: Predictor, data: Any, target: str | None, labels: int
    ) -> Iterator[tuple[Row, Example, list[Target]]]:
        task, opened, reader = predictor.task, predictor.rows_predictor, self._reader
        for rows in blocks(rows_of(predictor, data), _ROWS, size=lambda row: 0):
            encoded = reader.encoded(rows)
            raws = reader.raws_of(encoded) if opened is reader else opened.raws(rows)[0]
            parts = (rows, encoded.examples, raws, encoded.notes)
            for row, example, raw, note in zip(*parts, strict=True):
                most = labels if len(example.token_ids) <= _LONG else 1
                targets = targets_of(task, self.models[0], row, example, raw, note, target, most)
                yield row, example, targets

    def _masked(self, row: Row, target: str | None) -> tuple[Example, list[Target]]:
        """The most probable word for each mask, or the wanted one."""
        model, tokenizer = self.models[0], self.tokenizer
        if model.config.mask_vector:
            raise InputError(
                "{folder} is an xlnet, whose masked words cannot be explained; use a fine-tuned "
                "model",
                self.folder,
            )
        ids = text_ids(row.texts[0], tokenizer)
        require_room(model, ids)
        if tokenizer.mask_id not in ids:
            raise InputError(
                "{folder} predicts masked words; put {special} into the text",
                self.folder,
                tokenizer.special["mask_token"],
            )
        example = masked_example(ids, tokenizer)
        token = None if target is None else tokenizer.id_of(target)
        if target is not None and token is None:
            raise InputError("{target!r} is not a token of the vocabulary", target)
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
    method: str | None = None,
    target: str | None = None,
    by: str = "word",
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    network: bool = False,
) -> list[Explanation]:
    """Explain a model's predictions by the relevance of words; see ``Explainer``."""
    given: Any = {"columns": ColumnNames(text_column, second_column), "device": device}
    explainer = Explainer(folder, network=network, **given)
    explanations = explainer(data, method=method, target=target, by=by)
    if explainer.note is not None and not network:
        warn_of_input(explainer.note)
    return explanations


def _mean(relevances: Sequence[Relevance]) -> tuple[np.ndarray, float | None]:
    gaps = [relevance.gap for relevance in relevances if relevance.gap is not None]
    return np.mean([relevance.values for relevance in relevances], axis=0), max(gaps, default=None)


def text_rows(data: Any, text_column: str | None) -> Iterator[Row]:
    """Yield texts, or those of a file, as rows for models without a task."""
    if isinstance(data, Path):
        data = read_texts(data, text_column=text_column)
    texts = [data] if isinstance(data, str) else data
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError("a text is needed, not {kind}", type(text).__name__)
        yield Row(number, (text,))


def skipped_warning(count: int) -> str:
    """A warning about texts that have no explanation."""
    return Message(
        "texts without words, which have no explanation: {count:,}; the row of an "
        "explanation is the number of its text, from 0",
        count,
    )


def rows_of(predictor: Predictor, data: Any) -> Iterable[Row]:
    """Rows of the predictor's task: a list of them, or data in any form that it accepts."""
    if isinstance(data, Path):
        return predictor.task.stream(data)  # of a large file only the first rows may be needed
    are_rows = isinstance(data, list) and data and all(isinstance(row, Row) for row in data)
    return data if are_rows else predictor.rows(data)
