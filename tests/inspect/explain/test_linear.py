"""Folders of ``fit`` that answer with linear models alone are explained, and are no dead end."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert.fitting.linear_candidates import fit_view, view_helps
from ownbert.fitting.rows.labelled_rows import find_task, read_labelled
from ownbert.inference.open_folder import open_folder
from ownbert.inspect.explain.blend_words import LinearShares, contributions
from ownbert.inspect.explain.explain import METHOD
from ownbert.serve.exchange import Refusal
from ownbert.serve.served_model import ServedModel
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.rows import Row
from ownbert.views.linear_models import LinearView
from ownbert.views.tokens import KINDS
from ownbert.views.view_features import VIEWS, Texts
from support.cli import refusal, run_cli

WORDS = ("Red", "green", "blue,", "It's", "日本", "x1", "İn", "ΟΔΟΣ", "a", "n\u0303e\u0303", "दिन")


def texts_of(kind: str, count: int) -> list[str]:
    rng = random.Random(count)
    if kind == "chinese":
        drawn = ("".join(rng.choices("红绿蓝天地人，ab ", k=12)) for _ in range(count))
        return [text.strip() or "红" for text in drawn]
    if kind == "ids":
        return [" ".join(str(rng.randint(1, 30)) for _ in range(9)) for _ in range(count)]
    return ["  ".join(rng.choices(WORDS, k=7)) for _ in range(count)]


@pytest.mark.parametrize("kind", [*KINDS, "pairs"])
@pytest.mark.parametrize("name", VIEWS)
def test_the_parts_of_a_text_add_up_to_the_output(kind: str, name: str):
    rows: list[tuple[str, ...]] = [(text,) for text in texts_of(kind, 40)]
    if kind == "pairs":
        rows = [*zip(texts_of("words", 30), texts_of("words", 31), strict=False)]
        kind = "words"
    view = VIEWS[name].fit(Texts(rows, kind), Texts([], kind))
    rng = np.random.default_rng(0)
    for row in rows[:12]:
        features = view.features(Texts([row], kind))
        weights = rng.standard_normal(features.shape[1])
        parts = contributions(view, row, kind, weights)
        assert [*map(len, parts)] == [*map(len, row)]
        expected = float(np.asarray(features @ weights).ravel()[0])
        np.testing.assert_allclose(sum(own.sum() for own in parts), expected, atol=1e-4)


@pytest.fixture(scope="module")
def linear(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that there was no time to train a network for."""
    out = tmp_path_factory.mktemp("linear") / "best"
    ownbert.fit(topics / "train.csv", minutes=0.1, output=out, quiet=True)
    assert not (out / "config.json").exists()
    return out


def test_shares_follow_from_the_weights_of_all_models(linear: Path):
    found = LinearShares(open_folder(linear))
    row = Row(0, ("red1 w3 blue2 red1 9",))
    words = found.words(row)
    (index, name, probability), *_ = found.targets(row, "red", 1)
    values = found.relevance(row, index, words)
    assert (name, len(words)) == ("red", 5)
    assert values[0] > 0 > values[2]
    (raw,), _ = open_folder(linear).raws([row])
    assert probability == pytest.approx(raw[index])


def test_vowel_signs_are_explained_with_their_letters(
    linear: Path, monkeypatch: pytest.MonkeyPatch
):
    found = LinearShares(open_folder(linear))
    monkeypatch.setattr(LinearShares, "_kind", lambda *_: "chinese")
    words = found.words(Row(0, ("ม้ากิน ab",)))
    assert [(word.start, word.end) for word in words] == [(0, 2), (2, 3), (3, 5), (5, 6), (7, 9)]


def test_commands_use_the_linear_models_or_say_what_is_missing(linear: Path, topics: Path):
    done = run_cli("explain", linear, "red1 red2 blue3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("red ")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["red1", "red2", "blue3"]
    done = run_cli("errors", linear, topics / "test.csv", "--train", topics / "train.csv", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == 45
    for command in (
        ("evaluate", linear, topics / "test.csv"),
        ("predict", linear, "red1"),
        ("explain", linear, topics / "test.csv", "--json"),
    ):
        assert run_cli(*command).returncode == 0, command
    out = linear.parent / "out"
    for command in (
        ("embed", linear, "red1"),
        ("export", linear, "-o", out),
        ("quantize", linear, "-o", out),
        ("predict", linear, "red1", "--network"),
        ("explain", linear, "red1", "--network"),
        ("errors", linear, topics / "test.csv", "--network"),
        ("faithfulness", linear, topics / "test.csv", "--network"),
        ("describe", linear),
        ("heads", linear, topics / "test.csv"),
    ):
        assert "has linear models but no network" in refusal(*command)
    assert "explanations are exact" in refusal("faithfulness", linear, topics / "test.csv")
    assert "library_name: ownbert" in (linear / "README.md").read_text()


def test_the_network_beside_linear_models_is_explained_if_asked_for(
    linear: Path, classifier: Path, topics: Path, tmp_path: Path
):
    both = tmp_path / "both"
    for source in (linear, classifier):
        shutil.copytree(source, both, dirs_exist_ok=True)
    text, about = "red1 red2 blue3", ("--json", "--network")
    found, alone, network = (
        json.loads(run_cli("explain", folder, text, *about[:count]).stdout)
        for folder, count in ((both, 2), (both, 1), (classifier, 1))
    )
    assert found == {**network, "model": "network"}
    assert found["words"] != alone["words"]
    (own,) = ownbert.explain(both, text, network=True)
    assert own.to_dict() == {key: found[key] for key in own.to_dict()}
    rows = topics / "test.csv"
    expected = run_cli("errors", classifier, rows, "--json").stdout
    assert run_cli("errors", both, rows, *about).stdout == expected
    options = ("--methods", "gradient_x_input", "--rows", 4)
    done = run_cli("faithfulness", both, rows, *options, "--network")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_server_explains_as_the_command(linear: Path):
    served = ServedModel("m", linear)
    (given,) = served.explain_items(["red1 blue2"], METHOD).items
    ((own,),) = served.explain([given], METHOD)
    (expected,) = ownbert.explain(linear, ["red1 blue2"])
    assert own == expected.to_dict()
    with pytest.raises(Refusal, match="share of each word is exact"):
        served.explain([given], "leave_one_out")


def test_a_page_shows_the_shares(linear: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = run_cli("explain", linear, "red1 blue2", "--html", page)
    assert (done.returncode, done.stderr) == (0, "")
    assert "red1" in page.read_text()


def test_fit_view_gives_a_model_of_the_first_fold(topics: Path, tmp_path: Path):
    train = topics / "train.csv"
    rows = read_labelled(find_task(train, ColumnNames()), train, None, seed=0)
    labelled = Texts(rows.texts(), "ids")
    assert view_helps("tfidf", rows, "ids")
    first = tmp_path / "members" / "first-fold" / "tfidf"
    unlabelled = Texts(rows.texts() * 2, "ids")  # no words are rare
    given = (labelled, labelled, unlabelled, tmp_path / "members" / "tfidf")
    scores, _ = fit_view("tfidf", rows, *given, first=first)
    held = rows.folds[0][1]
    own = LinearView.load(first).scores([rows.rows[i].texts for i in held])
    np.testing.assert_allclose(own, scores[: len(held)], atol=1e-5)
