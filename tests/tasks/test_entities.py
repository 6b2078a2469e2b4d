"""Entities in tags: against seqeval; their places in texts; published files."""

import ast
import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from sklearn.metrics import f1_score

from ownbert.tables.columns import ColumnNames
from ownbert.tasks.rows import Row
from ownbert.tasks.tag import (
    TaggedSentence,
    TaggingTask,
    are_entity_tags,
    entities,
    orphans,
    score_entities,
    score_tags,
)
from ownbert.tasks.tag_rows import read_sentences, split_text, text_of


def test_entities_and_scores_are_those_of_seqeval():
    rng = random.Random(0)
    for letters in ("BI", "BIES"):
        tags = ["O", *(f"{a}-{b}" for a in letters for b in ("x", "long-name"))]
        truth, found = (
            [[rng.choice(tags) for _ in range(rng.randint(1, 12))] for _ in range(60)]
            for _ in range(2)
        )
        found = [(f * 12)[: len(t)] for t, f in zip(truth, found, strict=True)]
        for sequence in truth:
            expected = [(kind, a, b + 1) for kind, a, b in get_entities(sequence)]
            assert entities(sequence) == expected
        scores = score_entities(truth, found)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            micro = precision_recall_fscore_support(truth, found, average="micro")
            each = precision_recall_fscore_support(truth, found, average=None)
        assert (scores.precision, scores.recall, scores.f1) == pytest.approx(micro[:3])
        ours = [(s.precision, s.recall, s.f1, s.support) for s in scores.labels]
        assert np.asarray(ours) == pytest.approx(np.asarray(each).T)


def test_other_letters_mean_the_same():
    iobes = ["B-x", "I-x", "E-x", "S-y", "O"]
    assert entities(iobes) == [("x", 0, 3), ("y", 3, 4)]
    assert entities(["B-x", "I-x", "L-x", "U-y", "O"]) == entities(iobes)
    assert entities(["B-x", "M-x", "E-x", "S-y", "O"]) == entities(iobes)
    assert entities(["B", "I", "O"]) == [("_", 0, 2)]
    assert orphans(["I-x", "I-x", "I-y", "O", "E-y", "B-x", "E-x"]) == [0, 2, 4]
    assert are_entity_tags(["O", "B-x", "I-x"])
    assert not are_entity_tags(["NN", "O", "B-x"])
    assert not are_entity_tags(["O"])


def test_adjacent_words_with_the_same_plain_tag_are_one_entity():
    tags = ["PER", "PER", "O", "LOC", "PER", "B-x", "I-x", "B-x", "S-x"]
    assert entities(tags, plain=True) == [
        *(("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5)),
        *(("x", 5, 7), ("x", 7, 8), ("S-x", 8, 9)),
    ]


def test_single_tags_have_their_own_f1():

    truth, found = [["NN", "VB", "NN"], ["DT"]], [["NN", "NN", "VB"], ["DT"]]
    scores = score_tags(truth, found, ["DT", "NN", "VB"])
    assert scores.f1 == scores.token_accuracy == 0.5
    flat = [[tag for tags in each for tag in tags] for each in (truth, found)]
    expected = f1_score(*flat, average=None, labels=["DT", "NN", "VB"])  # pyright: ignore[reportArgumentType]
    assert [s.f1 for s in scores.labels] == pytest.approx(expected)
    assert "not entity tags" in scores.warnings[0]


def test_offsets_are_into_the_text_or_the_words_joined():
    task = TaggingTask(labels=("B-x", "I-x", "O"))
    tagged = TaggedSentence(("B-x", "O", "B-x", "I-x"), np.asarray([0.5, 0.6, 0.8, 1.0]))
    spaced = "  Ann   saw\tNew  York"
    for row, text in (
        (split_text(1, spaced), spaced),
        (Row(1, ("Ann", "saw", "New", "York")), "Ann saw New York"),
        (Row(1, ("我", "在", "北", "京")), "我在北京"),
        (Row(1, ("a", "b", "c", "d")), "a b c d"),
        (Row(1, ("我们", "在", "北", "京")), "我们 在 北 京"),
    ):
        found = task.output_row(tagged, row)
        assert found["text"] == text
        assert (found["words"], found["tags"]) == (list(row.texts), list(tagged.tags))
        assert [e["text"] for e in found["entities"]] == [
            text[e["start"] : e["end"]] for e in found["entities"]
        ]
        first, second = found["entities"]
        assert first["text"] == row.texts[0]
        assert second["text"].startswith(row.texts[2])
        assert second["text"].endswith(row.texts[3])
        assert (first["score"], second["score"]) == (0.5, 0.9)
    empty = task.output_row(TaggedSentence((), np.zeros(0)), split_text(1, ""))
    assert empty == {"text": "", "words": [], "tags": [], "entities": []}


@pytest.mark.parametrize("name", ["wnut17", "weibo-ner"])
def test_published_entities_are_counted_as_published(shared_data: Path, name: str):
    said = (shared_data / name / "SOURCE.md").read_text(encoding="utf-8")
    counts = said[said.index("{'train'") :]
    published = ast.literal_eval(counts[: counts.index("})}") + 3])
    for part, (number, by_type) in published.items():
        path = shared_data / name / f"{part}.conll"
        rows = read_sentences(path, ColumnNames())
        found = Counter(kind for row in rows for kind, _, _ in entities(row.target))
        # What no word began is an entity to us, and was not counted there.
        found.subtract(row.target[place][2:] for row in rows for place in orphans(row.target))
        assert (len(rows), dict(found)) == (number, by_type)
        for row in rows:
            text, starts = text_of(row)
            ends = [s + len(w) for s, w in zip(starts, row.texts, strict=True)]
            cut = [text[a:b] for a, b in zip(starts, ends, strict=True)]
            assert tuple(cut) == row.texts
