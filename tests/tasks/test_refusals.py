"""What would lose data, or answer something else than was asked, is refused."""

import json
import os
from pathlib import Path

import pytest

from ownbert import InputError, evaluate, finetune, predict
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.regression import RegressionTask
from ownbert.tasks.sentence_task import SentenceTask
from ownbert.tasks.task import KEY


def test_a_file_is_not_written_over_by_what_is_read_from_it(
    classifier: Path, topics: Path, tmp_path: Path
):
    data = tmp_path / "data.csv"
    data.write_bytes((topics / "test.csv").read_bytes())
    other = tmp_path / "other.csv"
    os.link(data, other)
    before = data.read_bytes()
    for output in (data, tmp_path / ".." / tmp_path.name / "data.csv", other):
        with pytest.raises(InputError, match="is read by this command"):
            predict(classifier, data, output)
        with pytest.raises(InputError, match="is read by this command"):
            evaluate(classifier, data, output=output)
    assert data.read_bytes() == before


def test_answers_have_a_known_ending(classifier: Path, topics: Path, tmp_path: Path):
    for name in ("a.feather", "a.txt", "a", "a.gz"):
        with pytest.raises(InputError, match=r"its name must end with one of \.jsonl"):
            predict(classifier, topics / "test.csv", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_written_to_json_alone(classifier: Path, topics: Path, tmp_path: Path):
    for name in ("metrics.txt", "metrics.csv"):
        with pytest.raises(InputError, match=r"its name must end with \.json"):
            evaluate(classifier, topics / "test.csv", output=tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    evaluate(classifier, topics / "test.csv", output=tmp_path / "metrics.JSON")
    assert json.loads((tmp_path / "metrics.JSON").read_text())


def test_single_texts_and_pairs_are_not_mixed_up(classifier: Path, pretrained, tmp_path: Path):
    pairs = tmp_path / "pairs.csv"
    rows = [f"{'red' if i % 2 else 'blue'},red{i % 12} 9,blue{i % 7} 9" for i in range(20)]
    pairs.write_text("label,sentence1,sentence2\n" + "\n".join(rows) + "\n")
    single = tmp_path / "single.csv"
    single.write_text("label,text\n" + "\n".join(f"red,red{i} 9" for i in range(8)) + "\n")
    # The single text of a table with the columns of a pair is not guessed to be one.
    with pytest.raises(InputError, match="text_column"):
        predict(classifier, pairs, tmp_path / "p.jsonl")
    with pytest.raises(InputError, match="was trained on single texts"):
        predict(classifier, pairs, tmp_path / "p.jsonl", second_column="sentence2")
    output = tmp_path / "out"
    finetune("classify", model=pretrained, train=pairs, output=output, max_steps=2, quiet=True)
    for act in (predict, evaluate):
        more = (tmp_path / "p.jsonl",) if act is predict else ()
        with pytest.raises(InputError, match="has one text per row, but two are needed"):
            act(output, single, *more)
    with pytest.raises(InputError, match="has one text per row, but two are needed"):
        finetune("classify", model=pretrained, train=pairs, dev=single, output=tmp_path / "no")
    assert predict(output, pairs, tmp_path / "p.jsonl") == 20


@pytest.mark.parametrize("kind", [ClassificationTask, MultiLabelTask, RegressionTask])
def test_every_folder_knows_how_many_texts_it_learnt_from(kind: type[SentenceTask]):
    task, other = kind(labels=("a", "b")), kind(labels=("a", "b"))
    task.pair, task.max_length = True, 32
    other.restore(task.values()[KEY])
    assert (other.pair, other.max_length) == (True, 32)


def test_a_training_that_has_not_ended_says_so(tmp_path: Path, topics: Path):
    with pytest.raises(InputError, match="no such folder"):
        predict(tmp_path / "no", topics / "test.csv", tmp_path / "p.jsonl")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "recipe.yaml").write_text("seed: 0\n")
    with pytest.raises(InputError, match="its training is not finished"):
        evaluate(begun, topics / "test.csv")


def test_runs_of_an_ensemble_stay_alike(pretrained: Path, topics: Path, tmp_path: Path):
    given = {"model": pretrained, "train": topics / "train.csv", "quiet": True}
    finetune("classify", output=tmp_path / "it", folds=2, epochs=1, **given)
    for change in ({"epochs": 2}, {"epochs": 1, "learning_rate": 1e-5}):
        with pytest.raises(InputError, match="would no longer be comparable; keep"):
            finetune("classify", output=tmp_path / "it", folds=2, resume=True, **given, **change)


def test_vectors_need_something_to_tell_apart(pretrained: Path, tmp_path: Path):
    def train(rows: list[tuple[str, str]], **options) -> None:
        path = tmp_path / "pairs.jsonl"
        lines = (json.dumps({"query": one, "document": two}) for one, two in rows)
        path.write_text("\n".join(lines) + "\n")
        finetune("embed", model=pretrained, train=path, output=tmp_path / "no", **options)

    with pytest.raises(InputError, match="at least two pairs that differ"):
        train([("red1", "red2")] * 4)
    with pytest.raises(InputError, match=r"data\.batch_size is 1; embed compares the rows"):
        train([("red1", "red2"), ("blue1", "blue2")], batch_size=1)
    assert not (tmp_path / "no").exists()


def test_texts_of_unknown_words_are_told_of(classifier: Path, pretrained, topics, tmp_path, capfd):
    strange = tmp_path / "strange.csv"
    rows = [f"{'red' if i % 2 else 'blue'},unheard{i} of{i}" for i in range(8)]
    strange.write_text("label,text\n" + "\n".join(rows) + "\n")
    said: list[str] = []
    predict(classifier, strange, tmp_path / "p.jsonl", say=said.append)
    assert "of the tokens are [UNK]" in said[0]
    finetune("classify", model=pretrained, train=strange, output=tmp_path / "out", max_steps=1)
    assert "of the tokens are [UNK]" in capfd.readouterr().out
