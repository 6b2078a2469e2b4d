"""The networks of ``fit``: trained, with built-in linear models, and distilled on texts."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import pytest
import yaml

import ownbert
from ownbert.checkpoint import describe, load, load_tokenizer, save
from ownbert.fitting import joined_network
from ownbert.fitting.comparison import ComparedModel, Comparison
from ownbert.fitting.fit import Fit
from ownbert.fitting.joined_network import _fit_scores, _read, start_of
from ownbert.fitting.networks import (
    _size_and_batch,
    finetune_on,
    mixed_texts,
    pieces_of,
    start_on,
    taught_texts,
    warnings_of,
    with_means,
)
from ownbert.inference.open_folder import open_folder
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.tables.memory import table_of
from ownbert.tables.tables import Source
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.train.log import read_log
from ownbert.views.blending import loss
from ownbert.views.view_features import Texts
from support.fit_files import json_of, labelled, sentence_model, texts_of

# Enough on any machine: all that there is to do ends earlier.
MINUTES = 10


def test_the_size_of_a_network_depends_on_the_device():
    assert _size_and_batch(None, cpu=False)["size"] == "mini"
    assert _size_and_batch(None, cpu=True) == {}
    assert _size_and_batch("base", cpu=False)["size"] == "base"


def test_a_network_is_trained_with_the_settings_it_is_given(
    topics: Path, pretrained: Path, tmp_path: Path
):
    train = topics / "train.csv"
    rows = labelled(train)
    learnt = [rows.rows[i] for i in rows.learnt]
    given = {"mask_rate": 0.3, "pooling": "mean", "epochs": 1}
    out = tmp_path / "out"
    finetune_on(
        rows, learnt, pretrained, out, seconds=60, device="cpu", seed=0, settings=dict(given)
    )
    recipe = resolve(FinetuneRecipe, config=out / RECIPE)
    assert (recipe.task.mask_rate, recipe.task.pooling, recipe.run.epochs) == (0.3, "mean", 1)


def test_the_classifier_of_a_sentence_model_is_an_ordinary_model_folder(
    pretrained: Path, topics: Path, tmp_path: Path, transformers: Any
):
    """Its text vectors are means, which no classifier of Transformers reads."""
    train, texts = topics / "train.csv", texts_of(topics / "test.csv")
    rows = labelled(train)
    model, start = sentence_model(pretrained, tmp_path / "sentences"), tmp_path / "start"
    base = with_means(model, tmp_path / "base")
    learnt = rows.first_fold[0]
    assert start_on(rows, learnt, base, start, device="cpu", seed=0, settings={})
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    own = transformers.AutoModelForSequenceClassification.from_pretrained(start).eval()
    logits = own(**tokenizer(texts[0], return_tensors="pt")).logits
    (ours,) = open_folder(start)([Row(1, (texts[0],))])
    np.testing.assert_allclose(logits.softmax(-1)[0].detach().numpy(), ours, atol=1e-5)
    assert ownbert.evaluate(start, train).values["accuracy"] > 0.9
    assert with_means(pretrained, tmp_path / "same") == pretrained


def test_a_network_that_knows_no_word_of_the_texts(
    pretrained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """Two lines and no warning of NumPy."""
    texts = [f"{'甲乙'[i % 2]}丙{chr(0x4E00 + i)}" for i in range(24)]
    given = {"model": pretrained, "seeds": 1, "minutes": MINUTES, "output": tmp_path / "best"}
    given["dev"] = (texts[16:], ["a", "b"] * 4)  # or networks would be trained on five folds
    ownbert.fit((texts[:16], ["a", "b"] * 8), **given)
    said = " ".join("".join(capfd.readouterr()).split())
    assert "100.0% of the tokens are [UNK]" in said
    assert "linear models built in: skipped, no word of the texts is in the vocabulary" in said
    assert "RuntimeWarning" not in said


def test_a_step_that_is_not_for_the_network_says_why(
    pretrained: Path, topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pruned = load(pretrained, heads=[])
    pruned.prune_heads({0: [0]})
    save(pruned, tmp_path / "pruned", tokenizer=load_tokenizer(pretrained))
    given = {
        "model": tmp_path / "pruned",
        "seeds": 1,
        "minutes": MINUTES,
        "dev": topics / "dev.csv",
    }
    ownbert.fit(topics / "train.csv", output=tmp_path / "best", **given)
    said, title = capsys.readouterr().out, "network, linear models built in"
    assert f"{title}: skipped, linear models cannot be built into a network of this kind" in said
    assert said.count(title) == 1


def test_a_network_is_taught_on_texts_without_labels_and_on_mixed_ones(topics: Path):
    train = topics / "train.csv"
    rows = labelled(train, topics / "dev.csv")
    own = Texts(rows.texts(), "ids")
    lines = dict.fromkeys((topics / "corpus.txt").read_text().splitlines()[:60])
    others, none = Texts([(line,) for line in lines], "ids"), Texts([], "ids")

    def kinds(unlabelled: Texts, count: int, *, mix: bool = True) -> tuple[int, int]:
        pieces, mixed = taught_texts(rows, own, unlabelled, count, mix=mix, seed=0)
        return len(pieces), len(mixed)

    assert kinds(others, 40) == (40, 0)
    pieces, mixed = kinds(others, 10_000)
    assert 60 <= pieces < 80  # long ones are cut
    assert mixed == 8 * len(texts_of(train))
    assert kinds(none, 40) == (0, 40)
    assert kinds(others, 40, mix=False) == (40, 0)


@pytest.mark.slow
def test_without_other_texts_a_network_is_taught_on_mixed_ones(
    topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Its log is kept, also if it predicts alone.
    monkeypatch.setattr(Fit, "_keep_once", lambda run: None)
    given = {"minutes": 0.8, "seeds": 1, "output": tmp_path / "best", "quiet": True}
    ownbert.fit(topics / "train.csv", dev=topics / "dev.csv", **given)
    taught = tmp_path / "best" / "members" / "student"
    assert resolve(FinetuneRecipe, config=taught / RECIPE).task.mask_rate == 0
    examples = [16 * row["step"] for row in read_log(taught) if row.get("step")]
    assert examples[-1] > 4 * len(texts_of(topics / "train.csv"))
    state = json_of(tmp_path / "best", "fit.json")
    assert state["candidates"][-1]["name"] in ("student", "joined-student")


@pytest.mark.slow
def test_a_taught_network_is_measured_without_dev_rows_too(
    topics: Path, pretrained: Path, tmp_path: Path
):
    lines = (topics / "corpus.txt").read_text().splitlines()
    out = tmp_path / "best"
    ownbert.fit(
        topics / "train.csv",
        labels_per_class=10,
        unlabelled=lines[:200],
        test=topics / "test.csv",
        model=pretrained,
        seeds=1,
        minutes=MINUTES,
        output=out,
        quiet=True,
    )
    state = json_of(out, "fit.json")
    assert 0 < state["candidates"][-1]["share"] < 1
    report = json_of(out)
    board = {row["name"]: row for row in report["leaderboard"]}
    assert 0 < board["distilled network"]["score"] <= 1
    found = ownbert.evaluate(out, topics / "test.csv")
    assert board[report["best"]]["test_score"] == pytest.approx(found.macro_f1, abs=1e-6)
    network = ownbert.evaluate(out, topics / "test.csv", network=True)
    assert board[report["network"]]["test_score"] == pytest.approx(network.macro_f1, abs=1e-6)


@pytest.mark.slow
def test_where_time_is_short_one_fold_has_a_network_with_all_epochs(
    topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.fitting.candidates._SHORTENED", 0.0)  # as if there were none left
    out = tmp_path / "best"
    ownbert.fit(
        topics / "train.csv", model=pretrained, minutes=MINUTES, output=out, quiet=True, seeds=2
    )
    (only,) = (out / "members" / "network").glob("seed-*/fold-*")
    recipe = yaml.safe_load((only / "recipe.yaml").read_text())
    assert list(read_log(only))[-1]["step"] == recipe["run"]["max_steps"]
    report = json_of(out)
    board = {row["name"]: row for row in report["leaderboard"]}
    assert board["network, fine-tuned"]["score"] > 0.9
    network = ownbert.evaluate(out, topics / "test.csv", network=True)
    assert network.macro_f1 > 0.9


@pytest.mark.slow
def test_the_folder_has_another_network_where_fine_tuning_spoils_it(
    topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.finetuning.default_settings._RATES", ((1024, 3.0),))
    out = tmp_path / "best"
    settings = {"dev": topics / "dev.csv", "model": pretrained, "minutes": MINUTES}
    settings |= {"output": out, "quiet": True, "seeds": 1}
    ownbert.fit(topics / "train.csv", **settings)
    before = json_of(out, "fit.json")["candidates"]
    ownbert.fit(topics / "train.csv", **settings, resume=True)
    assert json_of(out, "fit.json")["candidates"] == before
    report = json_of(out)
    board = {row["name"]: row for row in report["leaderboard"]}
    assert board["network, fine-tuned"]["score"] < board["network, only its head trained"]["score"]
    own = board[report["network"]]
    networks = ("network, only its head trained", "network, linear models built in")
    assert own["name"] in (*networks, "fine-tuned + linear models")
    assert own["score"] >= board["network, only its head trained"]["score"]
    members = json_of(out, "blend.json")["members"]
    assert "start" not in [member["name"] for member in members]
    network = ownbert.evaluate(out, topics / "dev.csv", network=True)
    assert network.macro_f1 == pytest.approx(own["score"], abs=1e-6)


def test_a_network_that_has_learnt_labels_is_named(topics: Path, pretrained: Path, fitted: Path):
    train = topics / "train.csv"
    rows = labelled(train)
    assert not warnings_of(rows, describe(pretrained))
    (warning,) = warnings_of(rows, describe(fitted))
    assert f"{fitted} was trained on labels" in warning


TOPICS = ("red", "green", "blue")


def test_the_penalty_of_scores_fitted_to_labels_is_the_best_on_held_out_rows(
    pretrained: Path, monkeypatch: pytest.MonkeyPatch
):
    """With one for all texts, the network for 409 long documents had a micro-F1 of .939, and the
    linear models that it contains one of .98."""
    draw = random.Random(0)

    def table(count: int) -> Source:
        """Texts of common words, one of 12 words of a topic among them."""
        given = []
        for i in range(count):
            words = [f"w{draw.randint(0, 30)}" for _ in range(40)]
            words[draw.randint(0, 39)] = f"{TOPICS[i % 3]}{draw.randint(0, 11)}"
            given.append({"text": " ".join(words), "label": TOPICS[i % 3]})
        return table_of(given)

    train = table(150)
    rows = labelled(train, table(120))
    scores = np.zeros((len(rows.held_out), 3))
    compared = Comparison(rows, [ComparedModel("tfidf", "", "linear", (), 0.0, scores=scores)])
    start = start_of(compared, pretrained, device="cpu", seed=0)
    learnt, (texts, held_out) = rows.folds[0][0], rows.first_fold
    examples, targets = _read(start.run, texts), rows.targets[rows.held_out]
    counts_of = _read(start.run, held_out)

    def fit(like: joined_network.TokenScores | None = None) -> joined_network.TokenScores:
        given = (examples, np.zeros((len(texts), 3)), learnt, like)
        return _fit_scores(compared, start, *given, most_pairs=0, alone=None)

    def loss_of(fitted: joined_network.TokenScores) -> float:
        return loss(targets, fitted.added(counts_of) + fitted.bias)

    best = fit()
    assert best.strength > 0.3
    assert fit(like=best).strength == best.strength
    monkeypatch.setattr(joined_network, "_FIRST", 0)
    for strength in (0.3, 0.03):
        monkeypatch.setattr(joined_network, "_STRENGTHS", (strength,))
        assert loss_of(fit()) > loss_of(best)


def test_long_texts_are_cut_between_words_and_nothing_is_lost():
    long, short = " ".join(f"word{i}" for i in range(60)), "a short one"
    pieces = pieces_of([long, short], 50)
    assert pieces[1] == short  # the first pieces of all come first
    own = [piece for piece in pieces if piece != short]
    assert " ".join(own) == long
    assert max(map(len, own)) <= 75
    assert all(len(piece) > 25 for piece in own)


def test_texts_without_blanks_are_cut_anywhere():
    text = "深陨坑是月球正面的撞击坑" * 30
    pieces = pieces_of([text], 50)
    assert "".join(pieces) == text
    assert {len(piece) for piece in pieces[:-1]} == {50}


def test_texts_as_short_as_labelled_ones_stay_whole():
    texts = ["one two three", "x" * 70, ""]
    assert pieces_of(texts, 60) == ["one two three", "x" * 70]


def test_mixed_texts_are_as_long_as_texts_and_made_of_their_spans():
    texts = [" ".join(f"{name}{i}" for i in range(count)) for name, count in (("a", 8), ("b", 21))]
    mixed = mixed_texts(texts, "words", 200, seed=0)
    assert len(mixed) == 200
    assert mixed == mixed_texts(texts, "words", 200, seed=0)
    assert mixed != mixed_texts(texts, "words", 200, seed=1)
    split = [text.split() for text in mixed]
    assert {len(own) for own in split} == {8, 21}
    assert {token for own in split for token in own} == {t for text in texts for t in text.split()}
    neighbours = {pair for text in texts for pair in pairwise(text.split())}
    pairs = [pair for own in split for pair in pairwise(own)]
    kept = sum(pair in neighbours for pair in pairs) / len(pairs)
    assert 0.5 < kept < 0.8  # spans of 1 to 5 tokens: two of three pairs are within one
    assert sum("a" in text and "b" in text for text in mixed) > 150


def test_long_mixed_texts_are_made_of_up_to_three_texts():
    """Those of any number would all be alike."""
    texts = [" ".join([name] * 200) for name in "abcdefgh"]
    mixed = [set(text.split()) for text in mixed_texts(texts, "words", 300, seed=0)]
    assert {len(sources) for sources in mixed} == {1, 2, 3}
    assert set.union(*mixed) == set("abcdefgh")
    short = [" ".join([name] * 30) for name in "abcdefgh"]
    mixed = [set(text.split()) for text in mixed_texts(short, "words", 300, seed=0)]
    assert max(map(len, mixed)) > 3


def test_mixed_texts_keep_words_whole_and_letters_as_they_are():
    mixed = mixed_texts(["月球正面 of Apollo 11", "I wrote it"], "chinese", 50, seed=0)
    for token in ("Apollo", "wrote", "月"):
        assert any(token in text for text in mixed)
    assert all(" " not in text for text in mixed)
    mixed = mixed_texts(["ที่นี่มีม้า", "กี่ครั้งนี้"], "chinese", 50, seed=0)
    assert not any(category(text[0]).startswith("M") for text in mixed)
    assert "ที่" in "".join(mixed)
    assert mixed_texts([" ", ""], "ids", 50, seed=0) == []
