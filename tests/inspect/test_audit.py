"""What a model remembers of its training texts is measured."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ownbert
from ownbert.batches.masking import ordinary_tokens
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.inspect.audit import _membership, copies
from ownbert.pretraining.phase_data import LENGTH, plant
from ownbert.run.file_names import CANARIES
from support.cli import refusal, run_cli
from support.shared import made_once

CODES = [f"c{i}" for i in range(60)]


def lines(rng: random.Random, count: int) -> list[str]:
    return [" ".join(rng.choices(CODES, k=16)) for _ in range(count)]


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has read 40 random texts many times, with two canaries, and other texts."""

    def make(folder: Path) -> None:
        rng = random.Random(0)
        for name, count in (("train", 40), ("other", 40)):
            (folder / f"{name}.txt").write_text("\n".join(lines(rng, count)), encoding="utf-8")
        ownbert.learn_vocabulary(folder / "train.txt", folder / "vocab", kind="blank", min_count=1)
        ownbert.prepare(folder / "train.txt", folder / "tokens", tokenizer=folder / "vocab")
        options: dict[str, Any] = {"max_steps": 60, "max_length": 24, "batch_tokens": 1024}
        ownbert.pretrain(folder / "tokens", folder / "bert", quiet=True, canaries=5, **options)

    return made_once(tmp_path_factory, "remembered", make)


def test_a_model_that_remembers_is_found_out(remembered: Path, tmp_path: Path):
    folder = Path(shutil.copytree(remembered / "bert", tmp_path / "bert"))
    data = ("--train", remembered / "train.txt", "--held-out", remembered / "other.txt")
    (folder / "notes.txt").write_text((remembered / "train.txt").read_text()[:200])
    done = run_cli("audit", folder, *data, "-o", tmp_path / "audit.json", "--card")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["membership"]["low"] > 0.5
    assert [each["times"] for each in found["canaries"]] == [1, 2, 4, 8, 16]
    assert found["canaries"][-1]["exposure"] > 3
    assert list(found["copies"]) == ["notes.txt"]
    assert "parts of training texts" in done.stdout
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert run_cli("audit", folder, *data, "--card", "--quiet").returncode == 0
    assert (folder / "README.md").read_text(encoding="utf-8") == card
    assert card.count("## Memory of the training texts") == 1
    assert card.rstrip().splitlines()[-1].startswith("ownbert ")


def test_texts_of_one_side_are_not_told(remembered: Path):
    texts = lines(random.Random(5), 120)
    found = ownbert.audit(remembered / "bert", texts[:60], texts[60:])
    assert found.membership.low < 0.5 < found.membership.high
    with pytest.raises(InputError, match="20 training texts and the same number of held-out texts"):
        ownbert.audit(remembered / "bert", texts[:60], texts[:60])
    with pytest.raises(InputError, match="there are 20 and 0"):  # also of those not sampled
        ownbert.audit(remembered / "bert", texts, texts[:30], most=20)


def test_canaries_change_no_file_and_no_held_out_text(remembered: Path):
    assert len(json.loads((remembered / "bert" / CANARIES).read_text())["canaries"]) == 5
    store = Store.open(remembered / "tokens")
    before = np.array(store.tokens)
    ordinary = ordinary_tokens(store.tokenizer().vocab_size, store.tokenizer().special_ids)
    planted, canaries = plant(store, ordinary, 3, held_out=0.1, seed=1)
    assert (np.array(Store.open(remembered / "tokens").tokens) == before).all()
    text = np.array(planted.tokens).tolist()
    for canary in canaries:
        ids = canary["ids"]
        assert len(ids) == LENGTH
        at = [i for i in range(len(text)) if text[i : i + LENGTH] == ids]
        assert len(at) == canary["times"]
    assert (text != before).sum() <= LENGTH * (1 + 2 + 4)
    with pytest.raises(InputError, match="for training; use fewer"):
        plant(store, ordinary, 20, held_out=0.1, seed=1)


def test_the_interval_of_an_area():
    rng = np.random.default_rng(0)
    same = _membership("loss", rng.random(400), rng.random(400))
    assert same.low < 0.5 < same.high
    apart = _membership("loss", rng.random(400), 2 + rng.random(400))
    assert (apart.auc, apart.found) == (1.0, 1.0)


def test_copies_are_eight_words_in_a_row(tmp_path: Path):
    text = "one two three four five six seven eight nine"
    (tmp_path / "README.md").write_text("so: One, two three four five six seven eight!")
    (tmp_path / "report.html").write_text("<p>one two <b>three</b> four five</p>")
    (tmp_path / "report.txt").write_text("今天天气很好我们出去玩", encoding="utf-8")
    assert copies(tmp_path, [text, text, "other"]) == {"README.md": 2}
    assert copies(tmp_path, ["今天天气很好我们"]) == {"report.txt": 1}
    # Our pages escape "<" only, programs for ASCII escape all others.
    (tmp_path / "report.txt").write_text("\\u003cb>今天天气很好我们出去玩", encoding="utf-8")
    (tmp_path / "rows.json").write_text(
        json.dumps(f"今天天气很好我们出去玩 {text}".replace(" ", "\n"))
    )
    (tmp_path / "hindi.md").write_text("हिन्दी में बहुत दिन", encoding="utf-8")
    assert copies(tmp_path, ["हिन्दी में बहुत दिन"]) == {}  # four words
    assert copies(tmp_path, ["今天天气很好我们"]) == {"report.txt": 1, "rows.json": 1}
    assert copies(tmp_path, [text]) == {"README.md": 1, "rows.json": 1}


def test_classifiers_are_audited_by_their_loss(classifier: Path, topics: Path, tmp_path: Path):
    found = ownbert.audit(classifier, topics / "train.csv", topics / "test.csv")
    assert found.membership.score == "loss"
    assert found.canaries == ()
    assert found.rare is None
    says = refusal("audit", classifier, "--train", topics / "train.csv", "--held-out", "none.csv")
    assert "none.csv" in says
    data = ("--train", topics / "train.csv", "--held-out", topics / "test.csv")
    assert ".json" in refusal("audit", classifier, *data, "-o", tmp_path / "audit.txt")
    assert not list(tmp_path.iterdir())
