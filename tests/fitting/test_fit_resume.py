"""A stopped or finished run of ``fit`` is continued: what is there stays, the rest is fitted."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.files.writing import make_folder
from ownbert.fitting.comparison import (
    JOINED,
    ComparedModel,
)
from ownbert.fitting.fit import Fit
from ownbert.fitting.fit_state import FitState
from ownbert.fitting.networks import pretrain_on
from ownbert.fitting.rows.fit_input import checked_input
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.train.state import newest_state
from support.fit_files import fit_files, json_of, texts_of

# Enough on any machine: all that there is to do ends earlier.
MINUTES = 10


@pytest.mark.slow
def test_resume_goes_on_with_what_there_is(
    fitted: Path, topics: Path, pretrained: Path, tmp_path: Path
):
    folder = tmp_path / "best"
    shutil.copytree(fitted, folder)
    state = json_of(folder, "fit.json")
    removed = state["candidates"].pop()["name"]
    (folder / "fit.json").write_text(json.dumps(state))
    before = (folder / "members" / "lsa" / "linear.safetensors").stat().st_mtime_ns
    given = (topics, pretrained, folder)
    options: Any = {"unlabelled": fitted.parent / "unlabelled.txt", "resume": True}
    fit_files(*given, **options)
    again = json_of(folder, "fit.json")
    assert [c["name"] for c in again["candidates"]][-1] == removed
    assert (folder / "members" / "lsa" / "linear.safetensors").stat().st_mtime_ns == before
    for changed, reason in (
        ({"test": topics / "dev.csv"}, "other files"),
        ({"seeds": 2}, "seeds=1"),
    ):
        with pytest.raises(InputError, match=f"made with {reason}; use the same"):
            fit_files(*given, **{**options, **changed})


@pytest.mark.slow
def test_linear_models_are_self_trained_after_the_networks_too(
    topics: Path, pretrained: Path, tmp_path: Path
):
    given = {"model": pretrained, "dev": topics / "dev.csv", "labels_per_class": 4, "seeds": 1}
    given |= {"unlabelled": topics / "corpus.txt", "output": tmp_path / "best"}
    ownbert.fit(topics / "train.csv", minutes=MINUTES, quiet=True, **given)
    members = tmp_path / "best" / "members"
    made = sorted(path.name for path in (members / "self-trained").iterdir())
    shutil.rmtree(members / "self-trained")
    ownbert.fit(topics / "train.csv", minutes=MINUTES, quiet=True, resume=True, **given)
    assert sorted(path.name for path in (members / "self-trained").iterdir()) == made


def test_rows_in_memory_can_be_resumed(topics: Path, tmp_path: Path):
    texts = texts_of(topics / "train.csv")
    labels = [text.count("red") > 1 for text in texts]
    given = {"minutes": 0.01, "output": tmp_path / "out", "quiet": True}
    ownbert.fit((texts, labels), unlabelled=texts[:5], **given)
    before = (tmp_path / "out" / "members" / "tfidf" / "linear.safetensors").stat().st_mtime_ns
    ownbert.fit((texts, labels), unlabelled=texts[:5], resume=True, **given)
    with pytest.raises(InputError, match="out was made with seed=0; use the same, or start over"):
        ownbert.fit((texts, labels), unlabelled=texts[:5], resume=True, seed=1, **given)
    after = (tmp_path / "out" / "members" / "tfidf" / "linear.safetensors").stat().st_mtime_ns
    assert before == after


def test_what_was_deleted_is_made_again(topics: Path, tmp_path: Path):
    given = {"minutes": 0.01, "output": tmp_path / "out", "quiet": True}
    ownbert.fit(topics / "train.csv", **given)
    shutil.rmtree(tmp_path / "out" / "work")
    ownbert.fit(topics / "train.csv", resume=True, **given)
    shutil.rmtree(tmp_path / "out" / "members")
    predictor = ownbert.fit(topics / "train.csv", resume=True, **given)
    assert predictor("red1")[0]["label"] in predictor.labels


def test_a_damaged_state_is_named_and_damaged_scores_are_made_again(topics: Path, tmp_path: Path):
    out = tmp_path / "out"
    given = {"minutes": 0.01, "output": out, "quiet": True}
    ownbert.fit(topics / "train.csv", **given)
    state = json_of(out, "fit.json")
    first = state["candidates"][0]
    for changes, message in (
        ({"points": [[1, "x"]]}, r"points\[0\]\[1\] is 'x'; it must be a number"),
        ({"points": [[1, 2, 3]]}, r"points\[0\] is \[1, 2, 3\]; it must be a list"),
        ({"seconds": "x"}, "seconds is 'x'; it must be a number"),
        ({"candidates": 3}, "candidates is 3; it must be a list"),
        ({"candidates": [{**first, "name": "../x"}]}, r"name is '../x'; it must be one of"),
        ({"candidates": [{**first, "folders": ["../x"]}]}, "names '../x', which is outside"),
    ):
        (out / "fit.json").write_text(json.dumps({**state, **changes}))
        with pytest.raises(InputError, match=f"fit.json.*{message}"):
            ownbert.fit(topics / "train.csv", resume=True, **given)
    (out / "fit.json").write_text(json.dumps(state))
    scores = out / "work" / f"{first['name']}.npy"
    whole = np.load(scores)
    for damage in (b"", scores.read_bytes()[:90]):
        scores.write_bytes(damage)
        ownbert.fit(topics / "train.csv", resume=True, **given)
        # With another penalty where there was time for several, but of the same rows.
        again = np.load(scores)
        assert again.shape == whole.shape
        assert (again.argmax(1) == whole.argmax(1)).mean() > 0.8


def test_a_network_of_the_first_fold_stays_out_of_the_blend_of_a_resumed_run(
    topics: Path, tmp_path: Path
):
    """With a single fold, its scores have the shape of those of the members."""
    with checked_input(topics / "train.csv", tmp_path, {"dev": topics / "dev.csv"}) as given:
        truth = given.rows.targets.values[given.rows.held_out]
        scores = np.log(np.where(np.arange(3) == truth[:, None], 0.8, 0.1))
        about = ("", "linear", ("members/tfidf",), 1.0)
        models = [ComparedModel("tfidf", *about, scores=scores)]
        models.append(ComparedModel("joined", *about, scores, partial=True, role=JOINED))
        for model in models:
            make_folder(tmp_path / "work")
            np.save(tmp_path / "work" / f"{model.name}.npy", scores)
        make_folder(tmp_path / "members" / "tfidf")
        FitState(given.identity, 0.0, (), [model.about() for model in models]).write(tmp_path)
        run = Fit(given, tmp_path, quiet=True)
        run._resume()
    assert [model.partial for model in run.candidates] == [False, True]
    members = json_of(tmp_path, "blend.json")["members"]
    assert [member["name"] for member in members] == ["tfidf"]


def test_a_resumed_pretraining_keeps_its_texts_on_a_busier_machine(topics: Path, tmp_path: Path):
    """Other texts than those of the stopped run could not be resumed."""
    given = {"unlabelled": topics / "corpus.txt", "device": "cpu"}

    class Stopped(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stopped

    tiny = checked_input(topics / "train.csv", tmp_path, {**given, "size": "tiny"})
    with tiny as inputs, pytest.raises(Stopped):
        pretrain_on(inputs, tmp_path, seconds=0.5, speed=1.0, on_save=stop)
    assert newest_state(tmp_path / "network") is not None
    # The size stays, too, whatever the device on which the run continues would have.
    with checked_input(topics / "train.csv", tmp_path, {**given, "size": "base"}) as inputs:
        network = pretrain_on(inputs, tmp_path, seconds=0.5, speed=1e-4)
    assert resolve(PretrainRecipe, config=network / RECIPE).model.size == "tiny"
