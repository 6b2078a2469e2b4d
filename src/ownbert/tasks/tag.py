"""One tag per word: names, parts of speech, chunks; their entities and metrics.

Entities in tag sequences follow the rules of conlleval (Tjong Kim Sang and Buchholz 2000). A tag is
O, or a letter and a type: B begins an entity, I (M) continues it, E (L) ends it, S (U) is a single
word; so BIO, IOBES, BILOU and BMES are all supported. A continuation without a beginning begins an
entity, so that every tag sequence is valid. The entities are those of seqeval's default mode. Tags
without letters (PER, LOC, O) are plain: their entities are those of Transformers pipelines with
aggregation_strategy "simple".
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.batches.word_features import word_table
from ownbert.checkpoint import Description
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.tables.memory import is_table, items
from ownbert.tables.tables import Source, place
from ownbert.tasks.classification import sort_labels
from ownbert.tasks.metrics import Scores, label_scores, score_labels
from ownbert.tasks.row_network import RowNetwork, softmax
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row, unknown_label
from ownbert.tasks.tag_rows import (
    WordWindow,
    encode_words,
    join_windows,
    read_sentences,
    split_into_windows,
    stream_sentences,
    text_of,
    window_example,
)
from ownbert.tasks.task import DEFAULT, Task
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.tasks.row_objectives import TaggingObjective


_SHOWN = 20  # maximum entity types or tags shown for a file
_TAG = re.compile(r"([BIESMLU])(?:-(.+))?")
_PLAIN = re.compile(r"(?:([BI])-)?(.+)", re.DOTALL)
_SYNONYMS = {"M": "I", "L": "E", "U": "S"}
OUTSIDE = "O"
# Type, index of the first word, and index after the last word.
Entity = tuple[str, int, int]


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with one predicted tag per word, and the probabilities (words) of these tags."""

    tags: tuple[str, ...]
    probabilities: np.ndarray


class TaggingTask(Task):
    """Softmax over the tags at the first token of each word, optionally with a CRF. A sentence that
    is too long is split into overlapping windows, and each word is tagged in the window where it is
    farthest from an edge. So sentences are never truncated."""

    name = "tag"
    purpose = "assigns a tag to each word of a text"
    transformers_lines = (
        'ids = tokenizer(TEXTS, truncation=True, return_tensors="pt").input_ids',
        "tags = model(ids).logits[0].argmax(-1).tolist()",
        "words = tokenizer.convert_ids_to_tokens(ids[0])",
        "print([(word, model.config.id2label[tag]) for word, tag in zip(words, tags)])",
    )
    label_heading = "{count} labels"
    head = "tokens"
    metrics = ("f1", "precision", "recall", "token_accuracy")
    gives_probabilities = True
    output_options = frozenset({"threshold"})
    text_keys = ()  # ``output_row`` may join the words to a text
    unit = "sentences"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.orphan_warnings: list[str] = []
        for name in ("label_smoothing", "tag_all"):
            if self.settings.crf and getattr(self.settings, name):
                raise InputError(
                    "task.{name} cannot be combined with task.crf; omit one of them", name
                )

    # Reading.

    def read(self, path: Source) -> list[Row]:
        return read_sentences(path, self.columns)

    def stream(self, path: Source) -> Iterator[Row]:
        return stream_sentences(path, self.columns)

    def is_one_row(self, data: Any) -> bool:
        if isinstance(data, Mapping) and len(data) == 1:  # a list may be the words of one row
            (cells,) = data.values()
            if not is_table(cells):
                return isinstance(cells, str) or all(isinstance(w, str) for w in items(cells))
        return super().is_one_row(data)

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        names = {tag for row in rows for tag in row.target}
        if len(names) < 2:
            raise InputError(
                "{source}: all words have the tag {names!r}; at least two tags are needed",
                source,
                names.pop(),
            )
        self.labels = sort_labels(names)
        self.orphan_warnings = []
        if not are_entity_tags(names):
            return
        orphan_words = [(row, word) for row in rows for word in orphans(row.target)]
        if orphan_words:
            row, word = orphan_words[0]
            self.orphan_warnings.append(
                Message(
                    "{count:,} training words continue an entity that no word before them began, "
                    "such as word {index} ({tag}) of the sentence at {place}; each is treated as "
                    "the first word of an entity",
                    *(len(orphan_words), word + 1, row.target[word], place(source, row.line)),
                )
            )

    def check(self, rows: Sequence[Row], source: Source, known: str) -> None:
        labels = set(self.labels)
        for row in rows:
            for number, tag in enumerate(row.target, 1):
                if tag not in labels:
                    where = Message("{place}, word {index}", row.place(source), number)
                    raise unknown_label(tag, self.labels, where, known, kind="tag")

    # Model inputs and outputs.

    def head_spec(self, description: Description) -> HeadSpec:
        return replace(super().head_spec(description), crf=self.settings.crf)

    def encode(
        self, rows: Sequence[Row], builder: TextInputBuilder, *, training: bool
    ) -> EncodedRows:
        ids = encode_words((word for row in rows for word in row.texts), builder)
        indices = {label: i for i, label in enumerate(self.labels)}
        continuation = None
        if training and self.settings.tag_all:
            # Of a word whose tag begins an entity, the other tokens continue it.
            begins = {tag for tag in indices if _parsed(tag)[0] == "B"}
            other = ((f"I{tag[1:]}" if tag in begins else tag, i) for tag, i in indices.items())
            continuation = [indices.get(tag, i) for tag, i in other]
        examples: list[Example] = []

        def table(row: Row, window: WordWindow, sizes: Sequence[int]) -> np.ndarray | None:
            """The words of a window with their features."""
            if not self.features:
                return None
            words = slice(window.start, window.stop)
            cells = tuple(tags[words] for tags in row.features)
            special = builder.format.before, builder.format.behind
            return word_table(sizes[words], cells, self.features, special)

        for row in rows:
            tags = None if row.target is None else [indices[tag] for tag in row.target]
            pieces = [ids[word] for word in row.texts]
            sizes = list(map(len, pieces))
            windows = split_into_windows(sizes, builder.room, self.settings.stride)
            examples_of_windows = (
                window_example(
                    window,
                    pieces,
                    tags,
                    builder,
                    continuation=continuation,
                    words=table(row, window, sizes),
                )
                for window in windows
            )
            # Each window is a training example; for inference a sentence's windows are one example.
            if training:
                examples += [join_windows([window]) for window in examples_of_windows]
            else:
                examples.append(join_windows(examples_of_windows, marks=tags is None))
        return EncodedRows(examples)

    def objective(self, model: "Model") -> "TaggingObjective":
        from ownbert.nn.output_heads import TokenHead
        from ownbert.tasks.row_objectives import CrfObjective, TaggingObjective

        head = model.heads[self.head]
        assert isinstance(head, TokenHead)
        if head.crf is not None:
            return CrfObjective(crf=head.crf)
        return TaggingObjective(smoothing=self.settings.label_smoothing)

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        """Tag probabilities (words, C) of each sentence; for a CRF the marginals."""
        words = [e.tags >= 0 for e in examples if e.tags is not None]
        counts = [int(sentence.sum()) for sentence in words]
        emissions = logits[np.concatenate(words)]
        if network.crf is None:
            probabilities = softmax(emissions)
        else:
            from ownbert.tasks.row_objectives import marginals

            probabilities = marginals(emissions, counts, network.crf)
        return np.split(probabilities, np.cumsum(counts)[:-1])

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> TaggedSentence:
        return TaggedSentence(tuple(self.labels[i] for i in raw.argmax(-1)), raw.max(-1))

    def output_row(
        self, decided: TaggedSentence, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        """Text, words, tags, and entities (if there is a tag O, or B- and I-) with their character
        spans; the score of an entity is the mean probability of its tags."""
        text, _ = text_of(row)
        output: Any = {"text": text, "words": list(row.texts), "tags": list(decided.tags)}
        if OUTSIDE in self.labels or are_entity_tags(self.labels):
            output["entities"] = [
                {"type": kind, "start": start, "end": end, "text": part, "score": round(score, 6)}
                for kind, score, part, start, end in self._spans(decided, row)
                if options.threshold is None or score >= options.threshold
            ]
        return output

    def answer(self, decided: TaggedSentence, row: Row, top_k: int | None = DEFAULT) -> Any:
        """Entities in the format of Transformers pipelines with aggregation_strategy "first", or
        "simple" for plain tags."""
        names = ("entity_group", "score", "word", "start", "end")
        return [dict(zip(names, span, strict=True)) for span in self._spans(decided, row)]

    def entities(self, tags: Sequence[str]) -> list[Entity]:
        """The entities of a sentence, also of plain tags."""
        return entities(tags, plain=not are_entity_tags(self.labels))

    def _spans(
        self, decided: TaggedSentence, row: Row
    ) -> Iterator[tuple[str, float, str, int, int]]:
        """Yield the entities of a sentence: type, mean probability of their tags, text, and
        character span, end exclusive."""
        text, starts = text_of(row)
        for kind, first, after in self.entities(decided.tags):
            start, end = starts[first], starts[after - 1] + len(row.texts[after - 1])
            score = float(decided.probabilities[first:after].mean())
            yield kind, score, text[start:end], start, end

    def plain(self, decided: TaggedSentence, row: Row) -> list[str]:
        return list(decided.tags)

    def is_right(self, decided: TaggedSentence, row: Row) -> bool:
        return decided.tags == tuple(row.target)

    def score(self, rows: Sequence[Row], decided: Sequence[TaggedSentence]) -> Scores:
        truth, predicted = [row.target for row in rows], [sentence.tags for sentence in decided]
        if are_entity_tags(self.labels):
            return score_entities(truth, predicted)
        return score_tags(truth, predicted, self.labels)

    # For the user.

    def warnings(self) -> list[str]:
        return self.orphan_warnings

    def fold_keys(self, row: Row) -> Sequence[Hashable]:
        return super().fold_keys(replace(row, texts=(" ".join(row.texts),)))

    def explained_count(self, tokens: int) -> int:
        return tokens  # each entity, and there may be as many as words

    def pretraining_texts(self, row: Row) -> Sequence[str]:
        return (" ".join(row.texts),)

    def readable_target(self, row: Row) -> str:
        return " ".join(row.target)

    def label_distribution(self, rows: Sequence[Row]) -> str:
        if are_entity_tags(self.labels):
            kinds = Counter(kind for row in rows for kind, _, _ in entities(row.target))
        else:
            kinds = Counter(tag for row in rows for tag in row.target)
        return ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(_SHOWN))


def tagged_words(decided: TaggedSentence, row: Row) -> list[dict[str, Any]]:
    """Every word, also those tagged O, with its tag, index and character span, in the format of
    Transformers pipelines without aggregation."""
    _, starts = text_of(row)
    ends = (start + len(word) for start, word in zip(starts, row.texts, strict=True))
    scores, indices = decided.probabilities.tolist(), range(1, len(row.texts) + 1)
    names = ("entity", "score", "index", "word", "start", "end")
    words = zip(decided.tags, scores, indices, row.texts, starts, ends, strict=True)
    return [dict(zip(names, word, strict=True)) for word in words]


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether all tags are O or a letter and a type, and at least one is not O."""
    others = [tag for tag in tags if tag != OUTSIDE]
    return bool(others) and all(map(_TAG.fullmatch, others))


def _parsed(tag: str, *, plain: bool = False) -> tuple[str, str]:
    """B, I, E, S or O, and the type, "_" if there is none."""
    match = None if tag == OUTSIDE else (_PLAIN if plain else _TAG).fullmatch(tag)
    if match is None:
        return OUTSIDE, "_"
    letter = match[1] or "I"
    return _SYNONYMS.get(letter, letter), match[2] or "_"


def entities(tags: Sequence[str], *, plain: bool = False) -> list[Entity]:
    """The entities of a sentence, in order and without overlap. If ``plain``, tags are types, and
    adjacent words with the same tag are one entity."""
    spans: list[Entity] = []
    kind, start = None, 0
    before = OUTSIDE
    parsed = (_parsed(tag, plain=plain) for tag in [*tags, OUTSIDE])
    for position, (letter, parsed_kind) in enumerate(parsed):
        if kind is not None and (letter in "OBS" or parsed_kind != kind or before in "ES"):
            spans.append((kind, start, position))
            kind = None
        if kind is None and letter != OUTSIDE:
            kind, start = parsed_kind, position
        before = letter
    return spans


def orphans(tags: Sequence[str]) -> list[int]:
    """Indices of words whose tag continues (I) or ends (E) an entity that was not begun."""
    parsed = [(OUTSIDE, "_"), *map(_parsed, tags)]
    return [
        place
        for place, (before, current) in enumerate(pairwise(parsed))
        if current[0] in "IE" and (before[0] not in "BI" or before[1] != current[1])
    ]


def score_entities(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Precision, recall and F1 of entities, micro-averaged and by type; an entity is correct if its
    type, first word and last word are."""
    _, gold, found = counts = Counter[str](), Counter[str](), Counter[str]()
    for true_tags, tags in zip(truth, predicted, strict=True):
        true, own = set(entities(true_tags)), set(entities(tags))
        for counter, spans in zip(counts, (true & own, true, own), strict=True):
            counter.update(kind for kind, _, _ in spans)
    kinds = sorted({*gold, *found})
    by_kind = [np.asarray([counter[kind] for kind in kinds], dtype=int) for counter in counts]
    (micro,) = label_scores(["all"], *(numbers.sum(keepdims=True) for numbers in by_kind))
    values = {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall}
    pairs = zip(truth, predicted, strict=True)
    right_tags = sum(a == b for tags, others in pairs for a, b in zip(tags, others, strict=True))
    values["token_accuracy"] = right_tags / max(1, sum(map(len, truth)))
    return Scores(values, label_scores(kinds, *by_kind))


def score_tags(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> Scores:
    """Metrics of tags other than entity tags; the micro-averages equal the accuracy."""
    indices = {label: i for i, label in enumerate(labels)}
    true, found = ([indices[t] for tags in rows for t in tags] for rows in (truth, predicted))
    by_tag = score_labels(true, found, labels)
    warning = (
        "the tags are not entity tags (such as O, B-x, I-x): f1, precision and recall are the "
        "share of correctly tagged words; scores per label are those of single tags"
    )
    names = ("f1", "precision", "recall", "token_accuracy")
    values: dict[str, float] = dict.fromkeys(names, by_tag.accuracy)
    return replace(by_tag, values=values, warnings=(warning,))
