"""Masked words of the task's texts before the task."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ownbert import InputError, evaluate, finetune
from ownbert.checkpoint import load as load_folder
from ownbert.checkpoint import load_tokenizer, save
from ownbert.config.encoder import EncoderConfig
from ownbert.finetuning.default_settings import DefaultSettings
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.several_runs import Ensemble
from ownbert.nn.model import Model
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe
from ownbert.train.log import read_log


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
