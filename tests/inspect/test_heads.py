"""Importance of attention heads, and models without the least important ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForSequenceClassification

import ownbert
from ownbert import InputError
from ownbert.batches.batch import from_padded
from ownbert.config.encoder import EncoderConfig
from ownbert.inspect.pruning import (
    LabelledModel,
    Pruning,
    gradient_importance,
    masking_importance,
    remaining_heads,
)
from ownbert.nn.model import Model
from support.cli import refusal, run_cli
from support.plots import matplotlib_installed
from support.tiny import LABELS, TOKENIZER, change_config, made

ROWS = [("a b c", "zebra"), ("d e", "ant"), ("f", "7"), ("c b", "ant")]
CASES: dict[str, tuple[str, Any]] = {
    "classify": ("classification", ROWS),
    "multilabel": (
        "classification",
        [{"text": "a b", "labels": ["ant"]}, {"text": "c", "labels": ["zebra", "7"]}],
    ),
    "regress": (
        "classification",
        [{"text": text, **dict.fromkeys(LABELS, 0.5)} for text in ("a", "b c")],
    ),
    "tag": ("tokens", [{"words": ["a", "b"], "tags": ["ant", "7"]}]),
    "answer": ("span", [{"question": "a", "context": "b c", "answer": "c"}]),
    "choose": ("choice", [{"prompt": "a", "choices": ["b", "c"], "label": 1}]),
}


@pytest.mark.parametrize("case", CASES)
def test_heads_of_every_task_are_measured(tmp_path: Path, case: str):
    head, rows = CASES[case]
    made(tmp_path / "model", head)
    if head == "classification":
        threshold = {"threshold": 0.5} if case == "multilabel" else {}
        change_config(tmp_path / "model", ownbert_task={"name": case, **threshold})
    labelled = LabelledModel(tmp_path / "model", rows)
    for measure in (gradient_importance, masking_importance):
        found = measure(labelled)
        assert found.shape == (2, 2)
        assert np.isfinite(found).all()
        assert np.abs(found).max() > 0


def test_a_head_that_does_nothing_is_the_first_to_go(tmp_path: Path):
    model = made(tmp_path / "model", "classification")
    output = model.encoder.blocks[1].attention.output  # pyright: ignore
    with torch.no_grad():
        output.weight[:, :4] = 0  # pyright: ignore  # of head 0
    ownbert.save(model, tmp_path / "idle", tokenizer=ownbert.load_tokenizer(tmp_path / "model"))
    labelled = LabelledModel(tmp_path / "idle", ROWS)
    for measure in (gradient_importance, masking_importance):
        found = measure(labelled)
        assert found[1, 0] == pytest.approx(0, abs=1e-6)
        assert (np.delete(np.abs(found).flatten(), 2) > 1e-6).all()
    rounds = Pruning(tmp_path / "idle", ROWS, tmp_path / "pruned").heads(0.25, rounds=1)
    assert [each.heads for each in rounds] == [4, 3]
    assert rounds[0].score == rounds[1].score
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pruned").eval()
    assert theirs.config.pruned_heads == {1: [0]}
    texts = [text for text, _ in ROWS]
    one, two = (ownbert.Predictor(tmp_path / n).predict_proba(texts) for n in ("idle", "pruned"))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_each_layer_keeps_a_head(tmp_path: Path):
    made(tmp_path / "model", "classification")
    Pruning(tmp_path / "model", ROWS, tmp_path / "pruned").heads(0.5, rounds=2)
    model = ownbert.load(tmp_path / "pruned")
    assert [layer for layer, _ in remaining_heads(model)] == [0, 1]
    for share in (0.1, 0.9):
        with pytest.raises(InputError, match="from 1 to 2 can be pruned: each layer keeps"):
            Pruning(tmp_path / "model", ROWS, tmp_path / "other").heads(share)
        assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match="is not empty"):
        Pruning(tmp_path / "model", ROWS, tmp_path / "pruned").heads(0.5)


def test_layers_are_dropped_from_the_top(tmp_path: Path):
    made(tmp_path / "model", "classification")
    rounds = Pruning(tmp_path / "model", ROWS, tmp_path / "small").layers(1)
    assert [(each.layers, each.heads) for each in rounds] == [(2, 4), (1, 2)]
    whole, small = (ownbert.load(tmp_path / name) for name in ("model", "small"))
    assert (len(small.encoder.blocks), small.config.num_hidden_layers) == (1, 1)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "small").eval()
    ids = torch.tensor([[1, 5, 6, 2]])
    with torch.inference_mode():
        states = theirs(ids, output_hidden_states=True).hidden_states
        batch = from_padded(ids)[0]
        _, kept = whole.encoder(batch, keep_hidden=True)
    torch.testing.assert_close(states[1][0], kept[1], atol=1e-5, rtol=1e-5)
    assert len(states) == 2
    assert 0 <= ownbert.evaluate(tmp_path / "small", ROWS).accuracy <= 1


def test_layers_that_share_or_are_weighed_stay(tmp_path: Path):
    for name, config, message in (
        ("shared", {"num_hidden_groups": 1}, "share their weights"),
        ("gate", {"layer_gate": "sum"}, "weights all layers"),
    ):
        model = Model(replace(EncoderConfig.of_size("tiny", vocab_size=10), **config), [])
        with pytest.raises(InputError, match=message):
            model.keep_layers(1)
        assert model.config.num_hidden_layers == 2, name
    sizes = {"vocab_size": 11, "embedding_size": 8, "hidden_size": 8, "intermediate_size": 12}
    labels = dict(enumerate(LABELS))
    config = ownbert.AlbertConfig(
        **sizes, num_hidden_layers=2, num_attention_heads=2, id2label=labels
    )
    ownbert.AlbertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    TOKENIZER.save(tmp_path / "model")
    with pytest.raises(InputError, match="share their weights"):
        Pruning(tmp_path / "model", ROWS, tmp_path / "small").layers(1)


def test_what_is_left_is_trained_on_in_between(tmp_path: Path, topics: Path, classifier: Path):
    given: Any = {"rows": 60, "epochs": 10}
    dev, train = topics / "dev.csv", topics / "train.csv"
    plain = Pruning(classifier, dev, tmp_path / "plain", **given).layers(1)
    tuned = Pruning(classifier, dev, tmp_path / "tuned", train=train, **given).layers(1)
    assert plain[0].score == tuned[0].score == tuned[1].score == 1.0
    whole, left, trained = (
        ownbert.load(folder).encoder.blocks
        for folder in (classifier, tmp_path / "plain", tmp_path / "tuned")
    )
    assert len(left) == len(trained) == 1
    first = [blocks[0].attention.output.weight for blocks in (whole, left, trained)]  # pyright: ignore
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    other = [("a b", "x"), ("c d", "y")] * 4
    with pytest.raises(InputError, match="other labels than the model"):
        Pruning(classifier, dev, tmp_path / "x", train=other, **given).layers(1)
    assert not (tmp_path / "x").exists()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of ``ROWS``, beside a model for them."""
    made(tmp_path / "model", "classification")
    lines = ("text,label", *(f"{text},{label}" for text, label in ROWS))
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    return tmp_path / "rows.csv"


def test_pictures(tmp_path: Path, rows: Path):
    for options in ((), ("--prune", "0.5", "-o", "a"), ("--drop-layers", "1", "-o", "b")):
        out = tmp_path / f"picture{len(options)}.png"
        given = [tmp_path / each if each in ("a", "b") else each for each in options]
        with matplotlib_installed():
            done = run_cli("heads", tmp_path / "model", rows, *given, "--png", out)
        assert done.returncode == 0
        with Image.open(out) as picture:
            assert picture.width > 300


def test_on_the_command_line(tmp_path: Path, rows: Path):
    done = run_cli("heads", tmp_path / "model", rows)
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["layer", "0"],
        ["layer", "1"],
    ]
    done = run_cli("heads", tmp_path / "model", rows, "--by", "masking", "--json")
    assert np.shape(json.loads(done.stdout)["importance"]) == (2, 2)
    out = ("-o", tmp_path / "out")
    done = run_cli("heads", tmp_path / "model", rows, "--prune", "0.5", "--rounds", "2", *out)
    shown = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert shown[:-1] == [f"layers 2, heads {heads}" for heads in (4, 3, 2)]
    assert run_cli("evaluate", tmp_path / "out", rows).returncode == 0
    for options, message in (
        (("--by", "magic"), "by 'magic' is not known; use one of gradient, masking"),
        (("--prune", "0.5"), "--prune and --drop-layers require -o, and vice versa"),
        (("--prune", "0.5", "--drop-layers", "1", *out), "cannot be combined; use one"),
        (("--drop-layers", "2", "-o", tmp_path / "new"), "2 of 2 layers cannot be dropped"),
        (("--rounds", "3"), "the option --rounds requires --prune"),
        (("--drop-layers", "1", "--rounds", "3", *out), "the option --rounds requires --prune"),
        (("--train", rows), "the option --train requires --prune or --drop-layers"),
        (("--prune", "0.5", "--epochs", "2", *out), "the option --epochs requires --train"),
        (("--prune", "0.5", "--by", "masking", *out), "--by has no effect with --prune; omit one"),
        (("--png", "a.svg"), "a.svg: the name of a picture must end with .png"),
    ):
        assert message in refusal("heads", tmp_path / "model", rows, *options)
    made(tmp_path / "plain")
    assert "has no task head" in run_cli("heads", tmp_path / "plain", rows).stderr
