"""Where a model is wrong, task by task: answers of tiny models with one thing changed are right but
for that; confident mistakes, failing groups and doubtful labels."""

import copy
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert import InputError, Predictor
from ownbert.checkpoint import save
from ownbert.inspect.error_analysis import analyse_errors, as_lines
from ownbert.inspect.error_judgement import NONE, judge_answers
from ownbert.inspect.explain.methods import METHODS
from ownbert.tables.squad import GoldAnswer
from ownbert.tasks.answer import PredictedAnswer, QuestionRow
from ownbert.vision import vit
from ownbert.vision.pixels import Processor
from support.cli import refusal, run_cli
from support.tiny import change_config, made

SIZES: dict[str, Any] = {"image_size": 8, "patch_size": 4, "channels": 1}
SIZES |= {"hidden_size": 8, "layers": 1, "heads": 2}
TEXTS = ["a b c", "b c d", "c d", "d e f", "e f", "f a", "a d e", "b f"]


def test_a_label_too_many_and_one_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made(tmp_path / "model", "classification")
    change_config(tmp_path / "model", ownbert_task={"name": "multilabel", "threshold": 0.5})
    sure = Predictor(tmp_path / "model").predict_proba(TEXTS)
    threshold = float(np.sort(sure[0])[1])  # of which the first text has two labels
    change_config(tmp_path / "model", ownbert_task={"name": "multilabel", "threshold": threshold})
    predictor = Predictor(tmp_path / "model")
    answers = predictor.predict(TEXTS)
    right = list(zip(TEXTS, answers, strict=True))
    assert analyse_errors(tmp_path / "model", right).errors == 0
    row = next(i for i, own in enumerate(answers) if 0 < len(own) < 3)
    gone, (other, *_) = answers[row][0], [x for x in predictor.labels if x not in answers[row]]
    kept = [*answers[row][1:], other]  # the row's labels, of which the model lacks one
    found = analyse_errors(
        tmp_path / "model", [*right[:row], (TEXTS[row], kept), *right[row + 1 :]], train=right
    )
    assert found.errors == 1 / len(TEXTS)
    assert found.confusions == ((other, gone, 1),)
    columns = {name: i for i, name in enumerate(predictor.labels)}
    extra, missing = sorted(found.mistakes, key=lambda each: each.predicted.startswith("not "))
    assert (extra.label, extra.predicted) == (f"not {gone}", gone)
    assert extra.probability == pytest.approx(sure[row, columns[gone]])
    assert (missing.label, missing.predicted) == (other, f"not {other}")
    assert missing.probability == pytest.approx(1 - sure[row, columns[other]])
    assert extra.neighbour == (", ".join(answers[row]), TEXTS[row])
    assert set(extra.words) <= set(TEXTS[row].split())
    assert {each.label for each in found.label_errors} <= {extra.label, missing.label}
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    shown = "\n".join(as_lines(replace(found, confusions=(("error", NONE, 1),))))
    assert f": 非 {gone} -> {gone} " in shown
    assert "error -> 无: 1" in shown  # the user's label stays as it is


def test_long_texts_are_not_masked_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made(tmp_path / "model", "classification")
    text = " ".join(TEXTS * 16)
    predictor = Predictor(tmp_path / "model")
    other = next(label for label in predictor.labels if label != predictor.predict(text))
    monkeypatch.delitem(METHODS, "leave_one_out")  # type: ignore[arg-type]
    (mistake,) = analyse_errors(tmp_path / "model", [(text, other)]).mistakes
    assert mistake.words
    assert set(mistake.words) <= set(text.split())


def test_the_numbers_that_are_farthest_off(tmp_path: Path):
    made(tmp_path / "model", "classification")
    task = {"name": "regress", "columns": {"label": "one,two,three"}}
    change_config(tmp_path / "model", ownbert_task=task)
    answers = [[one["score"] for one in own] for own in Predictor(tmp_path / "model")(TEXTS)]
    numbers = (dict(zip(("one", "two", "three"), own, strict=True)) for own in answers)
    rows = [{"text": text} | own for text, own in zip(TEXTS, numbers, strict=True)]
    rows[2]["two"] += 100
    rows[5]["two"] -= 50
    found = analyse_errors(tmp_path / "model", rows, most=2)
    assert found.errors == pytest.approx(150 / (3 * len(TEXTS)), rel=1e-3)
    assert [each.texts for each in found.mistakes] == [(TEXTS[2],), (TEXTS[5],)]
    assert [each.probability for each in found.mistakes] == pytest.approx([100, 50], rel=1e-3)
    assert found.confusions == found.label_errors == ()
    shown = as_lines(found)
    assert shown[0] == f"8 rows, mean absolute error {found.errors:.4g}"
    assert shown[shown.index("the largest errors") + 1].endswith("prediction, distance, text")
    values = found.to_dict()
    assert values["mean_absolute_error"] == found.errors
    assert values["mistakes"][0]["error"] == found.mistakes[0].probability
    assert not {"errors", "probability"} & {*values, *values["mistakes"][0]}


def test_entities_of_other_types_and_those_that_are_missed(tmp_path: Path):
    tagger = tmp_path / "model"
    made(tagger, "tokens")
    change_config(tagger, id2label={"0": "B-X", "1": "B-Y", "2": "O"})
    answers = Predictor(tagger).predict(TEXTS)
    right = [{"words": t.split(), "tags": own} for t, own in zip(TEXTS, answers, strict=True)]
    rows = copy.deepcopy(right)
    assert analyse_errors(tagger, rows).errors == 0
    places = [(i, w) for i, row in enumerate(rows) for w, t in enumerate(row["tags"]) if t != "O"]
    first = next(place for place in places)
    second = next(place for place in places if place[0] != first[0])
    kind, other = rows[first[0]]["tags"][first[1]][2:], rows[second[0]]["tags"][second[1]][2:]
    changed = {"X": "Y", "Y": "X"}[kind]
    rows[first[0]]["tags"][first[1]] = f"B-{changed}"
    rows[second[0]]["tags"][second[1]] = "O"
    found = analyse_errors(tagger, rows, train=right)
    assert found.errors == 2 / len(TEXTS)
    assert set(found.confusions) == {(changed, kind, 1), ("none", other, 1)}
    word = rows[first[0]]["words"][first[1]]
    mistake = next(each for each in found.mistakes if each.label != "none")
    assert (mistake.label, mistake.predicted) == (f"{changed}: {word}", f"{kind}: {word}")
    assert mistake.texts == (TEXTS[first[0]],)
    assert mistake.neighbour is not None
    assert mistake.neighbour[1] == TEXTS[first[0]]
    doubtful = {each.texts for each in found.label_errors}
    assert doubtful <= {(TEXTS[place[0]],) for place in (first, second)}


def test_answers_with_another_start_or_end(tmp_path: Path):
    made(tmp_path / "model", "span")
    row: dict[str, Any] = {"question": "a", "context": "b c d"}
    found = Predictor(tmp_path / "model")(row)
    start, end, context = found["start"], found["end"], row["context"]
    right = [row | {"answers": {"text": [context[start:end]], "answer_start": [start]}}] * 3
    assert analyse_errors(tmp_path / "model", right).errors == 0
    gold = next(word for word in context.split() if word != context[start:end])
    wrong = row | {"answers": {"text": [gold], "answer_start": [context.index(gold)]}}
    found = analyse_errors(tmp_path / "model", [*right, wrong], train=right)
    assert found.errors == 1 / 4
    ((label, _, count),) = found.confusions
    assert (label, count) == ("an answer", 1)
    (mistake,) = found.mistakes
    assert (mistake.label, mistake.predicted) == (repr(gold), repr(context[start:end]))
    assert mistake.texts == ("a", context)


def test_whether_start_or_end_of_an_answer_is_right():
    context, gold = "one two three four", GoldAnswer("two three", 4)
    spans = {
        (4, 7): "right start, other end",
        (8, 13): "other start, right end",
        (0, 18): "other start and end, overlapping",
        (14, 18): "elsewhere",
        (None, None): "no answer",
    }
    for (start, end), place in spans.items():
        text = "" if start is None else context[start:end]
        found = PredictedAnswer(text, start, end, 0.5, 0.0)
        row = QuestionRow(1, ("which", context), (gold,), "")
        assert judge_answers(None, [row], [], [found]).pairs == [("an answer", place)]
    none = QuestionRow(1, ("which", context), (), "")
    found = PredictedAnswer("two", 4, 7, 0.5, 0.0)
    judged = judge_answers(None, [none], [], [found])
    assert judged.pairs == [("no answer", "an answer")]
    assert (judged.wrong[0].label, judged.wrong[0].predicted) == ("no answer", "'two'")


def test_choices_that_are_another(tmp_path: Path):
    made(tmp_path / "model", "choice")
    rows = [{"prompt": t, "choices": ["a", "b", "c"]} for t in TEXTS]
    answers = Predictor(tmp_path / "model")(rows)
    right = [r | {"label": a["text"]} for r, a in zip(rows, answers, strict=True)]
    assert analyse_errors(tmp_path / "model", right).errors == 0
    other = next(c for c in "abc" if c != answers[3]["text"])
    wrong = [*right[:3], right[3] | {"label": other}, *right[4:]]
    found = analyse_errors(tmp_path / "model", wrong)
    assert found.errors == 1 / len(TEXTS)
    (mistake,) = found.mistakes
    assert (mistake.label, mistake.predicted) == (other, answers[3]["text"])
    assert mistake.texts == (TEXTS[3],)
    assert mistake.probability == pytest.approx(answers[3]["score"])
    assert found.confusions == found.label_errors == ()


def test_groups_are_named_by_what_their_texts_have(tmp_path: Path):
    made(tmp_path / "model", "classification")
    change_config(tmp_path / "model", ownbert_task={"name": "classify"})
    texts = ["a a a b", "a a a a"] * 25 + ["f f f e", "f f f f"] * 25
    answers = Predictor(tmp_path / "model").predict(texts).tolist()
    other = {"zebra": "ant", "ant": "7", "7": "zebra"}
    rows = [
        (text, other[own] if text.startswith("f") else own)
        for text, own in zip(texts, answers, strict=True)
    ]
    found = analyse_errors(tmp_path / "model", rows)
    assert found.errors == 0.5
    alike = [group for group in found.groups if group.name.startswith("similar texts")]
    assert alike
    named = {
        word for each in alike for word in each.name.split("such as those with ")[1].split(", ")
    }
    assert named <= {"e", "f"}
    assert all(group.errors == 1 for group in alike)


def test_images_are_named(tmp_path: Path):
    model = vit.make_model(**SIZES, labels=["bright", "dark"])
    vit_folder = tmp_path / "model"
    save(model, vit_folder)
    Processor(size=(8, 8), mean=(0.5,), std=(0.5,), channels=1).save(vit_folder)
    images = np.zeros((12, 8, 8), np.uint8)
    answers = Predictor(vit_folder).predict(images)
    other = {"bright": "dark", "dark": "bright"}[answers[0]]
    np.savez(tmp_path / "test.npz", images=images, labels=[other, *answers[1:]])
    done = run_cli("errors", vit_folder, tmp_path / "test.npz", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == pytest.approx(1 / 12)
    (mistake,) = found["mistakes"]
    assert "test.npz" in mistake["texts"][0]
    assert (mistake["label"], mistake["words"]) == (other, [])
    with pytest.raises(InputError, match="omit train"):
        analyse_errors(vit_folder, tmp_path / "test.npz", train=tmp_path / "test.npz")


@pytest.fixture(scope="module")
def rows(topics: Path) -> list[tuple[str, str]]:
    with (topics / "test.csv").open(newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def test_wrong_labels_are_found_and_named(classifier: Path, rows: list[tuple[str, str]]):
    predictor = Predictor(classifier)
    # The surest answer first, which contradicts a wrong label the most.
    sure = predictor.predict_proba([text for text, _ in rows]).max(1)
    rows = [rows[i] for i in np.argsort(-sure, kind="stable")]
    answers = predictor.predict([text for text, _ in rows]).tolist()
    right = [(text, answer) for (text, _), answer in zip(rows, answers, strict=True)]
    assert analyse_errors(classifier, right).errors == 0
    labels = sorted(set(answers))
    other = labels[(labels.index(answers[0]) + 1) % len(labels)]
    found = analyse_errors(classifier, [(right[0][0], other), *right[1:]], train=right)
    assert found.errors == pytest.approx(1 / len(rows))
    assert found.confusions == ((other, answers[0], 1),)
    (mistake,) = found.mistakes
    assert (mistake.texts, mistake.label) == ((rows[0][0],), other)
    assert (mistake.predicted, mistake.neighbour) == (answers[0], (answers[0], rows[0][0]))
    assert set(mistake.words) <= set(rows[0][0].split())
    assert found.label_errors == (mistake,)


def test_a_label_that_is_never_right_is_a_failing_group(
    classifier: Path, rows: list[tuple[str, str]]
):
    answers = Predictor(classifier).predict([text for text, _ in rows]).tolist()
    labels = sorted(set(answers))
    many = [
        (text, labels[0] if answer == labels[1] else answer)
        for (text, _), answer in zip(rows, answers, strict=True)
    ] * 4
    found = analyse_errors(classifier, many, most=3)
    (group,) = (group for group in found.groups if group.name == f"label {labels[0]}")
    assert group.errors > found.errors
    assert len(found.mistakes) == 3
    probabilities = [mistake.probability for mistake in found.mistakes]
    assert probabilities == sorted(probabilities, reverse=True)


def test_a_text_is_one_line(classifier: Path, rows: list[tuple[str, str]]):
    answer = str(Predictor(classifier).predict([rows[0][0]])[0])
    other = next(label for _, label in rows if label != answer)
    broken = rows[0][0].replace(" ", "\r\n", 2)
    lines = as_lines(analyse_errors(classifier, [(broken, other)], train=[(broken, other)] * 2))
    at = lines.index("the most confident mistakes")
    assert lines[at + 1] == "  line: label -> prediction, its probability, text"
    assert lines[at + 2].endswith(rows[0][0][:100])
    assert not any("\n" in line or "\r" in line for line in lines)


def test_on_the_command_line(classifier: Path, topics: Path, tmp_path: Path):
    done = run_cli("errors", classifier, topics / "test.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == len((topics / "test.csv").read_text().splitlines()) - 1
    done = run_cli("errors", classifier, topics / "test.csv", "--train", topics / "train.csv")
    assert "rows are wrong" in done.stdout.splitlines()[0]
    made(tmp_path / "pairs")
    (tmp_path / "pairs" / "modules.json").write_text("[]")
    found = refusal("errors", tmp_path / "pairs", "--data", topics / "test.csv")
    assert "is a model for embed; ownbert errors supports classify, multilabel" in found
    with pytest.raises(InputError, match="is not in the model"):
        analyse_errors(classifier, [("a", "no such label"), ("b", "c")])
