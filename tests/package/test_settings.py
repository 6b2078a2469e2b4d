"""Recipes out of files, overrides and options."""

from pathlib import Path

import pytest

from ownbert import InputError
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.settings import dump, resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.train.training_settings import Optim, rate_factor
from ownbert.translation.translation_recipe import TranslateRecipe


def test_options_come_after_overrides_and_these_after_the_file(tmp_path: Path):
    file = tmp_path / "recipe.yaml"
    file.write_text("seed: 3\noptim:\n  learning_rate: 1e-4\n  clip: 2\nmodel:\n  size: mini\n")
    recipe = resolve(
        PretrainRecipe,
        config=file,
        overrides=["optim.learning_rate=2e-4", "data.max_length=64"],
        options={"size": "small", "max_steps": 7, "seed": None},
    )
    assert recipe.seed == 3
    assert recipe.optim.clip == 2.0
    assert recipe.optim.learning_rate == 2e-4
    assert recipe.data.max_length == 64
    assert recipe.model.size == "small"
    assert recipe.run.max_steps == 7


@pytest.mark.parametrize("kind", [PretrainRecipe, FinetuneRecipe])
def test_a_dumped_recipe_reads_back_equal(kind, tmp_path: Path):
    recipe = resolve(kind, options={"seed": 5, "learning_rate": 1e-5})
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    assert resolve(kind, config=tmp_path / "recipe.yaml") == recipe


def test_defaults_of_a_section_stay_when_one_value_changes():
    recipe = resolve(FinetuneRecipe, overrides=["optim.clip=3"])
    assert recipe.optim.schedule == "linear"
    assert recipe.optim.betas == (0.9, 0.999)


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["optim.learning_rat=1"], {}, r"no setting 'optim.learning_rat'; did you mean optim.lear"),
        (["optim.clip"], {}, "not an override; write section.name=value"),
        (["optim.clip=big"], {}, "optim.clip must be float, not 'big'"),
        (["run.max_steps=1.5"], {}, "run.max_steps must be int or none, not 1.5"),
        (["optim.betas=[0.9, x]"], {}, r"optim.betas\[1\] must be float, not 'x'"),
        ([], {"size": "huge"}, "model.size is 'huge'; it must be one of tiny, mini"),
        (
            [],
            {"precision": "float16"},
            "run.precision is 'float16'; it must be one of auto, float32",
        ),
        ([], {"max_minutes": 0.0}, "run.max_minutes is 0.0; it must be more than 0"),
        ([], {"objectives": "nsp"}, "task.objectives must have mlm"),
        (["optim.schedule=cosin"], {}, "optim.schedule is 'cosin'; it must be one of"),
        (["optim.schedule=3"], {}, "optim.schedule is 3; it must be one of linear, cosine"),
        (["optim.clip=[1"], {}, r"optim.clip is '\[1', which is not YAML"),
        (["optim.betas=[.9,.9"], {}, r"optim.betas is .*, which is not YAML"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(overrides, options, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve(PretrainRecipe, overrides=overrides, options=options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [FinetuneRecipe, TranslateRecipe])
def test_shard_is_refused_where_nothing_is_sharded(kind):
    with pytest.raises(InputError, match=r"run\.shard is for pretrain"):
        resolve(kind, overrides=["run.shard=true"], options={})
    assert resolve(kind, overrides=["run.shard=false"], options={}).run.shard is False
    assert resolve(PretrainRecipe, overrides=["run.shard=true"], options={}).run.shard


def test_a_bad_recipe_file_is_named(tmp_path: Path):
    file = tmp_path / "recipe.yaml"
    with pytest.raises(InputError, match="no such file"):
        resolve(PretrainRecipe, config=file)
    for text, message in (("a: [", "is not YAML"), ("- 1", "must contain sections")):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            resolve(PretrainRecipe, config=file)
    file.write_text("optim: 3")
    for overrides in ([], ["optim.clip=2"]):
        with pytest.raises(InputError, match="optim must be a section"):
            resolve(PretrainRecipe, config=file, overrides=overrides)
    file.write_text("optim: {rate: 3}")
    with pytest.raises(InputError, match=r"no setting optim\.rate; optim has "):
        resolve(PretrainRecipe, config=file)


def test_schedules():
    wsd = Optim(schedule="wsd", warmup=0.1, decay=0.2)
    found = [rate_factor(wsd, p) for p in (0, 0.05, 0.1, 0.5, 0.8, 0.9, 1.0)]
    assert found == pytest.approx([0, 0.5, 1, 1, 1, 0.5, 0])
    linear = Optim(schedule="linear", warmup=0.2)
    assert [rate_factor(linear, p) for p in (0.1, 0.2, 0.6, 1)] == pytest.approx([0.5, 1, 0.5, 0])
    constant = Optim(schedule="constant", warmup=0)
    assert [rate_factor(constant, p) for p in (0, 1)] == [1, 1]


def test_the_recipes_that_come_along_are_recipes():
    folder = Path(__file__).parents[2] / "recipes"
    found = sorted(folder.glob("*.yaml"))
    assert found
    for path in found:
        recipe = resolve(PretrainRecipe, config=path)
        assert recipe.model.size in path.stem
        assert recipe.run.max_steps
