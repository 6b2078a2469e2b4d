"""Training: copy and sort learnt to the last one, exact resume, averages, mistakes."""

import json
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from ownbert.exceptions import InputError
from ownbert.train.loop import Callbacks, Interrupted
from ownbert.train.state import list_states
from ownbert.translation.decode import Translator
from ownbert.translation.translation_folder import load_translation
from ownbert.translation.translation_run import preview_translation, train_translation
from support.sequences import SETTINGS, Row, files, rows

SHORT = {**SETTINGS, "d_model": 16, "d_ff": 32, "model.h": 2, "batch_tokens": 200}


@pytest.mark.slow
@pytest.mark.parametrize("answer", [list, sorted], ids=["copy", "sort"])
def test_learns_to_the_last_one(answer: Callable[[Row], Row], tmp_path: Path):
    """Rows that it has never seen, all right, in less than a minute of a core."""
    start = time.process_time()
    pairs = files(tmp_path, rows(3000, seed=0), answer, "train")
    train_translation(tmp_path / "run", **SETTINGS, **pairs, epochs=12, overrides=[])
    unseen = rows(200, seed=1)
    written = Translator(tmp_path / "run", beams=1)(" ".join(row) for row in unseen)
    assert list(written) == [" ".join(answer(row)) for row in unseen]
    assert time.process_time() - start < 60


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path):
    """With dropout and averaging; the second part of the run resumes from a saved state."""
    pairs = files(tmp_path, rows(120, seed=0), sorted, "train")
    settings = SHORT | {"dropout": 0.1, "average": 3, "max_steps": 12, "save_every": 2} | pairs
    train_translation(tmp_path / "whole", **settings)
    cut = tmp_path / "cut"
    train_translation(cut, **settings)
    for path in sorted((cut / "checkpoints").glob("step-*"))[-2:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    (cut / "model.safetensors").unlink()
    train_translation(cut, **settings, resume=True)
    one, two = weights(tmp_path / "whole"), weights(cut)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_stop_between_two_saves_leaves_no_state_behind(tmp_path: Path):
    """The mean is that of the states that a run without a stop has, however often it is stopped."""
    pairs = files(tmp_path, rows(120, seed=0), sorted, "train")
    # At this rate the mean is the better.
    settings = SHORT | {"average": 2, "max_steps": 9, "save_every": 3, "log_every": 1} | pairs
    settings |= {"schedule": "constant", "learning_rate": 5e-2}
    train_translation(tmp_path / "whole", **settings)
    cut, resume = tmp_path / "cut", False
    for last in (4, 5, 6, 8):

        def stop(row: Mapping[str, Any], last: int = last) -> None:
            if row["step"] == last:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(Interrupted):
            train_translation(cut, **settings, resume=resume, callbacks=Callbacks(on_log=stop))
        resume = True
    train_translation(cut, **settings, resume=True)
    names = [[path.name for path in list_states(run)] for run in (tmp_path / "whole", cut)]
    assert names[0] == names[1]
    one, two = weights(tmp_path / "whole"), weights(cut)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_the_mean_of_saved_states_is_taken_where_it_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pairs = files(tmp_path, rows(300, seed=0), list, "train")
    settings = SHORT | pairs | {"average": 3, "save_every": 4, "max_steps": 40, "quiet": False}
    # At a rate that does not fall weights go to and fro, and their mean is better.
    settings |= {"schedule": "constant", "learning_rate": 2e-2}
    train_translation(tmp_path / "run", **settings)
    said = "".join(capsys.readouterr())
    assert "with the mean of the last 3 saved states" in said
    states = [load_file(next(p.glob("*.safetensors"))) for p in list_states(tmp_path / "run")[-3:]]
    model, _ = load_translation(tmp_path / "run")
    found = model.encoder.blocks[0].feed_forward.up.weight
    name = "model.encoder.blocks.0.feed_forward.up.weight"
    mean = torch.stack([state[name] for state in states]).mean(0)
    expected = mean if "the mean is kept" in said else states[-1][name]
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_peak_rate_of_few_pairs_is_that_of_many(tmp_path: Path):
    """A warm-up of a few steps would have a peak at which a model of 256 learns nothing."""
    pairs = files(tmp_path, rows(50, seed=0), list, "train")
    settings = SHORT | pairs | {"schedule": "noam", "learning_rate": None, "max_steps": 1}
    for given, steps in ((None, 912), (32, 32)):
        folder = tmp_path / str(given)
        train_translation(folder, **settings, warmup_steps=given)
        optim = yaml.safe_load((folder / "recipe.yaml").read_text())["optim"]
        assert optim["learning_rate"] == pytest.approx((16 * steps) ** -0.5)
        assert optim["warmup_steps"] < 100


def test_separate_vocabularies(tmp_path: Path):
    made = rows(100, seed=0)
    pairs = files(tmp_path, made, lambda row: [f"x{word}" for word in row], "train")
    train_translation(tmp_path / "run", **(SHORT | pairs), max_steps=3, shared=False)
    translator = Translator(tmp_path / "run")
    assert translator.source.id_of("10") is not None
    assert translator.source.id_of("x10") is None
    assert translator.target.id_of("x10") is not None
    assert not translator.model.share_embeddings
    assert len(list(translator(["10 11", "12"]))) == 2


def test_plain_text_by_pieces(tmp_path: Path):
    """Byte-level pieces give back every letter; what was never seen has bytes."""
    texts = ["Ein Mann läuft.", "Zwei Hunde spielen im Schnee!", "“你好”, said nobody"] * 20
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    options = {"source": str(tmp_path / "a"), "target": str(tmp_path / "b"), "kind": "bpe"}
    train_translation(
        tmp_path / "run", **(SHORT | options), **{"vocabulary.size": 400}, max_steps=2
    )
    tokenizer = Translator(tmp_path / "run").target
    for text in [*texts[:3], "ÄÖÜ  œ 中文 🙂"]:
        ids = tokenizer.encode_batch([text])[0]
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text


def test_a_preview_writes_nothing(tmp_path: Path):
    pairs = files(tmp_path, [["10", "11", "12"]] * 60, sorted, "train")
    before = sorted(tmp_path.iterdir())
    settings = {name: value for name, value in (SHORT | pairs).items() if name != "quiet"}
    said = preview_translation(**settings, max_steps=5)
    assert sorted(tmp_path.iterdir()) == before
    assert "max_steps: 5" in said
    assert "59 training and 1 dev pairs, 8 blank tokens for both sides" in said
    assert "tokens per source: median 5, 90% up to 5, longest 5" in said
    assert "[CLS] 10 11 12 [SEP]\n    [CLS] 10 11 12 [SEP]" in said


def test_mistakes(tmp_path: Path):
    pairs = files(tmp_path, rows(50, seed=0), list, "train")
    run = tmp_path / "run"
    with pytest.raises(InputError, match="source and target are needed"):
        train_translation(run, **SHORT)
    for wrong, said in (
        ({"model.h": 3}, "d_model is 16, model.h 3; d_model must be a multiple of h"),
        ({"d_model": 0}, "model.d_model is 0"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
        ({"vocabulary.size": 3}, "vocab_size 3 is too small; it must exceed"),
        ({"overrides": ["model.N=[1"]}, r"model.N is '\[1', which is not YAML"),
    ):
        with pytest.raises(InputError, match=said):
            train_translation(run, **(SHORT | pairs | wrong), max_steps=1)
    with pytest.raises(InputError, match="vocab_size 100: byte-level BPE needs 261 or more"):
        train_translation(run, **(SHORT | pairs | {"kind": "bpe", "vocabulary.size": 100}))
    assert not run.exists()
    train_translation(run, **(SHORT | pairs), max_steps=2)
    with pytest.raises(InputError, match="already contains a model"):
        train_translation(run, **(SHORT | pairs), max_steps=2)
    other = files(tmp_path, rows(50, seed=9), list, "other")
    with pytest.raises(InputError, match=r"training pairs (was|were)"):
        train_translation(run, **(SHORT | other), max_steps=4, resume=True)
    with pytest.raises(InputError, match=r"cannot resume .*d_ff was 32"):
        train_translation(run, **(SHORT | pairs | {"d_ff": 64}), max_steps=4, resume=True)
    path = Path(pairs["source"])
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(InputError, match=r"training pairs (was|were)"):
        train_translation(run, **(SHORT | pairs), max_steps=4, resume=True)


def test_a_table_without_the_column(tmp_path: Path):
    table = tmp_path / "pairs.tsv"
    table.write_text("de\ten\n10\t11\n")
    given = SHORT | {"pairs": str(table), "source_column": "fr", "target_column": "en"}
    with pytest.raises(InputError, match=r"no column 'fr'.* choose with source_column"):
        train_translation(tmp_path / "run", **given)


def steps_of(folder: Path) -> int:
    return json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"]


def test_the_first_limit_ends_a_run(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    run = tmp_path / "run"
    train_translation(run, **(SHORT | pairs), epochs=50, max_steps=3)
    assert steps_of(run) == 3
    train_translation(run, **(SHORT | pairs), max_steps=5, resume=True)
    assert steps_of(run) == 5


def test_an_epoch_is_each_pair_once(tmp_path: Path):
    """Long pairs leave batches half empty: these are more than the tokens over their size."""
    made = [[str(10 + i % 10)] * 40 for i in range(30)]
    pairs = files(tmp_path, made, list, "train")
    settings = SHORT | pairs | {"batch_tokens": 130, "held_out": 0.01}
    train_translation(tmp_path / "run", **settings, epochs=2)
    assert steps_of(tmp_path / "run") == 2 * 29


def test_a_finished_run_goes_on_with_more_epochs(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    run = tmp_path / "run"
    train_translation(run, **(SHORT | pairs), epochs=2)
    before = steps_of(run)
    train_translation(run, **(SHORT | pairs), epochs=4, resume=True)
    assert steps_of(run) == 2 * before


def test_one_vocabulary_takes_the_place_of_two(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    run = tmp_path / "run"
    train_translation(run, **(SHORT | pairs), max_steps=2, shared=False)
    train_translation(run, **(SHORT | pairs), max_steps=2, overwrite=True)
    translator = Translator(run)
    assert translator.source is translator.target


def test_a_running_mean_is_what_is_saved(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    run = tmp_path / "run"
    train_translation(run, **(SHORT | pairs | {"average": 3}), max_steps=12, ema=0.9)
    (state,) = list((run / "checkpoints").glob("step-*12"))
    tensors = load_file(next(state.glob("*.safetensors")))
    name = "model.encoder.blocks.0.feed_forward.up.weight"
    model, _ = load_translation(run)
    found = model.encoder.blocks[0].feed_forward.up.weight
    assert torch.equal(found, tensors[f"average.{name}"])
    assert not torch.equal(found, tensors[name])


def test_a_damaged_state_is_left_out_of_the_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    settings = SHORT | pairs | {"average": 3, "save_every": 2, "quiet": False}
    train_translation(tmp_path / "run", **settings, max_steps=6)
    first = min((tmp_path / "run" / "checkpoints").glob("step-*"))
    file = next(first.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    train_translation(tmp_path / "run", **settings, max_steps=6, resume=True)
    assert "with the mean of the last 2 saved states" in "".join(capsys.readouterr())


def test_blank_pairs_are_told_of_without_dev_files_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pairs = files(tmp_path, [*rows(20, seed=0), [], []], list, "train")
    train_translation(tmp_path / "run", **(SHORT | pairs | {"quiet": False}), max_steps=1)
    assert "2 training pairs are blank on one side" in "".join(capsys.readouterr())


def test_transformers_has_positions_for_the_longest(tmp_path: Path):
    pairs = files(tmp_path, rows(20, seed=0), list, "train")
    train_translation(tmp_path / "run", **(SHORT | pairs), max_steps=1, max_length=1000)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["max_position_embeddings"] == 2000
