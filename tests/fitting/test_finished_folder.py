"""What is left in a finished folder of ``fit``, what of the texts it holds, and held-out errors."""

import csv
import fnmatch
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert.fitting.finished_folder import gains_of_all_rows
from support.fit_files import labelled

# Every file, and what it holds of the texts; docs/fit.md says the same.
NOTHING, WORDS, SOME_TEXTS = "nothing", "single words", "some texts"
FILES = {
    # The folder's own network.
    "config.json": NOTHING,
    "model.safetensors": NOTHING,
    "vocab.txt": WORDS,
    "tokenizer.json": WORDS,
    "tokenizer_config.json": NOTHING,
    "special_tokens_map.json": NOTHING,
    # What predict uses.
    "blend.json": NOTHING,
    "held_out.npz": NOTHING,  # vectors and probabilities
    "training_rows.json": WORDS,
    "members/*/linear.json": NOTHING,
    "members/*/linear.safetensors": WORDS,
    "members/self-trained/*/linear.*": NOTHING,
    "members/first-fold*/*": NOTHING,  # until a network has been taught
    "members/probe/probe.*": NOTHING,
    "members/probe/encoder/*": WORDS,
    "members/network/seed-*/fold-*/*": WORDS,
    "members/start/*": WORDS,
    "members/joined*/*": WORDS,
    "members/student/*": WORDS,
    # The report, and what --resume needs.
    "README.md": NOTHING,
    "report.*": SOME_TEXTS,
    "recipe.yaml": NOTHING,
    "fit.json": NOTHING,
    "work/*.npy": NOTHING,
    "work/replay.json": NOTHING,  # times and numbers of threads
    "work/token-scores*.npz": NOTHING,  # by numbers of tokens
    "work/network/*": WORDS,
}
_SEQUENCE = 4  # words in a row that are taken for a text


def held(folder: Path) -> dict[str, str]:
    """What each file holds by the table; an unknown file fails."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        known = [what for pattern, what in FILES.items() if fnmatch.fnmatch(name, pattern)]
        assert known, f"{name} is not in the table"
        found[name] = known[0] if NOTHING not in known else NOTHING
    return found


def check(folder: Path, texts: Sequence[str]) -> None:
    sequences = set()
    for text in texts:
        words = text.split()
        sequences |= {
            " ".join(words[i : i + _SEQUENCE]).encode() for i in range(len(words) - _SEQUENCE + 1)
        }
    some = random.Random(0).sample(sorted(sequences), min(400, len(sequences)))
    what = held(folder)
    for name, kind in what.items():
        content = (folder / name).read_bytes()
        if kind != SOME_TEXTS:
            assert not [own for own in some if own in content], name
    assert any(own in (folder / "report.html").read_bytes() for own in sequences)
    assert not (folder / "work" / "tokens").exists()


def test_a_finished_folder_holds_no_texts_but_those_of_its_report(fitted: Path, topics: Path):
    texts = (topics / "corpus.txt").read_text().splitlines()[:60]
    for name in ("train", "dev", "test"):
        lines = (topics / f"{name}.csv").read_text().splitlines()[1:]
        texts += [line.partition(",")[2] for line in lines]
    check(fitted, texts)
    found = ownbert.drift(fitted, topics / "test.csv")
    assert found.reference == "the training rows"
    assert found.largest.beyond_chance < 0.2
    # The vectors of the labelled texts are those of the probe.
    with np.load(fitted / "held_out.npz") as kept:
        assert ("vectors" in kept) == (fitted / "members" / "probe").is_dir()


def test_so_does_one_of_rows_in_memory(topics: Path, tmp_path: Path):
    texts = (topics / "corpus.txt").read_text().splitlines()[:60]
    labels = ["red" if text.count("red") > text.count("blue") else "blue" for text in texts]
    given = {"unlabelled": texts[40:], "minutes": 0.01, "quiet": True}
    ownbert.fit((texts[:40], labels[:40]), output=tmp_path / "best", **given)
    check(tmp_path / "best", texts)


@pytest.mark.slow
def test_so_does_one_with_a_pretrained_network(topics: Path, tmp_path: Path):
    texts = (topics / "corpus.txt").read_text().splitlines()
    labels = ["red" if text.count("red") > text.count("blue") else "blue" for text in texts]
    ownbert.fit(
        (texts[:60], labels[:60]),
        unlabelled=texts[60:],
        seeds=1,
        minutes=0.9,
        output=tmp_path / "best",
        quiet=True,
    )
    check(tmp_path / "best", texts)
    assert (tmp_path / "best" / "model.safetensors").exists()
    ids = np.load(tmp_path / "best" / "work" / "tfidf.npy")
    assert ids.dtype.kind == "f"


LABELS = ("red", "green", "blue", "grey")


def table(path: Path, rng: random.Random, rows: int) -> Path:
    """Rows with three of 60 words per label, so that more rows teach more words."""
    found = []
    for _ in range(rows):
        label = rng.choice(LABELS)
        words = [f"{label}{rng.randrange(60)}" for _ in range(3)]
        found.append((" ".join([*words, f"any{rng.randrange(20)}"]), label))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *found])
    return path


@pytest.mark.parametrize("rows", [120, 1600])
def test_final_models_are_expected_to_err_less(tmp_path: Path, rows: int):
    path = table(tmp_path / "train.csv", random.Random(0), rows)
    found = labelled(path)
    gains = gains_of_all_rows(found)
    assert gains is not None
    assert gains.shape == (2, len(found.held_out))
    assert np.isfinite(gains).all()
    assert np.median(gains[0]) < 0


def test_with_a_dev_file_the_final_models_are_those_compared(tmp_path: Path):
    rng = random.Random(0)
    path, dev = (table(tmp_path / name, rng, 80) for name in ("train.csv", "dev.csv"))
    assert gains_of_all_rows(labelled(path, dev)) is None
