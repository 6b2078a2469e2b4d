"""The initial model: weights, n-grams, gated layers."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ownbert
from ownbert import InputError, Predictor, evaluate, finetune, predict
from ownbert.checkpoint import load, load_tokenizer, save
from ownbert.checkpoint import load as load_folder
from ownbert.config.encoder import EncoderConfig
from ownbert.finetuning.default_settings import DefaultSettings
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.several_runs import Ensemble
from ownbert.nn.model import Model
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe
from ownbert.train.log import read_log
from support.cli import run_cli
from support.floats import assert_close
from support.tiny import change_config, made

ROWS = [("a b", "ant"), ("c", "zebra"), ("d e", "7")] * 2
# Nothing is learnt: what a head is like afterwards is what it began as.
STILL: Any = {"epochs": 1, "learning_rate": 1e-12, "quiet": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "model", "classification")
    names = {str(i): label for i, label in enumerate(sorted({label for _, label in ROWS}))}
    change_config(tmp_path / "model", id2label=names)
    return tmp_path / "model"


def head_after(folder: Path, rows: list[tuple[str, str]]) -> torch.Tensor:
    output = folder.parent / f"{len(rows)}{rows[0][1]}"
    ownbert.finetune("classify", model=folder, train=rows, output=output, **STILL)
    return head(output)


def head(folder: Path) -> torch.Tensor:
    weights = ownbert.load(folder).heads["classification"].state_dict()
    return next(tensor for name, tensor in weights.items() if name.endswith("weight"))


def test_a_head_for_the_same_labels_is_kept(folder: Path):
    torch.testing.assert_close(head_after(folder, ROWS), head(folder), atol=1e-6, rtol=0)


def test_a_head_whose_labels_have_no_names_is_kept(folder: Path):
    change_config(folder, id2label=None, num_labels=3)
    torch.testing.assert_close(head_after(folder, ROWS), head(folder), atol=1e-6, rtol=0)


def test_a_head_for_as_many_other_labels_starts_anew(folder: Path):
    renamed = [(text, f"new {label}") for text, label in ROWS]
    assert (head_after(folder, renamed) - head(folder)).abs().max() > 1e-3


def test_a_head_for_fewer_labels_starts_anew_and_it_is_said(folder: Path):
    rows = folder.parent / "rows.csv"
    rows.write_text("text,label\na b,x\nc,y\n")
    out = folder.parent / "out"
    done = run_cli("finetune", "classify", "--model", folder, "--train", rows, "-o", out)
    assert done.returncode == 0
    assert (
        f"{folder} has a head for other labels; a new one is initialised\n"
        in done.stdout + done.stderr
    )
    assert ownbert.load(out).labels == ("x", "y")


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


def finetuned(pretrained: Path, topics: Path, output: Path, *more: object) -> Path:
    files = ("--train", topics / "train.csv", "--dev", topics / "dev.csv")
    given = ("--epochs", 1, "--quiet", *more)
    done = run_cli("finetune", "classify", "--model", pretrained, *files, "-o", output, *given)
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.parametrize("kind", ["last", "sum"])
def test_from_a_folder_without_either(kind: str, pretrained: Path, topics: Path, tmp_path: Path):
    options = ("--layer-gate", kind, "--attention-blur", 0.3, "--head-init", "random")
    folder = finetuned(pretrained, topics, tmp_path / "out", *options)
    values = json.loads((folder / "config.json").read_text())
    assert values["model_type"] == "ownbert-bert"
    assert (values["ownbert_layer_gate"], values["ownbert_attention_blur"]) == (kind, 0.3)
    gate = load(folder).encoder.gate
    assert gate is not None
    # It is trained, and the bias is no longer where it began.
    assert not torch.equal(gate.up.bias, torch.full_like(gate.up.bias, 0.8))
    described = run_cli("describe", folder).stdout
    assert f"{kind}: " in described
    assert "a Gaussian of 0.3 over 3 neighbouring tokens" in described
    assert "refuse the folder" in (folder / "README.md").read_text()
    done = run_cli("evaluate", folder, topics / "test.csv")
    assert done.returncode == 0, done.stderr
    predictor = Predictor(folder)
    texts = ["red1 red2 w3 red5 9", "blue1 w2 9"]
    together = [row["score"] for row in predictor(texts)]
    assert_close(np.array(together), np.array([predictor([text])[0]["score"] for text in texts]))
    # What is fine-tuned further keeps both.
    again = finetuned(folder, topics, tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["ownbert_layer_gate"] == kind


def test_mistakes_are_one_line(pretrained: Path, topics: Path, tmp_path: Path):
    files = ("--train", topics / "train.csv", "-o", tmp_path / "out")
    start = ("finetune", "classify", "--model", pretrained, *files)
    done = run_cli(*start, "--layer-gate", "first")
    assert done.returncode == 2
    assert "one of last, sum" in done.stderr
    done = run_cli(*start, "--attention-blur", 0)
    assert done.returncode == 2
    assert "more than 0" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_lost_its_gate_is_refused(pretrained: Path, topics: Path, tmp_path: Path):
    folder = finetuned(pretrained, topics, tmp_path / "out", "--layer-gate", "sum")
    change_config(folder, ownbert_layer_gate=...)
    done = run_cli("evaluate", folder, topics / "test.csv")
    assert done.returncode == 2
    assert "unexpected tensor encoder.gate." in done.stderr


def tune(topics: Path, model: Path, output: Path, **options) -> Model:
    known = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True}
    settings: dict[str, Any] = known | {"epochs": 1} | options
    found = finetune(model=model, output=output, **settings)
    assert isinstance(found, Model)
    return found


@pytest.fixture(scope="module")
def adapted(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted") / "it"
    tune(topics, pretrained, folder, pretrain_steps=60, learning_rate=1e-8)
    return folder


def encoder(folder: Path) -> dict[str, torch.Tensor]:
    weights = load_folder(folder, heads=[], pooler=False).named_parameters()
    return {name: p.detach() for name, p in weights}


@pytest.mark.slow
def test_masked_words_are_learnt_from_where_the_model_stood(adapted: Path, pretrained: Path):
    def losses(folder: Path) -> list[float]:
        return [row["mlm_loss"] for row in read_log(folder) if not row.get("evaluation")]

    own = losses(adapted / "pretrained" / "model")
    assert own[-1] < own[0]
    assert own[0] < losses(pretrained)[0] - 0.3  # it does not start from nothing


@pytest.mark.slow
def test_fine_tuning_starts_from_it(adapted: Path, pretrained: Path):
    """With next to no learning rate the encoder is that of the pretrained folder."""
    model, there, before = (
        encoder(folder) for folder in (adapted, adapted / "pretrained" / "model", pretrained)
    )
    assert there.keys() == model.keys()
    for name, weights in there.items():
        assert (model[name] - weights).abs().max() < 1e-5
    assert max((there[name] - before[name]).abs().max() for name in there) > 1e-3
    pooler = "pooler.dense.weight"
    ours, theirs = (
        dict(load_folder(f, heads=["classification"]).named_parameters())[pooler]
        for f in (adapted, pretrained)
    )
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.slow
def test_nothing_of_the_texts_remains(adapted: Path, topics: Path):
    kept = {path.name for path in (adapted / "pretrained").iterdir()}
    assert kept == {"model"}
    with (topics / "train.csv").open(newline="") as file:
        texts = [row["text"].encode() for row in csv.DictReader(file)]
    for path in adapted.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(text in data for text in texts), path


@pytest.mark.slow
def test_all_weights_are_taken_over(pretrained: Path, topics: Path, tmp_path: Path):
    """One step of a tiny rate changes nothing: the encoder is that of the folder, positions and
    all."""
    given = {"pretrain_steps": 1, "learning_rate": 1e-12}
    rates = pytest.MonkeyPatch()
    rates.setattr(DefaultSettings, "learning_rate", 1e-12)
    try:
        tune(topics, pretrained, tmp_path / "it", max_steps=1, **given)
    finally:
        rates.undo()
    before, after = encoder(pretrained), encoder(tmp_path / "it" / "pretrained" / "model")
    assert before.keys() == after.keys()
    for name, weights in before.items():
        assert torch.equal(weights, after[name]) or (weights - after[name]).abs().max() < 1e-7, name


@pytest.mark.slow
def test_a_stopped_one_is_gone_on_with(
    pretrained: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = FinetuningRun.train
    monkeypatch.setattr(FinetuningRun, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(topics, pretrained, tmp_path / "it", pretrain_steps=4)
    monkeypatch.setattr(FinetuningRun, "train", whole)
    weights = tmp_path / "it" / "pretrained" / "model" / "model.safetensors"
    time = weights.stat().st_mtime_ns
    tune(topics, pretrained, tmp_path / "it", pretrain_steps=4, resume=True)
    assert weights.stat().st_mtime_ns == time
    assert evaluate(tmp_path / "it", topics / "test.csv").accuracy > 0.2
    tune(topics, pretrained, tmp_path / "it", pretrain_steps=4, overwrite=True)
    assert weights.stat().st_mtime_ns != time


def interrupted(*given, **how) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_members_of_an_ensemble_share_it(pretrained: Path, topics: Path, tmp_path: Path):
    found = finetune(
        model=pretrained,
        train=topics / "train.csv",
        output=tmp_path / "it",
        pretrain_steps=2,
        seeds=2,
        max_steps=1,
        learning_rate=1e-9,
        quiet=True,
    )
    assert isinstance(found, Ensemble)
    there = encoder(tmp_path / "it" / "pretrained" / "model")
    for folder in found.members:
        assert not (folder / "pretrained").exists()
        own = encoder(folder)
        assert all((own[name] - there[name]).abs().max() < 1e-5 for name in there)


def test_texts_of_pairs_stand_there_once(pretrained: Path, tmp_path: Path):
    rows = [("red1 9", "blue1 9", "a"), ("red1 9", "green1 9", "b"), ("", "blue1 9", "a")]
    lines = [json.dumps(dict(zip(("text1", "text2", "label"), row, strict=True))) for row in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    data = FinetuneData(train=str(tmp_path / "pairs.jsonl"), dev=str(tmp_path / "pairs.jsonl"))
    run = FinetuningRun(FinetuneRecipe(data=data, model=FinetuneModel(folder=str(pretrained))))
    assert list(run.splits.distinct_texts()) == ["red1 9", "blue1 9", "green1 9"]


def test_other_families_and_new_weights_are_refused(pretrained: Path, topics: Path, tmp_path: Path):
    tokenizer = load_tokenizer(pretrained)
    config = EncoderConfig.of_size(
        "tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=48
    )
    save(Model(config, ["mlm"], model_type="electra"), tmp_path / "other", tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"pretrain_steps is for BERT, and .* 'electra'"):
        tune(topics, tmp_path / "other", tmp_path / "it", pretrain_steps=2)
    with pytest.raises(InputError, match=r"model.from_scratch and model.pretrain_steps"):
        tune(topics, pretrained, tmp_path / "it", pretrain_steps=2, from_scratch=True)
    assert not (tmp_path / "it").exists()
