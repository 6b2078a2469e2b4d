"""Everything that can be learnt, jointly or in phases, leaves a folder that Transformers reads."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ownbert import InputError, learn_vocabulary, prepare, pretrain
from ownbert.exceptions import InputWarning
from ownbert.pretraining.init_weights import new_config
from ownbert.pretraining.pretrain_recipe import PretrainData, PretrainRecipe, PretrainTask
from ownbert.pretraining.pretraining_run import Pretraining, preview_pretraining
from ownbert.settings import dump, resolve
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.distributed import ALONE
from ownbert.train.training_settings import Run
from support.tokenizer_folders import FOLDERS
from support.training_runs import learnt

SHORT = {"max_length": 48, "batch_tokens": 512, "log_every": 1, "quiet": True}


def slow(*values: str):
    return pytest.param(*values, marks=pytest.mark.slow)


PHASES = (
    "phases=[{share: 0.5, objectives: mlm, max_length: 32}, "
    "{share: 0.5, objectives: [mlm, nsp], masking: ngram, max_length: 48}]"
)


def test_phases_follow_each_other_and_a_resumed_run_knows_where_it_is(topics: Path, tmp_path: Path):
    options = {
        "max_steps": 8,
        "save_every": 3,
        "eval_every": 4,
        "overrides": [PHASES, "run.keep=9"],
    }
    whole, folder = tmp_path / "whole", tmp_path / "run"
    pretrain(topics / "tokens", whole, **options, **SHORT)
    shutil.copytree(whole, folder)
    trained = [r for r in learnt(whole) if not r.get("evaluation")]
    assert [r["phase"] for r in trained] == [1] * 4 + [2] * 4
    assert ["nsp_loss" in r for r in trained] == [False] * 4 + [True] * 4
    for step in (3, 6):
        pretrain(None, folder, resume_step=step, quiet=True)
        assert learnt(folder) == learnt(whole)
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == 48
    assert config["architectures"] == ["BertForPreTraining"]
    recipe = resolve(PretrainRecipe, config=folder / "recipe.yaml")
    (tmp_path / "again.yaml").write_text(dump(recipe))
    assert resolve(PretrainRecipe, config=tmp_path / "again.yaml") == recipe


def test_rounded_shares_neither_lose_nor_add_steps(topics: Path):
    phases = "phases=[{share: 0.1}, {share: 0.2}, {share: 0.1}, {share: 0.6}]"
    options = {"data.tokens": topics / "tokens", "max_steps": 10}
    run = Pretraining(resolve(PretrainRecipe, overrides=[phases], options=options))
    ends = [phase.until for phase in run.phases(run.make_learner(fresh=False), ALONE)]
    assert [sum(step / 10 < end for step in range(10)) for end in ends] == [1, 3, 4, 10]


def test_the_first_token_of_xlnet_has_a_type_in_every_network(tmp_path: Path):
    pytest.importorskip("sentencepiece")
    tokenizer = Tokenizer.load(FOLDERS["XLNet"](tmp_path))
    types = tokenizer.input_format.types(4)
    assert new_config(PretrainRecipe(), tokenizer).type_vocab_size == max(types) + 1


def test_frequencies_of_next_words_include_special_tokens(topics: Path):
    options = {"data.tokens": topics / "tokens", "objectives": ("clm",), "max_length": 16}
    data = Pretraining(resolve(PretrainRecipe, options=options)).phase_data[0]
    assert float(data.unigram.exp().sum()) == pytest.approx(1)
    examples = [data.examples.example(0, i) for i in range(len(data.examples))]
    targets = torch.cat([torch.from_numpy(example.token_ids[1:]) for example in examples])
    shares = targets.bincount() / len(targets)
    entropy = -float(shares.xlogy(shares).sum())
    assert -float(data.unigram[targets].mean()) == pytest.approx(entropy, rel=0.02)


@pytest.mark.parametrize(
    ("objectives", "architecture"),
    [
        ("mlm", "BertForMaskedLM"),
        slow("mlm,sop", "BertForPreTraining"),
        ("clm", "BertLMHeadModel"),
        slow("mlm,clm", "BertForMaskedLM"),
        slow("plm", "XLNetLMHeadModel"),
        ("span_corruption", "T5ForConditionalGeneration"),
        slow("mlm,rtd", "ElectraForPreTraining"),
    ],
)
def test_what_is_learnt_decides_what_is_saved(
    topics: Path, tmp_path: Path, objectives: str, architecture: str, transformers: Any
):
    folder = tmp_path / "run"
    steps = {"max_steps": 20, "eval_every": 20}
    pretrain(topics / "tokens", folder, objectives=objectives, **steps, **SHORT)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert getattr(model.config, "is_decoder", False) == (objectives == "clm")
    if "rtd" in objectives:
        generator = transformers.ElectraForMaskedLM.from_pretrained(folder / "generator")
        words = [m.get_input_embeddings().weight for m in (model, generator)]
        assert words[0].equal(words[1])
    rows = [r for r in learnt(folder) if not r.get("evaluation")]
    for name in objectives.split(","):
        assert 0 <= rows[-1][f"{name}_accuracy"] <= 1
        if name != "sop":  # 20 steps are too few for the order of sentences
            assert rows[-1][f"{name}_loss"] < rows[0][f"{name}_loss"]


@pytest.mark.parametrize("masking", [*(slow(m) for m in ("word", "ngram")), "span"])
def test_each_kind_of_masking_learns(topics: Path, tmp_path: Path, masking: str):
    pretrain(
        topics / "tokens", tmp_path / "run", masking=masking, max_steps=15, eval_every=5, **SHORT
    )
    held_out = [r for r in learnt(tmp_path / "run") if r.get("evaluation")]
    assert held_out[-1]["mlm_loss"] < held_out[0]["mlm_loss"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"objectives": ("plm",), "mask_rate": 0.3}, "task.mask_rate does not apply to plm"),
        ({"objectives": ("clm",), "masking": "word"}, "task.masking does not apply to clm"),
        ({"span_length": 5.0}, "task.span_length does not apply to bow, mlm"),
    ],
)
def test_settings_without_effect_are_named(task: dict[str, Any], message: str):
    with pytest.warns(InputWarning, match=message):
        PretrainRecipe(task=PretrainTask(**task))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["phases=[{share: 0.5}]"], "add up to 0.5; they must add up to 1"),
        (["phases=[{share: 1, mask: 2}]"], r"no setting phases\[0\].mask"),
        (["phases=[{share: 0.5, objectives: [mlm, rtd]}, {share: 0.5}]"], "needs it in all"),
        (["task.objectives=mlm,nsp,sop"], "nsp and sop, which share a head"),
        (["task.objectives=rtd"], "must have mlm, clm, plm or span_corruption"),
        (["task.objectives=mlm,plm"], r"plm, which trains another architecture \(XLNet\)"),
        (["phases=[{share: 0.5, objectives: plm}, {share: 0.5}]"], "plm needs it in all phases"),
        (["task.objectives=plm", "model.init_from=x"], "starts from a BERT, but plm trains"),
        (["task.objectives=span_corruption,mlm"], r"another architecture \(T5\) and cannot be"),
        (["task.objectives=span_corruption", "task.softmax=sampled"], "does not support span"),
        (["task.objectives=mlm,nsp,rtd"], "rtd, which requires mlm"),
        (
            ["task.masking=words"],
            "task.masking is 'words'; it must be one of token, word, ngram, span",
        ),
        (["task.mask_rate=1.5"], "between 0 and 1"),
        (["task.span_length=0.5"], r"task.span_length is 0.5; .*\[1, 512\]"),
        (["model.init_counts=x.txt"], "needs model.init_from"),
        (["model.size=mini", "model.init_from=x"], "does not apply to model.init_from"),
    ],
)
def test_what_cannot_be_learnt_is_said_in_one_line(
    topics: Path, tmp_path: Path, overrides: list[str], message: str
):
    with pytest.raises(InputError, match=message) as error:
        pretrain(topics / "tokens", tmp_path / "run", overrides=overrides, **SHORT)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [slow("plm"), slow("span_corruption")])
def test_a_resumed_run_sees_the_same(topics: Path, tmp_path: Path, name: str):
    options = {"objectives": name, "max_steps": 6, "save_every": 3, "eval_every": 6}
    whole, folder = tmp_path / "whole", tmp_path / "run"
    for place in (whole, folder):
        pretrain(topics / "tokens", place, **options, overrides=["run.keep=9"], **SHORT)
    pretrain(None, folder, resume_step=3, quiet=True)
    assert learnt(folder) == learnt(whole)
    last = next(r for r in reversed(learnt(folder)) if r.get("evaluation"))
    assert last.keys() >= {f"{name}_loss", f"{name}_accuracy", "unigram_loss"}
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_preview_shows_sentinels(topics: Path):
    shown = preview_pretraining(topics / "tokens", objectives="span_corruption", max_steps=1)
    assert "1  [CLS] <extra_id_0> " in shown


def test_sentinels_are_tokens_of_the_folder(topics: Path, tmp_path: Path, transformers: Any):
    """Behind the vocabulary, and known to Transformers, to the next run and to ownbert."""
    folder = tmp_path / "run"
    known = {"objectives": "span_corruption", "overrides": ["task.span_length=1"]}
    shutil.copytree(topics / "vocab", folder)  # where the vocabulary was learnt
    plain = Tokenizer.load(folder)
    pretrain(topics / "tokens", folder, max_steps=2, mask_rate=0.5, save_every=1, **known, **SHORT)
    recipe = resolve(PretrainRecipe, config=folder / "recipe.yaml")
    assert (recipe.task.rate, recipe.task.span_length) == (0.5, 1.0)
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    sentinels = [f"<extra_id_{number}>" for number in range(100)]
    assert ours.vocabulary() == [*plain.vocabulary(), *sentinels]
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == len(theirs) == ours.vocab_size
    ids = [*range(plain.vocab_size, ours.vocab_size)]
    assert theirs.convert_tokens_to_ids(sentinels) == ids
    word = plain.vocabulary()[-1]
    text = f"<extra_id_3> {word} <extra_id_99>"
    found = theirs(text, add_special_tokens=False).input_ids
    assert found == ours.encode_batch([text])[0] == [ids[3], plain.vocab_size - 1, ids[99]]
    assert theirs.decode(found) == text
    assert theirs.decode(found, skip_special_tokens=True) == word
    card = (folder / "README.md").read_text()
    assert "A pretrained encoder-decoder (2 layers each," in card
    assert "AutoModelForSeq2SeqLM" in card
    pretrain(None, folder, resume_step=1, quiet=True)  # the folder's vocabulary is still its own


def test_the_share_of_tokens_to_predict():
    assert PretrainRecipe().task.rate == 0.3
    spans = resolve(PretrainRecipe, overrides=["task.objectives=span_corruption"])
    assert spans.task.rate == 0.15
    phases = resolve(PretrainRecipe, overrides=["phases=[{share: 1, mask_rate: 0.2}]"])
    assert phases.parts[0][0].rate == 0.2


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
