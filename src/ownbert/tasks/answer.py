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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ownbert.batches.example import Example
from ownbert.exceptions import InputError, in_short, percent
from ownbert.language.messages import Message
from ownbert.tables.squad import read_questions
from ownbert.tables.tables import Source
from ownbert.tasks.metrics import Scores
from ownbert.tasks.row_network import RowNetwork
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row
from ownbert.tasks.task import DEFAULT, Task
from ownbert.tasks.text_input import END, START, EncodedRows, TextInputBuilder, join
from ownbert.text.text_parts import span_in

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.objectives.objective import Objective


MOST_ANSWERS = 100  # maximum number of answers to a question
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHINESE = "\u4e00-\u9fa5"
_HAS_CHINESE = re.compile(f"[{_CHINESE}]")
# Punctuation removed by CMRC's script.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# A Chinese character, a word or number, or a punctuation mark.
_SEGMENTS = re.compile(rf"[{_CHINESE}]|[^\W{_CHINESE}]+(?:[.,'][^\W{_CHINESE}]+)*|[^\w\s]")
# Maximum tokens of a question; the rest is truncated (Devlin et al. 2019, run_squad.py).
LONGEST_QUESTION = 64


@dataclass(frozen=True, slots=True)
class QuestionRow(Row):
    """A question and its context; ``target`` has the answers (``GoldAnswer``), empty if the context
    contains none, and ``where`` the location of the row, for messages."""

    where: str = ""


class EncodedContext(NamedTuple):
    """The ids (tokens) of a text, and their character offsets (tokens, 2), end exclusive."""

    ids: np.ndarray
    offsets: np.ndarray


class WindowPosition(NamedTuple):
    """The position of a window in the concatenated windows of its question and in the context."""

    start: int  # index of the window's first token
    end: int  # index after the window's last token
    first: int  # index of its first context token
    begin: int  # index of this token in the context
    size: int  # number of context tokens
    cls: int  # index of [CLS], the first token, or the last one in XLNet


@dataclass(frozen=True)
class QuestionWindows:
    """A question with the token ids and types of each of its windows, and the character offsets
    (tokens, 2) of its context; ``truncated``: whether the question or the context was."""

    pieces: tuple[tuple[np.ndarray, np.ndarray], ...]
    positions: tuple[WindowPosition, ...]
    truncated: bool
    offsets: np.ndarray

    def examples(self, span: tuple[int, int] | None) -> list[Example]:
        """One example per window, by the first and last token of the answer in the context; [CLS]
        is the answer in windows that do not contain all of it."""
        examples = []
        for (ids, types), window in zip(self.pieces, self.positions, strict=True):
            start = end = window.cls - window.start
            if (
                span is not None
                and window.begin <= span[0]
                and span[1] < window.begin + window.size
            ):
                start, end = (window.first - window.start - window.begin + at for at in span)
            tags = np.zeros(len(ids), dtype=np.int8)
            tags[start] |= START
            tags[end] |= END
            examples.append(Example(ids, types, tags=tags))
        return examples


class Span(NamedTuple):
    """Tokens ``first`` to ``last`` (inclusive) of the context, in a window; ``score`` is the sum of
    the start and end logits."""

    score: float
    window: int
    first: int
    last: int


@dataclass(frozen=True)
class PredictedAnswer:
    """An answer, or no answer: an empty text without a span."""

    text: str
    start: int | None  # characters in the context, end exclusive
    end: int | None
    score: float  # probability of the first token times that of the last, in their window
    difference: float  # logit of "no answer" minus that of the best answer
    # Returns a number of other answers, best first.
    further: Callable[[int], list["PredictedAnswer"]] = field(
        default=lambda most: [], repr=False, compare=False
    )

    @property
    def as_dict(self) -> dict[str, Any]:
        """In the format of Transformers: an empty text and (0, 0) for no answer."""
        span = {"start": self.start or 0, "end": self.end or 0}
        return {"score": self.score, **span, "answer": self.text}


class QuestionAnsweringTask(Task):
    """Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3): the best span of
    all windows of the context. No answer is given if "no answer" scores higher by more than a
    threshold, which is set by the user or tuned for F1 on dev rows. A model trained without
    unanswerable questions always answers."""

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
        return list(self._rows(path, labelled=True))

    def stream(self, path: Source) -> Iterator[Row]:
        return self._rows(path, labelled=False)

    def _rows(self, path: Source, *, labelled: bool) -> Iterator[Row]:
        questions = read_questions(path, self.columns, labelled=labelled)
        for q in questions:
            texts, answers = (q.question, q.context), q.answers if labelled else None
            yield QuestionRow(q.line, texts, answers, q.where, id=q.id)

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
            # The first answer found in the context.
            spans = (
                token_span(context, start, start + len(text))
                for text, start in row.target or ()
                if start is not None
            )
            span = next(filter(None, spans), None)
            if training and row.target and span is None:
                self.left_out.append(getattr(row, "where", "") or Message("line {line}", row.line))
                continue
            stride, most = self.settings.stride, self.settings.max_windows
            windows = split_context(question, context, builder, stride=stride, most=most)
            truncated += windows.truncated
            pieces = windows.examples(span)
            if training:
                examples += pieces
                continue
            tags = np.concatenate([piece.tags for piece in pieces if piece.tags is not None])
            examples.append(join(pieces, tags=None if row.target is None else tags))
            notes.append(windows)
        if not examples:
            raise InputError(
                "{left_out}: no row has an answer that occurs in its context", self.left_out[0]
            )
        return EncodedRows(examples, truncated, notes)

    def objective(self, model: "Model") -> "Objective":
        from ownbert.tasks.row_objectives import SpanObjective

        return SpanObjective()

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        """The start and end logits (tokens of all windows, 2) of each row."""
        return np.split(logits, np.cumsum([len(e.token_ids) for e in examples])[:-1])

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        if not self.tuned:
            return
        answers = [self._best(*row) for row in zip(raws, rows, encoded.notes, strict=True)]
        f1 = [
            compare([gold.text for gold in row.target], answer.text)[1]
            for row, answer in zip(rows, answers, strict=True)
        ]
        differences = np.asarray([answer.difference for answer in answers])
        has_answer = np.asarray([bool(row.target) for row in rows])
        self.threshold = best_threshold(differences, np.asarray(f1), has_answer)

    def decide(self, raw: np.ndarray, row: Row, note: QuestionWindows) -> PredictedAnswer:
        best = self._best(raw, row, note)
        limit = self.threshold
        if not (best.start is None or limit is None or best.difference <= limit):
            best = self._no_answer(raw, note, best.difference)
        further = partial(self._further, best, raw, row, note)
        return replace(best, further=further)

    def _best(self, raw: np.ndarray, row: Row, note: QuestionWindows) -> PredictedAnswer:
        """The best answer, even if "no answer" scores higher."""
        span = best_span(raw, note.positions, self.settings.answer_length)
        if span is None:
            return self._no_answer(raw, note, float("inf"))
        difference = null_span(raw, note.positions).score - span.score
        return self._answer(raw, row, note, span, difference)

    def _answer(
        self, raw: np.ndarray, row: Row, note: QuestionWindows, span: Span, difference: float
    ) -> PredictedAnswer:
        """The answer of a span, extended to whole words."""
        start, end = characters(row.texts[1], note.offsets, span.first, span.last)
        score = probability(raw, note.positions, span)
        return PredictedAnswer(row.texts[1][start:end], start, end, score, difference)

    def _no_answer(self, raw: np.ndarray, note: QuestionWindows, difference: float) -> Any:
        score = probability(raw, note.positions, null_span(raw, note.positions))
        return PredictedAnswer("", None, None, score, difference)

    def _further(
        self, best: PredictedAnswer, raw: np.ndarray, row: Row, note: QuestionWindows, most: int
    ) -> list[PredictedAnswer]:
        """The answers of the other spans with the highest scores."""
        spans = best_spans(raw, note.positions, self.settings.answer_length, most + 1)
        answers = [self._answer(raw, row, note, span, best.difference) for span in spans]
        return [a for a in answers if (a.start, a.end) != (best.start, best.end)][:most]

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
        return [answer.as_dict for answer in (decided, *decided.further(most - 1))][:most]

    def plain(self, decided: PredictedAnswer, row: Row) -> str:
        return decided.text

    def is_right(self, decided: PredictedAnswer, row: Row) -> bool:
        return compare([gold.text for gold in row.target], decided.text)[0] == 1

    def score(self, rows: Sequence[Row], decided: Sequence[PredictedAnswer]) -> Scores:
        golds = [[gold.text for gold in row.target] for row in rows]
        return score_answers(golds, [answer.text for answer in decided])

    # Saving.

    def warnings(self) -> list[str]:
        if not self.left_out:
            return []
        return [
            Message(
                "{count:,} of {rows:,} training questions have an answer that does not occur in "
                "their context, and are skipped; the first is {left_out}",
                len(self.left_out),
                self.rows,
                self.left_out[0],
            )
        ]

    def readable_target(self, row: Row) -> str:
        return repr(row.target[0].text) if row.target else "no answer"

    def length_limit(self, max_length: int) -> str:
        return Message(
            "{max_windows} windows of {max_length} tokens, or their questions than "
            "{longest_question} tokens or half a window,",
            self.settings.max_windows,
            max_length,
            LONGEST_QUESTION,
        )

    def fold_keys(self, row: Row) -> Sequence[Hashable]:
        """The context only, because many rows may have the same question."""
        return super().fold_keys(replace(row, texts=row.texts[1:]))

    def label_distribution(self, rows: Sequence[Row]) -> str:
        share = percent(sum(not row.target for row in rows) / len(rows))
        return Message("no answer {share}", share)


def normalise(text: str) -> str:
    """Lower-case, and remove punctuation, articles and extra whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compare(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1, each the maximum over the gold answers; without gold answers both are 1
    for an empty answer and 0 otherwise."""
    pairs = []
    if any(_HAS_CHINESE.search(gold) for gold in golds):
        for gold in golds:
            texts = [t.lower().strip().translate(_CHINESE_PUNCTUATION) for t in (gold, answer)]
            true, found = map(_SEGMENTS.findall, texts)
            common = SequenceMatcher(None, true, found, autojunk=False).find_longest_match().size
            pairs.append((float(texts[0] == texts[1]), _f1(common, len(true), len(found))))
    else:
        predicted = normalise(answer)
        # As in SQuAD's script, gold answers of only articles and punctuation are ignored.
        for text in [text for text in map(normalise, golds) if text] or [""]:
            true, found = text.split(), predicted.split()
            same = float(text == predicted)
            f1 = _f1((Counter(true) & Counter(found)).total(), len(true), len(found))
            pairs.append((same, f1 if true and found else float(true == found)))
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


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
    """The threshold with the best F1 if rows with a larger difference (logit of "no answer" minus
    that of the answer) are left unanswered, from arrays (rows); like ``find_best_thresh`` of
    SQuAD's script, but midway to the next difference, so that rounding does not change the
    result."""
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


def encode_contexts(texts: Sequence[str], builder: TextInputBuilder) -> dict[str, EncodedContext]:
    """Tokenise each distinct text once."""
    unique = list(dict.fromkeys(texts))
    encoded = builder.tokenizer.with_offsets(unique)
    # An empty token (a space before a word) would break the order needed for binary search.
    return {
        text: EncodedContext(ids, np.maximum.accumulate(offsets, axis=0))
        for text, (ids, offsets) in zip(unique, encoded, strict=True)
    }


def token_span(context: EncodedContext, start: int, end: int) -> tuple[int, int] | None:
    """The first and last token of the characters ``start`` to ``end`` (exclusive); None if the
    tokenizer dropped all of them."""
    starts, ends = context.offsets.T
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def characters(text: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """The character span of tokens ``first`` to ``last`` (inclusive), as in ``span_in``, by their
    character offsets (tokens, 2)."""
    return span_in(text, int(offsets[first, 0]), int(offsets[last, 1]))


def split_context(
    question: Sequence[int],
    context: EncodedContext,
    builder: TextInputBuilder,
    *,
    stride: int,
    most: int,
) -> QuestionWindows:
    """Split into at most ``most`` windows "[CLS] question [SEP] part of the context [SEP]". The
    question is truncated to half a window; neighbouring windows share ``stride`` tokens, at most
    half of their context tokens."""
    question_ids = question[: min(LONGEST_QUESTION, builder.pair_room // 2)]
    size = builder.pair_room - len(question_ids)
    step = size - min(stride, size // 2)
    begins = range(0, max(1, len(context.ids) - (size - step)), step)
    pieces, positions, offset = [], [], 0
    for begin in begins[:most]:
        part = context.ids[begin : begin + size]
        ids, types = builder.pair(question_ids, part.tolist())
        end = offset + len(ids)
        first = end - builder.format.behind - len(part)
        cls = end - 1 if builder.format.cls_last else offset
        positions.append(WindowPosition(offset, end, first, begin, len(part), cls))
        pieces.append((ids.astype(np.int32), types.astype(np.int8)))
        offset += len(ids)
    truncated = len(question_ids) < len(question) or len(begins) > most
    return QuestionWindows(tuple(pieces), tuple(positions), truncated, context.offsets)


def best_span(raw: np.ndarray, positions: Sequence[WindowPosition], longest: int) -> Span | None:
    """The span of at most ``longest`` tokens with the highest score within a window, by logits
    (tokens, 2); None if the context has no tokens."""
    best = None
    for number, begin, starts, near in _starts_and_ends(raw, positions, longest):
        scores = starts + near.max(1)
        start = int(scores.argmax())
        if best is None or scores[start] > best.score:
            end = start + int(near[start].argmax())
            best = Span(float(scores[start]), number, begin + start, begin + end)
    return best


def best_spans(
    raw: np.ndarray, positions: Sequence[WindowPosition], longest: int, most: int
) -> list[Span]:
    """The ``most`` spans with the highest scores, best first, without duplicates from overlapping
    windows; see ``best_span``."""
    spans: dict[tuple[int, int], Span] = {}
    for number, begin, starts, near in _starts_and_ends(raw, positions, longest):
        scores = (starts[:, None] + near).ravel()
        chosen = np.argpartition(-scores, min(most, len(scores)) - 1)[:most]
        for place in chosen[np.isfinite(scores[chosen])].tolist():
            start, further = divmod(place, near.shape[1])
            span = Span(float(scores[place]), number, begin + start, begin + start + further)
            previous = spans.get(span[2:])
            if previous is None or span.score > previous.score:
                spans[span[2:]] = span
    return sorted(spans.values(), key=lambda span: (-span.score, *span[1:]))[:most]


def _starts_and_ends(
    raw: np.ndarray, positions: Sequence[WindowPosition], longest: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Yield for each window with context tokens its index, its first context token, the start
    logits (size), and the end logits (size, reach) of tokens from each start on, padded by -inf."""
    for number, (_, _, first, begin, size, _) in enumerate(positions):
        if not size:
            continue
        starts, ends = raw[first : first + size].T  # (size)
        reach = min(longest, size)
        padded = np.concatenate([ends, np.full(reach - 1, -np.inf, dtype=ends.dtype)])
        near = np.lib.stride_tricks.sliding_window_view(padded, reach)  # (size, reach)
        yield number, begin, starts, near


def null_span(raw: np.ndarray, positions: Sequence[WindowPosition]) -> Span:
    """The [CLS] with the lowest score among the windows, the score of "no answer" (Devlin et al.
    2019, section 4.3)."""
    scores = [float(raw[window.cls].sum()) for window in positions]
    number = int(np.argmin(scores))
    return Span(scores[number], number, 0, 0)


def probability(raw: np.ndarray, positions: Sequence[WindowPosition], span: Span) -> float:
    """The probability of a span's start times that of its end, over the tokens of the window."""
    window = positions[span.window]
    window_logits = raw[window.start : window.end].astype(float)
    highest = window_logits.max(0)
    sums = highest + np.log(np.exp(window_logits - highest).sum(0))  # (2)
    return float(np.exp(span.score - sums.sum()))
