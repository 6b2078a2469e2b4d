"""Pretraining with word features: they are learnt from, saved, resumed and fine-tuned."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ownbert import Embedder, InputError, finetune, prepare, pretrain
from ownbert.batches.batch import from_padded
from ownbert.checkpoint import load, save
from ownbert.config.encoder import SIZES
from ownbert.nn.variants.feature_embeddings import WordFeatures
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli
from support.floats import assert_close
from support.tiny import SPECIAL, change_config
from support.training_runs import assert_same, rows, run_here, start, wait_for_step

WORDS = [f"w{i}" for i in range(12)]
SHORT: dict[str, Any] = {
    "max_length": 16,
    "batch_tokens": 256,
    "held_out": 0.1,
    "learning_rate": 0.01,
    "quiet": True,
}
LONG: dict[str, Any] = {"max_steps": 60, "eval_every": 30}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of sentences in which nothing but its tag tells a word, with tags and without."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    sentences = [[rng.randrange(12) for _ in range(12)] for _ in range(200)]
    for name, labelled in (("c", False), ("t", True)):
        lines = [
            {
                "words": [WORDS[i] for i in one],
                "pos": [f"t{i}" for i in one],
                "size": [rng.choice("ab") for _ in one],
                **({"label": "x" if one[0] < 6 else "y"} if labelled else {}),
            }
            for one in sentences[: 40 if labelled else None]
        ]
        if labelled:
            lines[0]["pos"][0] = "new"
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    tokenizer = Tokenizer.blank([*SPECIAL, *WORDS])
    for name, columns in (("with", "pos,size"), ("without", None)):
        path = folder / "c.jsonl"
        prepare(path, folder / name, tokenizer=tokenizer, feature_columns=columns)
    return folder


@pytest.fixture(scope="module")
def pretrained(corpus: Path) -> Path:
    pretrain(corpus / "with", corpus / "model", **SHORT, **LONG, feature_size=6)
    return corpus / "model"


def test_what_tags_tell_of_masked_words_is_learnt(corpus: Path, pretrained: Path):
    pretrain(corpus / "without", corpus / "plain", **SHORT, **LONG)
    found, plain = (rows(corpus / name)[-1] for name in ("model", "plain"))
    assert found["unigram_loss"] == pytest.approx(plain["unigram_loss"])
    assert plain["mlm_loss"] > 0.9 * plain["unigram_loss"]  # the words say nothing of each other
    assert found["mlm_loss"] < 0.7 * plain["mlm_loss"]
    assert found["mlm_accuracy"] > 0.3 > plain["mlm_accuracy"]
    assert {"mlm_loss", "bow_loss"} <= found.keys()


def test_the_folder(pretrained: Path, corpus: Path, transformers: Any):
    config = json.loads((pretrained / "config.json").read_text())
    assert config["architectures"] == ["BertModel"]
    assert config["ownbert_heads"] == [{"kind": "mlm", "features": [13, 3], "feature_size": 6}]
    tags = config["ownbert_features"]
    assert (sorted(tags["pos"]), tags["size"]) == (tags["pos"], ["a", "b"])
    model, again = load(pretrained), corpus / "again"
    save(model, again)
    assert all(
        torch.equal(tensor, load(again).state_dict()[name])
        for name, tensor in model.state_dict().items()
    )
    theirs, loading = transformers.AutoModel.from_pretrained(pretrained, output_loading_info=True)
    assert type(theirs).__name__ == "BertModel"
    assert not loading["missing_keys"]
    assert not loading["mismatched_keys"]
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        expected = theirs.eval()(ids).last_hidden_state[0]
        hidden, _ = model.encoder(from_padded(ids)[0])
    assert_close(hidden, expected)
    assert "word features" in (pretrained / "README.md").read_text()


def test_without_columns_it_reads_texts_alone(pretrained: Path, corpus: Path, tmp_path: Path):
    assert Embedder(pretrained).encode(["w1 w2", "w3"]).shape == (2, SIZES["tiny"][1])
    options = {"train": corpus / "t.jsonl", "max_steps": 1, "quiet": True}
    model: Any = finetune(model=pretrained, output=tmp_path / "out", **options)
    assert model.heads["classification"].features is None
    done = run_cli("fill", pretrained, "w1 [MASK]")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "fill reads only texts" in done.stderr


def features_of(folder: Path, head: str) -> WordFeatures:
    heads: Any = load(folder).heads
    return heads[head].features


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_fine_tuning_goes_on_with_the_features(
    task: str, pretrained: Path, corpus: Path, tmp_path: Path
):
    options: dict[str, Any] = {"train": corpus / "t.jsonl", "max_steps": 1}
    if task == "tag":
        rows = [json.loads(line) for line in (corpus / "t.jsonl").read_text().splitlines()]
        lines = [json.dumps({**row, "tags": row["size"]}) for row in rows]
        options["train"] = tmp_path / "t.jsonl"
        options["train"].write_text("\n".join(lines))
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    start = ("finetune", task, "--model", pretrained, *given, "--learning-rate", 1e-30)
    done = run_cli(*start, "--feature-columns", "pos,size", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"they start from those of {pretrained}" in done.stdout + done.stderr
    saved = json.loads((tmp_path / "out" / "config.json").read_text())
    learnt = json.loads((pretrained / "config.json").read_text())["ownbert_features"]
    # The tag that pretraining had not seen comes behind those that it knows.
    assert saved["ownbert_task"]["features"] == {**learnt, "pos": [*learnt["pos"], "new"]}
    assert "ownbert_features" not in saved
    head = "tokens" if task == "tag" else "classification"
    found, before = features_of(tmp_path / "out", head), features_of(pretrained, "mlm")
    for (name, new), old in zip(found.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(new[: len(old)], old), name
        assert len(new) == len(old) + (name == "tables.0.weight"), name
    for columns in (["pos"], ["pos,size", "--feature-size", 4]):
        done = run_cli(*start, "--feature-columns", *columns, "-o", tmp_path / f"{len(columns)}")
        assert done.returncode == 0, done.stderr
        assert "they start from scratch" in done.stdout + done.stderr


def test_tags_that_do_not_fit_the_tables_are_refused(
    pretrained: Path, corpus: Path, tmp_path: Path
):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in pretrained.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    change_config(folder, ownbert_features={"pos": ["t1"], "size": ["a", "b"]})
    with pytest.raises(InputError, match="the tables of the head do not agree"):
        finetune(
            model=folder,
            output=tmp_path / "out",
            train=corpus / "t.jsonl",
            feature_columns="pos,size",
            quiet=True,
        )


def test_a_run_starts_from_the_features_of_another(pretrained: Path, corpus: Path, tmp_path: Path):
    """By the names of the tags: another corpus has some of them, and others."""
    rows = [
        {"words": ["w1", "w2"] * 9, "pos": ["a", "t3"] * 9, "size": ["b"] * 18} for _ in range(30)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, columns in (("same", "pos,size"), ("one", "pos")):
        path = tmp_path / "c.jsonl"
        prepare(path, tmp_path / name, tokenizer=pretrained, feature_columns=columns)
    options = {**SHORT, "learning_rate": 1e-30, "max_steps": 1, "init_from": str(pretrained)}
    pretrain(tmp_path / "same", tmp_path / "run", **options, feature_size=6)
    found, before = (features_of(folder, "mlm") for folder in (tmp_path / "run", pretrained))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["ownbert_features"] == {"pos": ["a", "t3"], "size": ["b"]}
    known = json.loads((pretrained / "config.json").read_text())["ownbert_features"]["pos"]
    for (name, new), old in zip(found.named_parameters(), before.parameters(), strict=True):
        if name == "tables.0.weight":
            assert torch.equal(new[[0, 2]], old[[0, 1 + known.index("t3")]])
            assert not (old == new[1]).all(1).any()
        elif name == "tables.1.weight":
            assert torch.equal(new, old[[0, 2]])
        else:
            assert torch.equal(new, old), name
    # With other columns or sizes they start anew.
    for name, size in (("same", 5), ("one", 6)):
        folder = tmp_path / f"{name}-{size}"
        pretrain(tmp_path / name, folder, **options, feature_size=size)
        weight = features_of(folder, "mlm").convolution.weight
        assert not torch.equal(weight, before.convolution.weight)


@pytest.mark.slow
def test_a_killed_run_equals_one_that_was_not(corpus: Path, tmp_path: Path):
    """Takes the time of a process, since only a process can be killed."""
    options = ("--max-steps", "10", "--save-every", "3", "--eval-every", "5")
    options = (*options, "--objectives", "mlm,nsp")
    run = start(corpus / "with", tmp_path / "killed", *options)
    wait_for_step(tmp_path / "killed", 4)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    run_here(corpus / "with", tmp_path / "whole", *options)
    run_here(corpus / "with", tmp_path / "killed", *options, "--resume")
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("objectives", ["clm", "plm", "mlm,rtd", "mlm,clm"])
def test_objectives_that_read_no_features_are_refused(
    objectives: str, corpus: Path, tmp_path: Path
):
    done = run_cli("pretrain", corpus / "with", "-o", tmp_path / "out", "--objectives", objectives)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "does not read the word features" in done.stderr
    assert not (tmp_path / "out").exists()
