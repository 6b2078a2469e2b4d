"""Training: copy and sort learnt to the last one, exact resume, averages, mistakes."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sequences import SETTINGS, Row, files, rows

from ownbert.checkpoint.translation import load_translation
from ownbert.errors import InputError
from ownbert.translate.preview import preview_translation
from ownbert.translate.train import train_translation
from ownbert.translate.use import Translator

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
    """With dropout and averaging; the second part of the run goes on from a saved state."""
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


def test_the_mean_of_saved_states_is_taken_where_it_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from ownbert.train.saved import saved

    pairs = files(tmp_path, rows(300, seed=0), list, "train")
    settings = SHORT | pairs | {"average": 3, "save_every": 4, "max_steps": 40, "quiet": False}
    # At a rate that does not fall weights go to and fro, and their mean is better.
    settings |= {"schedule": "constant", "learning_rate": 2e-2}
    train_translation(tmp_path / "run", **settings)
    said = "".join(capsys.readouterr())
    assert "of the mean of the last 3 saved states" in said
    states = [load_file(next(p.glob("*.safetensors"))) for p in saved(tmp_path / "run")[-3:]]
    model, _ = load_translation(tmp_path / "run")
    found = model.encoder.blocks[0].feed_forward.up.weight
    name = "model.encoder.blocks.0.feed_forward.up.weight"
    mean = torch.stack([state[name] for state in states]).mean(0)
    expected = mean if "the mean stay" in said else states[-1][name]
    assert torch.allclose(found, expected, atol=1e-6)


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
    assert "tokens a source: median 5, 90% up to 5, longest 5" in said
    assert "[CLS] 10 11 12 [SEP]\n    [CLS] 10 11 12 [SEP]" in said


def test_mistakes(tmp_path: Path):
    pairs = files(tmp_path, rows(50, seed=0), list, "train")
    run = tmp_path / "run"
    with pytest.raises(InputError, match="--source and --target are needed"):
        train_translation(run, **SHORT)
    with pytest.raises(InputError, match=r"hidden_size 16 .*num_attention_heads 3"):
        train_translation(run, **(SHORT | pairs | {"model.h": 3}), max_steps=1)
    with pytest.raises(InputError, match="vocab_size 100: byte-level BPE needs 261 or more"):
        train_translation(run, **(SHORT | pairs | {"kind": "bpe", "vocabulary.size": 100}))
    assert not run.exists()
    train_translation(run, **(SHORT | pairs), max_steps=2)
    with pytest.raises(InputError, match="already holds a model"):
        train_translation(run, **(SHORT | pairs), max_steps=2)
    other = files(tmp_path, rows(50, seed=9), list, "other")
    with pytest.raises(InputError, match=r"cannot resume .*source was"):
        train_translation(run, **(SHORT | other), max_steps=4, resume=True)
    path = Path(pairs["source"])
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(InputError, match=r"training pairs (was|were)"):
        train_translation(run, **(SHORT | pairs), max_steps=4, resume=True)
