"""One tag per word: names, parts of speech, chunks. W words of a sentence, C tags."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ownbert.checkpoint import Description
from ownbert.config import HeadSpec
from ownbert.data.batch import Batch, Example
from ownbert.data.readers.columns import COLUMNS
from ownbert.data.readers.tables import place
from ownbert.errors import InputError
from ownbert.nn.heads import TokenHead
from ownbert.nn.model import Model
from ownbert.tasks.classification import in_order
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import Row, unknown_label
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder
from ownbert.tasks.token_classification.entities import (
    are_entity_tags,
    entities,
    entity_scores,
    inside,
    orphans,
    single_scores,
)
from ownbert.tasks.token_classification.tag_objectives import (
    SentenceTags,
    TokenTags,
    word_counts,
    word_marginals,
)
from ownbert.tasks.token_classification.tag_rows import read_sentences, stream_sentences, text_of
from ownbert.tasks.token_classification.word_windows import (
    join_windows,
    pieces_of,
    window_example,
    windows_of,
)

_SHOWN = 20  # kinds of entities, or tags, of a file


@dataclass(frozen=True)
class Tagged:
    """tags: one per word. probabilities (W): of these."""

    tags: tuple[str, ...]
    probabilities: np.ndarray


class Tag(Task):
    """Softmax over the tags at the first piece of each word, or a CRF over these.

    A sentence that is too long is read in windows that share words, and each word is answered
    where it stands farthest from an edge. So none is ever cut.
    """

    name = "tag"
    column_specs = COLUMNS["tag"]
    head = "tokens"
    measures = ("f1", "precision", "recall", "token_accuracy")
    uses = frozenset({"stride", "label_smoothing", "crf", "tag_all", "rdrop"})
    unit = "sentences"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.odd: list[str] = []
        for name in ("label_smoothing", "tag_all"):
            if self.settings.crf and getattr(self.settings, name):
                raise InputError(f"task.{name} is of no use with task.crf; leave one of them out")

    # Reading.

    def read(self, path: str | Path) -> list[Row]:
        return read_sentences(path, self.columns)

    def stream(self, path: str | Path) -> Iterator[Row]:
        return stream_sentences(path, self.columns)

    def learn(self, rows: Sequence[Row], source: str | Path) -> None:
        names = {tag for row in rows for tag in row.target}
        if len(names) < 2:
            raise InputError(
                f"{source}: all words have the tag {names.pop()!r}; at least two needed"
            )
        self.labels = in_order(names)
        self.odd = []
        if not are_entity_tags(names):
            return
        found = [(row, word) for row in rows for word in orphans(row.target)]
        if found:
            row, word = found[0]
            self.odd.append(
                f"{len(found):,} training words go on with an entity that no word before them "
                f"began, as word {word + 1} ({row.target[word]}) of the sentence at "
                f"{place(source, row.line)}; each is taken for the first word of one"
            )

    def check(self, rows: Sequence[Row], source: str | Path, known: str) -> None:
        labels = set(self.labels)
        for row in rows:
            for number, tag in enumerate(row.target, 1):
                if tag not in labels:
                    where = f"{row.place(source)}, word {number}"
                    raise unknown_label(tag, self.labels, where, known, kind="tag")

    # To the model and back.

    def spec(self, said: Description) -> HeadSpec:
        return replace(super().spec(said), crf=self.settings.crf)

    def encode(
        self, rows: Sequence[Row], builder: TextInputBuilder, *, training: bool
    ) -> EncodedRows:
        ids = pieces_of([word for row in rows for word in row.texts], builder)
        numbers = {label: i for i, label in enumerate(self.labels)}
        further = None
        if training and self.settings.tag_all:
            further = [numbers.get(inside(tag), i) for tag, i in numbers.items()]
        examples: list[Example] = []
        for row in rows:
            tags = None if row.target is None else [numbers[tag] for tag in row.target]
            pieces = [ids[word] for word in row.texts]
            windows = windows_of([len(p) for p in pieces], builder.room, self.settings.stride)
            made = [window_example(w, pieces, tags, builder, further=further) for w in windows]
            # A long sentence is learnt window by window, and answered as one.
            parts = [[example] for example in made] if training else [made]
            examples += map(join_windows, parts)
        return EncodedRows(examples, 0, [None] * len(examples))

    def objective(self, model: Model) -> TokenTags:
        head = model.heads[self.head]
        assert isinstance(head, TokenHead)
        if head.crf is not None:
            return SentenceTags(crf=head.crf)
        return TokenTags(smoothing=self.settings.label_smoothing)

    def raw(self, logits: Tensor, batch: Batch, model: Model) -> list[np.ndarray]:
        """Probabilities (W, C) of each sentence, of a CRF the marginal ones."""
        assert batch.tags is not None
        head = model.heads[self.head]
        assert isinstance(head, TokenHead)
        if head.crf is None:
            found = logits[batch.tags >= 0].float().softmax(-1)
        else:
            found = word_marginals(logits, batch, head.crf).exp()
        return np.split(found.cpu().numpy(), np.cumsum(word_counts(batch))[:-1])

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> Tagged:
        return Tagged(tuple(self.labels[i] for i in raw.argmax(-1)), raw.max(-1))

    def shown(self, decided: Tagged, row: Row) -> dict[str, Any]:
        """Entities with their characters in ``text``; their score is the mean probability of
        their tags."""
        text, starts = text_of(row)
        found: dict[str, Any] = {
            "text": text,
            "words": list(row.texts),
            "tags": list(decided.tags),
        }
        if are_entity_tags(self.labels):
            found["entities"] = [
                {
                    "type": kind,
                    "start": starts[first],
                    "end": (end := starts[after - 1] + len(row.texts[after - 1])),
                    "text": text[starts[first] : end],
                    "score": round(float(decided.probabilities[first:after].mean()), 6),
                }
                for kind, first, after in entities(decided.tags)
            ]
        return found

    def score(self, rows: Sequence[Row], decided: Sequence[Tagged]) -> Scores:
        truth, found = [row.target for row in rows], [one.tags for one in decided]
        if are_entity_tags(self.labels):
            return entity_scores(truth, found)
        return single_scores(truth, found, self.labels)

    # For people.

    def warnings(self) -> list[str]:
        return self.odd

    def kept_together(self, row: Row) -> Sequence[Any]:
        return (row.texts,)

    def preview(self, row: Row) -> str:
        return " ".join(row.target)

    def shares(self, rows: Sequence[Row]) -> str:
        if are_entity_tags(self.labels):
            kinds = Counter(kind for row in rows for kind, _, _ in entities(row.target))
        else:
            kinds = Counter(tag for row in rows for tag in row.target)
        return ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(_SHOWN))
