"""Pretraining on a small corpus: it learns, leaves its files, and resumes after it was killed."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ownbert import InputError, finetune, load_tokenizer, pretrain
from ownbert.batches.batch import from_padded
from ownbert.checkpoint import load
from ownbert.config.encoder import SIZES
from ownbert.inspect.run_list import read_run
from ownbert.nn.model import Model
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.settings import resolve
from ownbert.train.state import SavedState, newest_state
from support.training_runs import rows

SHORT = {"max_length": 48, "batch_tokens": 512, "quiet": True}


def losses(folder: Path) -> dict[tuple, float]:
    return {(r["step"], bool(r.get("evaluation"))): r["loss"] for r in rows(folder)}


def test_it_beats_the_unigram_baseline_and_learns_which_sentence_is_next(pretrained: Path):
    last = [r for r in rows(pretrained) if r.get("evaluation")][-1]
    assert last["mlm_loss"] < last["unigram_loss"] - 0.2
    assert last["mlm_accuracy"] > 0.15
    assert {"nsp_loss", "nsp_accuracy"} <= last.keys()


def test_the_folder_holds_model_log_curves_and_recipe(pretrained: Path, topics: Path):
    logged = next(r for r in rows(pretrained) if not r.get("evaluation"))
    for key in ("step", "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "tokens_per_second"):
        assert key in logged
    assert (pretrained / "curves.png").read_bytes().startswith(b"\x89PNG")
    recipe = resolve(PretrainRecipe, config=pretrained / "recipe.yaml")
    assert recipe.data.tokens == str(topics / "tokens")
    assert recipe.run.precision in ("float32", "bfloat16")  # resolved, not "auto"
    model = load(pretrained)
    assert set(model.heads) == {"mlm", "nsp"}
    assert load_tokenizer(pretrained, config=model.config).max_length == 48


@pytest.mark.usefixtures("published_sizes")
def test_the_head_start_is_in_the_weights_and_can_be_left_out(topics: Path, tmp_path: Path):
    words, ordinary = {}, 0
    for init in ("cooccurrence", "random"):
        model = pretrain(
            topics / "tokens", tmp_path / init, init_embeddings=init, max_steps=1, **SHORT
        )
        table = model.encoder.embeddings.word.weight[5:]
        words[init], ordinary = table.std().item(), len(table)
    assert words["random"] == pytest.approx(0.02 * 0.88, rel=0.1)  # cut off at two deviations
    # Few words have fewer directions than the vectors have room for; the rest is zero.
    share = min(1, (ordinary - 1) / 128)
    assert words["cooccurrence"] == pytest.approx(0.05 * share**0.5, rel=0.1)


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(topics: Path, tmp_path: Path):
    found = []
    settings = {"max_steps": 6, "log_every": 1, "eval_every": 3, "softmax": "sampled", **SHORT}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        pretrain(topics / "tokens", tmp_path / name, seed=seed, **settings)
        found.append(losses(tmp_path / name))
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.slow
def test_words_are_learnt_among_some_of_them_as_among_all(topics: Path, tmp_path: Path):
    found = {}
    for softmax in ("full", "sampled"):
        folder = tmp_path / softmax
        pretrain(topics / "tokens", folder, softmax=softmax, max_steps=40, **SHORT)
        found[softmax] = rows(folder)[-1]  # evaluated among all
    full, sampled = found["full"], found["sampled"]
    gain = full["unigram_loss"] - full["mlm_loss"]
    assert gain > 0.3
    assert sampled["unigram_loss"] == full["unigram_loss"]
    assert abs(sampled["mlm_loss"] - full["mlm_loss"]) < gain / 4


def test_a_resumed_run_refuses_to_become_another(topics: Path, tmp_path: Path):
    folder = tmp_path / "run"
    pretrain(topics / "tokens", folder, max_steps=4, save_every=2, **SHORT)
    before = losses(folder)
    with pytest.raises(InputError, match=r"model\.size was 'tiny' and is now 'mini'"):
        pretrain(topics / "tokens", folder, size="mini", resume=True, max_steps=6, quiet=True)
    assert losses(folder) == before
    pretrain(None, folder, resume=True, max_steps=6, quiet=True)
    assert max(step for step, _ in losses(folder)) == 6


def test_a_trained_model_is_not_overwritten_unasked(pretrained: Path, topics: Path):
    before = (pretrained / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"resume=True, start over with overwrite=True"):
        pretrain(topics / "tokens", pretrained, max_steps=1, **SHORT)
    assert (pretrained / "model.safetensors").read_bytes() == before


def test_a_loss_that_is_no_number_ends_the_run_with_the_last_state_kept(
    topics: Path, tmp_path: Path
):
    folder = tmp_path / "run"
    options = {"learning_rate": 1e30, "save_every": 1, "max_steps": 50, **SHORT}
    with pytest.raises(InputError, match="not finite at step"):
        pretrain(topics / "tokens", folder, **options)
    state = newest_state(folder)
    assert state is not None
    assert SavedState.read(state).metadata["clock"]["step"] >= 1


def test_a_store_of_another_vocabulary_is_refused(topics: Path, tmp_path: Path):
    from ownbert import learn_vocabulary

    learn_vocabulary(topics / "corpus.txt", tmp_path / "other", kind="blank", vocab_size=20)
    with pytest.raises(InputError, match="a different vocabulary than the token store"):
        pretrain(topics / "tokens", tmp_path / "other", max_steps=1, **SHORT)


@pytest.mark.parametrize("objectives", [None, "mlm"])
def test_the_default_teaches_a_pooler_and_with_mlm_alone_fine_tuning_adds_one(
    topics: Path, tmp_path: Path, objectives: str | None, transformers: Any
):
    folder, tuned = tmp_path / "run", tmp_path / "tuned"
    pretrain(topics / "tokens", folder, max_steps=2, objectives=objectives, **SHORT)
    losses = {key for row in rows(folder) for key in row if key.endswith(("_loss", "_accuracy"))}
    losses -= {"unigram_loss", "uniform_loss"}
    assert losses == {"mlm_loss", "mlm_accuracy"} | ({"bow_loss"} if objectives is None else set())
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    base = load(folder)
    assert (base.pooler is None) == (objectives == "mlm")
    options = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True}
    # At this rate a step changes nothing: the pretrained encoder stands below a pooler and a head.
    model = finetune(model=folder, output=tuned, learning_rate=1e-30, max_steps=1, **options)
    assert isinstance(model, Model)
    for name, parameter in base.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], parameter), name
    if base.pooler is not None:
        assert model.pooler is not None
        torch.testing.assert_close(model.pooler.state_dict(), base.pooler.state_dict())
    theirs, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        tuned, output_loading_info=True
    )
    assert type(theirs).__name__ == "BertForSequenceClassification"
    assert not any(loading.values())
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        expected = theirs.eval()(ids).logits
        found = model.eval()(from_padded(ids)[0]).logits["classification"]
    torch.testing.assert_close(found, expected)


def test_time_is_a_limit_too(topics: Path, tmp_path: Path):
    began = time.monotonic()
    pretrain(topics / "tokens", tmp_path / "run", max_minutes=0.02, **SHORT)
    assert rows(tmp_path / "run")[-1]["seconds"] >= 0.6  # at least half of the time is for training
    assert time.monotonic() - began < 60  # without the limit it takes hours
    assert os.path.exists(tmp_path / "run" / "model.safetensors")
    assert read_run(tmp_path / "run").state == "finished"


def test_a_run_goes_on_without_the_folder_it_started_from(topics: Path, tmp_path: Path):
    old, folder = tmp_path / "old", tmp_path / "run"
    pretrain(topics / "tokens", old, max_steps=2, **SHORT)
    pretrain(topics / "tokens", folder, init_from=str(old), max_steps=2, **SHORT)
    shutil.rmtree(old)
    model = pretrain(None, folder, resume=True, max_steps=4, quiet=True)
    assert model.config.hidden_size == SIZES["tiny"][1]
