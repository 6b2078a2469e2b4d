"""Extractive question answering: the answer to a question is a span of its context.

F1 and exact match of words are defined as in SQuAD's evaluation script (Rajpurkar et al. 2016,
2018). Answers with Chinese characters are scored as in CMRC 2018 (Cui et al. 2019,
cmrc2018_evaluate.py): F1 by the longest common substring of characters and words. That script
tokenises text between Chinese characters with NLTK; here it is split into words, numbers and
punctuation.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.batches.example import Example
from ownbert.exceptions import InputError, in_short, percent
from ownbert.objectives.objective import Loss
from ownbert.tables.squad import Question, read_questions
from ownbert.tables.tables import Source
from ownbert.tasks.answer_spans import (
    END,
    LONGEST_QUESTION,
    START,
    EncodedContext,
    QuestionWindows,
    Span,
    best_span,
    best_spans,
    characters,
    encode_contexts,
    null_span,
    probability,
    split_context,
    token_span,
)
from ownbert.tasks.metrics import Scores
from ownbert.tasks.row_network import RowNetwork
from ownbert.tasks.row_objectives import RowObjective
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row
from ownbert.tasks.task import DEFAULT, Task
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder, join

if TYPE_CHECKING:
    from ownbert.nn.model import Model


# Maximum number of answers to a question.
MOST_ANSWERS = 100
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHINESE = "\u4e00-\u9fa5"
_HAS_CHINESE = re.compile(f"[{_CHINESE}]")
# Punctuation removed by CMRC's script.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# A Chinese character, a word or number, or a punctuation mark.
_SEGMENTS = re.compile(rf"[{_CHINESE}]|[^\W{_CHINESE}]+(?:[.,'][^\W{_CHINESE}]+)*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class QuestionRow(Row):
    """A question and its context; ``target`` has the answers (``GoldAnswer``), empty if the context
    contains none, and ``where`` the location of the row, for messages."""

    where: str = ""


@dataclass(frozen=True)
class EncodedQuestion:
    """The windows of a row, and the character offsets (tokens, 2) of its context."""

    windows: QuestionWindows
    offsets: np.ndarray


@dataclass(frozen=True)
class PredictedAnswer:
    """An answer, or no answer: an empty text without a span.

    ``start`` and ``end`` (exclusive) are characters of the context; ``score`` is the probability of
    the first token times that of the last, in their window; ``difference`` is the logit of "no
    answer" minus that of the best answer; ``further`` returns a number of other answers, best
    first.
    """

    text: str
    start: int | None
    end: int | None
    score: float
    difference: float
    further: Callable[[int], list["PredictedAnswer"]] = field(
        default=lambda most: [], repr=False, compare=False
    )

    @property
    def as_dict(self) -> dict[str, Any]:
        """In the format of Transformers: an empty text and (0, 0) for no answer."""
        span = {"start": self.start or 0, "end": self.end or 0}
        return {"score": self.score, **span, "answer": self.text}


class QuestionAnsweringTask(Task):
    """Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3).

    Long contexts are split into windows, and the answer is the best span of all windows. No answer
    is given if "no answer" scores higher by more than a threshold, which is set by the user or
    tuned for F1 on dev rows. A model trained without unanswerable questions always answers.
    """

    name = "answer"
    purpose = "finds the answer to a question in a text"
    example_row = 'question="a question", context="a text"'
    transformers_lines = (
        'encoded = tokenizer("a question", "a text", truncation=True, return_tensors="pt")',
        "found = model(**encoded)",
        "start, end = int(found.start_logits.argmax()), int(found.end_logits.argmax())",
        "print(tokenizer.decode(encoded.input_ids[0, start : end + 1]))",
    )
    saved_attributes = (*Task.saved_attributes, "threshold")
    head = "span"
    metrics = ("f1", "exact_match")
    text_keys = ("question",)
    output_options = frozenset({"threshold"})
    hidden_settings = frozenset({"max_windows"})
    unit = "questions"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        threshold = self.settings.threshold
        if threshold is not None and not isinstance(threshold, float):
            raise InputError(
                "task.threshold is {threshold}; it must be a number", in_short(threshold)
            )
        self.threshold: float | None = threshold
        self.tuned = False
        # Locations of training rows whose answers are missing in the context, and their share.
        self.left_out: list[str] = []
        self.rows = 0

    # Reading.

    def read(self, path: Source) -> list[Row]:
        return [_row(q, q.answers) for q in read_questions(path, self.columns)]

    def stream(self, path: Source) -> Iterator[Row]:
        questions = read_questions(path, self.columns, labelled=False)
        return (_row(question, None) for question in questions)

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        self.tuned = self.settings.threshold is None and any(not row.target for row in rows)
        if self.tuned:
            self.threshold = 0.0

    # Model inputs and outputs.

    def made_row(self, text: str) -> Any:
        return {"question": "a", "context": text}

    def encode(
        self, rows: Sequence[Row], builder: TextInputBuilder, *, training: bool
    ) -> EncodedRows:
        if training:
            self.rows, self.left_out = len(rows), []
        contexts = encode_contexts([row.texts[1] for row in rows], builder)
        questions = list(dict.fromkeys(row.texts[0] for row in rows))
        ids = dict(zip(questions, builder.ids(questions), strict=True))
        examples, notes, truncated = [], [], 0
        for row in rows:
            question, context = ids[row.texts[0]], contexts[row.texts[1]]
            span = _span(row, context)
            if training and row.target and span is None:
                self.left_out.append(getattr(row, "where", "") or f"line {row.line}")
                continue
            windows = split_context(
                question,
                context,
                builder,
                stride=self.settings.stride,
                most=self.settings.max_windows,
            )
            truncated += windows.truncated
            pieces = windows.examples(span)
            if training:
                examples += pieces
                continue
            known = row.target is not None
            tags = np.concatenate([piece.tags for piece in pieces if piece.tags is not None])
            examples.append(join(pieces, tags=tags if known else None))
            notes.append(EncodedQuestion(windows, context.offsets))
        if not examples:
            raise InputError(
                "{left_out}: no row has an answer that occurs in its context", self.left_out[0]
            )
        return EncodedRows(examples, truncated, notes)

    def objective(self, model: "Model") -> "SpanObjective":
        return SpanObjective()

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        """The start and end logits (tokens of all windows, 2) of each row."""
        return np.split(logits, np.cumsum([len(e.token_ids) for e in examples])[:-1])

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        if not self.tuned:
            return
        answers = [self._best(*each) for each in zip(raws, rows, encoded.notes, strict=True)]
        pairs = zip(rows, answers, strict=True)
        self.threshold = best_threshold(
            np.asarray([answer.difference for answer in answers]),
            np.asarray([compare(_texts(row), answer.text)[1] for row, answer in pairs]),
            np.asarray([bool(row.target) for row in rows]),
        )

    def decide(self, raw: np.ndarray, row: Row, note: EncodedQuestion) -> PredictedAnswer:
        best = self._best(raw, row, note)
        limit = self.threshold
        if not (best.start is None or limit is None or best.difference <= limit):
            best = _no_answer(raw, note, best.difference)
        further = partial(self._further, best, raw, row, note)
        return replace(best, further=further)

    def _best(self, raw: np.ndarray, row: Row, note: EncodedQuestion) -> PredictedAnswer:
        """The best answer, even if "no answer" scores higher."""
        positions = note.windows.positions
        span = best_span(raw, positions, self.settings.answer_length)
        if span is None:
            return _no_answer(raw, note, float("inf"))
        return _answer(raw, row, note, span, null_span(raw, positions).score - span.score)

    def _further(
        self, best: PredictedAnswer, raw: np.ndarray, row: Row, note: EncodedQuestion, most: int
    ) -> list[PredictedAnswer]:
        """The answers of the other spans with the highest scores."""
        spans = best_spans(raw, note.windows.positions, self.settings.answer_length, most + 1)
        answers = [_answer(raw, row, note, span, best.difference) for span in spans]
        return [each for each in answers if (each.start, each.end) != (best.start, best.end)][:most]

    def output_row(
        self, decided: PredictedAnswer, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        """The answer with its character span and scores; ``no_answer_score`` is the difference of
        logits that is compared with the threshold (null if the context has no words)."""
        finite = np.isfinite(decided.difference)
        sure = options.threshold is None or decided.score >= options.threshold
        return {
            "answer": decided.text if sure else "",
            "start": decided.start if sure else None,
            "end": decided.end if sure else None,
            "score": round(decided.score, 6),
            "no_answer_score": round(decided.difference, 4) if finite else None,
        }

    def answer(self, decided: PredictedAnswer, row: Row, top_k: int | None = DEFAULT) -> Any:
        """The best answer, or several; "no answer" is an empty text and (0, 0)."""
        if top_k is DEFAULT:
            return decided.as_dict
        most = MOST_ANSWERS if top_k is None else min(top_k, MOST_ANSWERS)
        return [each.as_dict for each in (decided, *decided.further(most - 1))][:most]

    def plain(self, decided: PredictedAnswer, row: Row) -> str:
        return decided.text

    def score(self, rows: Sequence[Row], decided: Sequence[PredictedAnswer]) -> Scores:
        return score_answers([_texts(row) for row in rows], [answer.text for answer in decided])

    # Saving.

    def warnings(self) -> list[str]:
        if not self.left_out:
            return []
        return [
            f"{len(self.left_out):,} of {self.rows:,} training questions have an answer that "
            f"does not occur in their context, and are skipped; the first is {self.left_out[0]}"
        ]

    def readable_target(self, row: Row) -> str:
        return repr(row.target[0].text) if row.target else "no answer"

    def length_limit(self, max_length: int) -> str:
        return (
            f"{self.settings.max_windows} windows of {max_length} tokens, or their questions than "
            f"{LONGEST_QUESTION} tokens or half a window,"
        )

    def fold_keys(self, row: Row) -> Sequence[Hashable]:
        """The context only, because many rows may have the same question."""
        return super().fold_keys(replace(row, texts=row.texts[1:]))

    def label_distribution(self, rows: Sequence[Row]) -> str:
        return f"no answer {percent(sum(not row.target for row in rows) / len(rows))}"


def _row(question: Question, target: Any) -> QuestionRow:
    texts = question.question, question.context
    return QuestionRow(question.line, texts, target, question.where, id=question.id)


def _texts(row: Row) -> list[str]:
    return [gold.text for gold in row.target]


def _span(row: Row, context: EncodedContext) -> tuple[int, int] | None:
    """The first and last token of the first answer found in the context."""
    for text, start in row.target or ():
        if start is not None and (span := token_span(context, start, start + len(text))):
            return span
    return None


def _answer(
    raw: np.ndarray, row: Row, note: EncodedQuestion, span: Span, difference: float
) -> PredictedAnswer:
    """The answer of a span, extended to whole words."""
    context = row.texts[1]
    start, end = characters(context, note.offsets, span.first, span.last)
    score = probability(raw, note.windows.positions, span)
    return PredictedAnswer(context[start:end], start, end, score, difference)


def _no_answer(raw: np.ndarray, note: EncodedQuestion, difference: float) -> PredictedAnswer:
    positions = note.windows.positions
    score = probability(raw, positions, null_span(raw, positions))
    return PredictedAnswer("", None, None, score, difference)


@dataclass(frozen=True)
class SpanObjective(RowObjective):
    """The mean cross entropy of the answer's first and last token, which the tags mark, over all
    tokens of a window (Devlin et al. 2019, section 4.2)."""

    name: str = "answer"
    head: str = "span"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        scores = log_softmax(logits, batch)  # (T, 2)
        truth = torch.stack([batch.tags & START, batch.tags & END], -1) > 0
        total = -(scores * truth).sum() / 2
        layout = batch.layout
        highest = layout.spread(layout.largest(scores.detach()))
        hits = ((scores >= highest) & truth).sum(1)  # (T)
        right = layout.sums(hits) == 2
        return Loss(total, right.sum(), batch.sequences)

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        a, b = log_softmax(one, batch), log_softmax(two, batch)
        # The mean of two directions, and of start and end.
        return ((a.exp() - b.exp()) * (a - b)).sum() / 4


def log_softmax(logits: Tensor, batch: Batch) -> Tensor:
    """Log-softmax over the tokens of each sequence, in float32: (T, C) -> (T, C)."""
    logits, layout = logits.float(), batch.layout
    # Subtracting the maximum avoids overflow and does not change the softmax.
    shifted = logits - layout.spread(layout.largest(logits.detach()))
    return shifted - layout.spread(layout.sums(shifted.exp()).log())


def normalise(text: str) -> str:
    """Lower-case, and remove punctuation, articles and extra whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compare(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1, each the maximum over the gold answers; without gold answers both are 1
    for an empty answer and 0 otherwise."""
    if any(_HAS_CHINESE.search(gold) for gold in golds):
        pairs = [_chinese(gold, answer) for gold in golds]
    else:
        predicted = normalise(answer)
        # As in SQuAD's script, gold answers of only articles and punctuation are ignored.
        texts = [text for text in map(normalise, golds) if text] or [""]
        pairs = [(float(t == predicted), _word_f1(t.split(), predicted.split())) for t in texts]
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


def _word_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    if not gold or not predicted:
        return float(gold == predicted)
    return _f1((Counter(gold) & Counter(predicted)).total(), len(gold), len(predicted))


def _chinese(gold: str, answer: str) -> tuple[float, float]:
    first, second = (t.lower().strip().translate(_CHINESE_PUNCTUATION) for t in (gold, answer))
    one, two = _SEGMENTS.findall(first), _SEGMENTS.findall(second)
    common = SequenceMatcher(None, one, two, autojunk=False).find_longest_match().size
    return float(first == second), _f1(common, len(one), len(two))


def _f1(common: int, gold: int, predicted: int) -> float:
    return 2 * common / (gold + predicted) if common else 0.0


def score_answers(golds: Sequence[Sequence[str]], answers: Sequence[str]) -> Scores:
    """Mean f1 and exact_match of all rows; with unanswerable questions, also the share of these
    that got no answer (no_answer_accuracy), and the F1 of the others, if any (has_answer_f1)."""
    pairs = [compare(gold, answer) for gold, answer in zip(golds, answers, strict=True)]
    exact, f1 = np.asarray(pairs, dtype=float).T  # (rows) each
    values = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
    has = np.asarray([len(gold) > 0 for gold in golds])
    if has.any() and not has.all():
        values["has_answer_f1"] = float(f1[has].mean())
    if not has.all():
        values["no_answer_accuracy"] = float(exact[~has].mean())
    return Scores(values)


def best_threshold(differences: np.ndarray, f1: np.ndarray, has_answer: np.ndarray) -> float:
    """The threshold with the best F1 if rows with a larger difference are left unanswered, like
    ``find_best_thresh`` of SQuAD's script, but midway to the next difference, so that rounding does
    not change the result.

    ``differences`` (rows) are logits of "no answer" minus those of the answers, ``f1`` (rows) is
    the F1 of these answers, ``has_answer`` (rows) whether there is a gold answer.
    """
    order = np.argsort(differences, kind="stable")
    above = differences[order]
    # Answering a row gains its F1, or loses a point for an unanswerable question.
    gains = np.cumsum(np.where(has_answer, f1, -1.0)[order])
    ends = np.append(above[1:] > above[:-1], True)  # last row of each group of equal differences
    gains = np.where(ends, gains, -np.inf)
    best = int(gains.argmax())
    if gains[best] <= 0:
        return float(above[0]) - 1
    if best + 1 == len(above):
        return float(above[-1]) + 1
    return float(above[best] + above[best + 1]) / 2
