"""Questions whose answer stands in a text. R rows of a batch, T tokens of a row's windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ownbert.data.batch import Batch
from ownbert.data.readers.columns import COLUMNS
from ownbert.data.readers.squad import Question, read_questions
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.tasks.metrics import Scores
from ownbert.tasks.question_answering.answer_metrics import best_threshold, compare, score_answers
from ownbert.tasks.question_answering.answer_spans import (
    LONGEST_QUESTION,
    EncodedContext,
    QuestionWindows,
    SpanObjective,
    best_span,
    characters,
    cut_windows,
    encode_contexts,
    null_span,
    probability,
    token_span,
)
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder, join


@dataclass(frozen=True, slots=True)
class QuestionRow(Row):
    """A question and its context; ``target`` are the answers (``GoldAnswer``), none where the
    context holds none. id: as the file has it."""

    id: str | None = None
    where: str = ""


@dataclass(frozen=True)
class EncodedQuestion:
    """The windows of a row, and the characters (N, 2) of the tokens of its context."""

    windows: QuestionWindows
    offsets: np.ndarray


@dataclass(frozen=True)
class PredictedAnswer:
    """An answer: its text and characters ``start`` to ``end`` (exclusive) of the context; empty and
    None where there is none. score: the probability of its first token times that of its last in
    their window. difference: by how much "no answer" is ahead of the best answer, in logits."""

    text: str
    start: int | None
    end: int | None
    score: float
    difference: float


class Answer(Task):
    """Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3).

    Long contexts are cut into windows, and the answer is the best span of all. It is left out where
    "no answer" is ahead of it by more than a threshold: that of the settings, or what gives dev
    rows the best F1. A model that has seen no row without an answer always answers.
    """

    name = "answer"
    column_specs = COLUMNS["answer"]
    keeps = (*Task.keeps, "threshold")
    head = "span"
    measures = ("f1", "exact_match")
    uses = frozenset({"stride", "max_windows", "answer_length", "threshold", "rdrop"})
    unit = "questions"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.threshold = self.settings.threshold
        self.tuned = False
        self.left_out: list[str] = []
        self.rows = 0

    # Reading.

    def read(self, path: str | Path) -> list[Row]:
        return [_row(q, q.answers) for q in read_questions(path, self.columns)]

    def stream(self, path: str | Path) -> Iterator[Row]:
        found = read_questions(path, self.columns, labelled=False)
        return (_row(question, None) for question in found)

    def learn(self, rows: Sequence[Row], source: str | Path) -> None:
        self.tuned = self.settings.threshold is None and any(not row.target for row in rows)
        if self.tuned:
            self.threshold = 0.0

    # To the model and back.

    def encode(
        self, rows: Sequence[Row], builder: TextInputBuilder, *, training: bool
    ) -> EncodedRows:
        if training:
            self.rows, self.left_out = len(rows), []
        contexts = encode_contexts([row.texts[1] for row in rows], builder)
        questions = list(dict.fromkeys(row.texts[0] for row in rows))
        ids = dict(zip(questions, builder.ids(questions), strict=True))
        examples, notes, cut = [], [], 0
        for row in rows:
            question, context = ids[row.texts[0]], contexts[row.texts[1]]
            span = _span(row, context)
            if training and row.target and span is None:
                self.left_out.append(getattr(row, "where", "") or f"line {row.line}")
                continue
            windows = cut_windows(
                question,
                context,
                builder,
                stride=self.settings.stride,
                most=self.settings.max_windows,
            )
            cut += windows.cut
            pieces = windows.examples(span)
            if training:
                examples += pieces
                continue
            known = row.target is not None
            tags = np.concatenate([piece.tags for piece in pieces if piece.tags is not None])
            examples.append(join(pieces, tags=tags if known else None))
            notes.append(EncodedQuestion(windows, context.offsets))
        if not examples:
            raise InputError(f"{self.left_out[0]}: no answer of any row stands in its context")
        return EncodedRows(examples, cut, notes or [None] * len(examples))

    def objective(self, model: Model) -> SpanObjective:
        return SpanObjective()

    def raw(self, logits: Tensor, batch: Batch, model: Any) -> list[np.ndarray]:
        """The logits (T, 2) of start and end of each row."""
        starts = batch.layout.cu_seqlens.cpu().numpy()
        firsts = np.cumsum(batch.groups or [1] * batch.sequences)[:-1]
        return np.split(logits.float().cpu().numpy(), starts[firsts])

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        if not self.tuned:
            return
        found = [self._best(*each) for each in zip(raws, rows, encoded.notes, strict=True)]
        pairs = zip(rows, found, strict=True)
        self.threshold = best_threshold(
            np.asarray([answer.difference for answer in found]),
            np.asarray([compare(_texts(row), answer.text)[1] for row, answer in pairs]),
            np.asarray([bool(row.target) for row in rows]),
        )

    def decide(self, raw: np.ndarray, row: Row, note: EncodedQuestion) -> PredictedAnswer:
        best = self._best(raw, row, note)
        limit = self.threshold
        if best.start is None or limit is None or best.difference <= limit:
            return best
        return _nothing(raw, note, best.difference)

    def _best(self, raw: np.ndarray, row: Row, note: EncodedQuestion) -> PredictedAnswer:
        """The best answer, whether or not "no answer" is ahead of it."""
        places, context = note.windows.places, row.texts[1]
        span = best_span(raw, places, self.settings.answer_length)
        if span is None:
            return _nothing(raw, note, float("inf"))
        start, end = characters(context, note.offsets, span.first, span.last)
        difference = null_span(raw, places).score - span.score
        return PredictedAnswer(
            context[start:end], start, end, probability(raw, places, span), difference
        )

    def shown(self, decided: PredictedAnswer, row: Row) -> dict[str, Any]:
        """answer, its characters start and end (exclusive) in the context, and how sure the model
        is: score is a probability, no_answer_score a difference of logits that is compared with
        the threshold (null where the context has no words)."""
        name = getattr(row, "id", None)
        finite = np.isfinite(decided.difference)
        return {
            **({} if name is None else {"id": name}),
            "answer": decided.text,
            "start": decided.start,
            "end": decided.end,
            "score": round(decided.score, 6),
            "no_answer_score": round(decided.difference, 4) if finite else None,
        }

    def score(self, rows: Sequence[Row], decided: Sequence[PredictedAnswer]) -> Scores:
        return score_answers([_texts(row) for row in rows], [answer.text for answer in decided])

    # On disk.

    def warnings(self) -> list[str]:
        if not self.left_out:
            return []
        return [
            f"{len(self.left_out):,} of {self.rows:,} training questions have an answer that is "
            f"nowhere in their context, and are left out; the first is {self.left_out[0]}"
        ]

    def preview(self, row: Row) -> str:
        return repr(row.target[0].text) if row.target else "no answer"

    def limit(self, max_length: int) -> str:
        return (
            f"{self.settings.max_windows} windows of {max_length} tokens, or their questions than "
            f"{LONGEST_QUESTION} tokens or half a window,"
        )

    def kept_together(self, row: Row) -> Sequence[Any]:
        """The text; questions may be the same of many texts."""
        return row.texts[1:]

    def shares(self, rows: Sequence[Row]) -> str:
        return f"no answer {sum(not row.target for row in rows) / len(rows):.1%}"


def _row(question: Question, target: Any) -> QuestionRow:
    texts = question.question, question.context
    return QuestionRow(question.line, texts, target, question.id, question.where)


def _texts(row: Row) -> list[str]:
    return [gold.text for gold in row.target]


def _span(row: Row, context: EncodedContext) -> tuple[int, int] | None:
    """Tokens of the first answer that stands in the context."""
    for text, start in row.target or ():
        if start is not None and (span := token_span(context, start, start + len(text))):
            return span
    return None


def _nothing(raw: np.ndarray, note: EncodedQuestion, difference: float) -> PredictedAnswer:
    places = note.windows.places
    return PredictedAnswer(
        "", None, None, probability(raw, places, null_span(raw, places)), difference
    )
