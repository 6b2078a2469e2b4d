"""Sequence lengths that follow the documents, where the recipe names none."""

import json
import random
from pathlib import Path

import pytest

from ownbert import InputError, learn_vocabulary, prepare, pretrain
from ownbert.pretraining.pretrain_recipe import PretrainData, PretrainRecipe
from ownbert.pretraining.pretraining_run import preview_pretraining
from ownbert.settings import resolve
from ownbert.train.training_settings import Run
from support.training_runs import learnt


def lengths(recipe: PretrainRecipe) -> list[tuple[float, int | None]]:
    shares = [phase.share for phase in recipe.phases] or [1.0]
    return [(round(s, 6), d.max_length) for s, (_, d) in zip(shares, recipe.parts, strict=True)]


@pytest.mark.parametrize(
    ("median", "limit", "expected"),
    [
        (60, None, [(1.0, 128)]),
        (200, None, [(1.0, 128)]),
        (201, None, [(0.8, 128), (0.2, 512)]),
        (9000, 300, [(0.8, 128), (0.2, 300)]),
        (9000, 128, [(1.0, 128)]),
        (9000, 48, [(1.0, 48)]),
        (60, 48, [(1.0, 48)]),
    ],
)
def test_long_documents_are_read_in_long_sequences_at_last(
    median: int, limit: int | None, expected: list
):
    assert lengths(PretrainRecipe().with_lengths(median, limit)) == expected


def test_a_run_of_few_steps_has_one_phase():
    recipe = PretrainRecipe(run=Run(max_steps=4)).with_lengths(800)
    assert lengths(recipe) == [(1.0, 512)]
    recipe = PretrainRecipe(run=Run(max_steps=5)).with_lengths(800)
    assert lengths(recipe) == [(0.8, 128), (0.2, 512)]


def test_phases_of_the_user_stay():
    phases = "phases=[{share: 0.5, objectives: mlm}, {share: 0.5, max_length: 64}]"
    recipe = resolve(PretrainRecipe, overrides=[phases])
    assert recipe.longest == 128
    assert lengths(recipe.with_lengths(800)) == [(0.5, 128), (0.5, 64)]


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token store of 24 documents of 300 words."""
    folder, rng = tmp_path_factory.mktemp("long"), random.Random(3)
    texts = [" ".join(f"w{rng.randint(0, 40)}" for _ in range(300)) for _ in range(24)]
    (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
    learn_vocabulary(folder / "corpus.txt", folder / "vocab", kind="blank")
    prepare(folder / "corpus.txt", folder / "tokens", tokenizer=folder / "vocab")
    return folder / "tokens"


def test_a_run_on_long_documents_learns_512_positions_and_can_be_resumed(
    long_store: Path, tmp_path: Path
):
    assert "sequences of up to 128, then 512 tokens" in preview_pretraining(long_store)
    whole, folder = tmp_path / "whole", tmp_path / "run"
    options = {"max_steps": 5, "save_every": 2, "log_every": 1, "batch_tokens": 640, "quiet": True}
    for place in (whole, folder):
        pretrain(long_store, place, **options)
    rows = [row for row in learnt(whole) if not row.get("evaluation")]
    assert [row["phase"] for row in rows] == [1] * 4 + [2]
    config = json.loads((whole / "config.json").read_text())
    assert config["max_position_embeddings"] == 512
    pretrain(None, folder, resume_step=4, quiet=True)
    assert learnt(folder) == learnt(whole)
    recipe = resolve(PretrainRecipe, config=whole / "recipe.yaml")
    assert lengths(recipe) == [(0.8, 128), (0.2, 512)]


def test_a_given_length_and_short_documents_make_one_phase(
    long_store: Path, topics: Path, tmp_path: Path
):
    assert "sequences of up to 64 tokens, " in preview_pretraining(long_store, max_length=64)
    pretrain(topics / "tokens", tmp_path / "short", max_steps=1, batch_tokens=512, quiet=True)
    recipe = resolve(PretrainRecipe, config=tmp_path / "short" / "recipe.yaml")
    assert (recipe.data.max_length, recipe.phases) == (128, ())
    with pytest.raises(InputError, match=r"data\.max_length is 4; it must be in \[8"):
        PretrainData(max_length=4)


def test_a_model_to_start_from_limits_the_positions(
    long_store: Path, pretrained: Path, tmp_path: Path
):
    options = {"max_steps": 1, "batch_tokens": 512, "quiet": True}
    pretrain(long_store, tmp_path / "run", init_from=pretrained, **options)
    recipe = resolve(PretrainRecipe, config=tmp_path / "run" / "recipe.yaml")
    assert (recipe.data.max_length, recipe.phases) == (48, ())
