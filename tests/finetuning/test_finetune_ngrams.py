"""Fine-tuning with n-grams beside the pooled vector: training, the folder, and its use."""

import json
import random
from pathlib import Path

import pytest

from ownbert import InputError, evaluate, finetune, predict
from ownbert.checkpoint import load


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of the same words, whose label is which of two stands before the other."""
    folder, rng = tmp_path_factory.mktemp("orders"), random.Random(1)
    for name, rows in (("train", 160), ("dev", 40)):
        lines = ["label,text"]
        for i in range(rows):
            words = [f"w{rng.randint(0, 30)}" for _ in range(rng.randint(2, 5))]
            at = rng.randint(0, len(words))
            pair = ["red1", "red2"] if i % 2 else ["red2", "red1"]
            words[at:at] = pair
            lines.append(f"{'up' if i % 2 else 'down'},{' '.join(words)}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_it_sees_the_order_of_neighbours(
    pretrained: Path, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Which is what the encoder has not learnt yet by then."""
    monkeypatch.setattr("ownbert.finetuning.default_settings.FEW", 100)  # the rate of many examples
    scores = {}
    for ngrams in (None, 4096):
        output = tmp_path / str(ngrams)
        known = {"train": orders / "train.csv", "dev": orders / "dev.csv", "quiet": True}
        known |= {"pooling": "mean", "epochs": 5, "batch_size": 16, "learning_rate": 1e-3}
        known["seed"] = 1  # far from both bounds; with 0 a processor's rounding decides
        finetune(model=pretrained, output=output, ngrams=ngrams, **known)
        scores[ngrams] = evaluate(output, orders / "dev.csv").macro_f1
    assert scores[4096] > 0.95
    assert scores[4096] > scores[None] + 0.1

    folder = tmp_path / "4096"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertModel"]
    assert config["ownbert_heads"] == [
        {"kind": "classification", "pooling": "mean", "ngrams": 4096}
    ]
    assert "Transformers loads only the encoder" in (folder / "README.md").read_text()
    assert load(folder).heads["classification"].ngrams.table.num_embeddings == 4096
    assert predict(folder, orders / "dev.csv", tmp_path / "out.jsonl") == 40
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    found = [json.loads(line)["label"] for line in lines]
    right = sum(label == ("up" if i % 2 else "down") for i, label in enumerate(found))
    assert right / 40 == pytest.approx(evaluate(folder, orders / "dev.csv").accuracy)


@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_other_tasks_and_long_documents(task: str, pretrained: Path, tmp_path: Path):
    rng = random.Random(2)
    lines = ["text\tlabel"]
    for i in range(24):
        words = " ".join(f"w{rng.randint(0, 30)}" for _ in range(rng.randint(5, 40)))
        lines.append(f"{words}\t{i % 5 if task == 'regress' else 'a|b' if i % 3 else 'a'}")
    (tmp_path / "t.tsv").write_text("\n".join(lines) + "\n")
    known = {"train": tmp_path / "t.tsv", "dev": tmp_path / "t.tsv", "quiet": True}
    known |= {"epochs": 1, "max_length": 16, "stride": 4, "long": "segments", "ngrams": 64}
    known |= {"precision": "float32"}
    finetune(task, model=pretrained, output=tmp_path / "out", **known)
    logged = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    best = next(row for row in map(json.loads, logged) if row.get("evaluation"))
    scores = evaluate(tmp_path / "out", tmp_path / "t.tsv")
    name = "mae" if task == "regress" else "average_precision"
    assert scores.values[name] == pytest.approx(best[name], abs=1e-3)


@pytest.mark.parametrize("rows", [0, 1 << 24])
def test_sizes_have_bounds(rows: int, pretrained: Path, orders: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"task\.ngrams is \d+; it must be .* at most 8,388,608"):
        finetune(model=pretrained, train=orders / "train.csv", output=tmp_path / "no", ngrams=rows)
    with pytest.raises(InputError, match=r"task\.ngrams does not apply to tag"):
        finetune("tag", model=pretrained, train="x", output=tmp_path / "no", ngrams=50)
    assert not (tmp_path / "no").exists()
