"""Every command uses the model that predicts, or says that it uses another one."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import ownbert
from ownbert.files.json_files import read_json
from ownbert.fitting.comparison import ComparedModel, Comparison
from ownbert.fitting.networks import calibrate_network, copy_network
from ownbert.inference.blend import Blend, BlendMember
from ownbert.views.blending import FittedBlend
from support.cli import run_cli
from support.fit_files import fit_files
from support.serving import served
from support.shared import made_once
from support.tiny import change_config, made

TEXTS = ["red1 green2 9", "blue3 blue1 red2 4", "green1 w3", "red2 blue1", "9 4 unknown-word"]
OTHERS = "predicts with other models than the network in its folder"
# A distilled network, a fine-tuned one, a linear model, and the blend.
DECISION = np.array([1.5, -1.0, 0.3])
NETWORKS, BLENDS = ("student", "network"), ("tfidf", "blend")


@pytest.fixture(scope="module")
def won(
    fitted: Path, topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A function that returns the folder of a run in which a candidate predicts alone, or the
    blend; do not write into it."""

    def resumed(name: str) -> Path:
        def make(folder: Path) -> None:
            shutil.copytree(fitted, folder / "best")
            resume(folder / "best", name, topics, pretrained, fitted.parent / "unlabelled.txt")

        return made_once(tmp_path_factory, f"won-by-{name}", make) / "best"

    return resumed


def resume(folder: Path, winner: str, topics: Path, pretrained: Path, unlabelled: Path) -> None:
    """Resume a finished run of ``fitted`` in which another candidate wins.

    Its weights are far from 1, it has offsets, and it does not choose the most probable label, as
    with rare labels.
    """

    def alone(compared: Comparison) -> ComparedModel | None:
        return next((c for c in compared.measured if c.name == winner), None)

    calibrated = Comparison.by_itself

    def by_itself(compared: Comparison, model: ComparedModel) -> FittedBlend:
        weights, offsets, _ = calibrated(compared, model)
        return FittedBlend(0.4 * weights, np.add(offsets, [0.3, -0.2, 0.1]), DECISION)

    with pytest.MonkeyPatch.context() as patch:
        found = cached_property(alone)
        found.__set_name__(Comparison, "alone")
        patch.setattr(Comparison, "alone", found)
        patch.setattr(Comparison, "by_itself", by_itself)
        fit_files(topics, pretrained, folder, unlabelled=unlabelled, resume=True)


def probabilities(answers: list[list[dict[str, Any]]], labels: list[str]) -> np.ndarray:
    """(N, C) of answers with the scores of all labels."""
    rows = [{each["label"]: each["score"] for each in answer} for answer in answers]
    return np.asarray([[row[label] for label in labels] for row in rows])


def in_transformers(folder: Path) -> np.ndarray:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    return logits.softmax(-1).numpy()


@pytest.mark.parametrize("winner", NETWORKS)
def test_a_network_that_predicts_alone_is_the_one_of_the_folder(
    winner: str, won: Callable[[str], Path], topics: Path, tmp_path: Path
):
    folder = won(winner)
    predictor = ownbert.Predictor(folder)
    expected = predictor.predict_proba(TEXTS)
    labels = predictor.predict(TEXTS).tolist()
    chosen = (np.log(expected) + DECISION).argmax(1)
    assert labels == [predictor.labels[i] for i in chosen]
    assert (chosen != expected.argmax(1)).any()

    alone = ownbert.Predictor(folder, network=True).predict_proba(TEXTS)
    np.testing.assert_allclose(alone, expected, atol=1e-6)
    np.testing.assert_allclose(in_transformers(folder), expected, atol=1e-5)
    for each, label, row in zip(ownbert.explain(folder, TEXTS), labels, expected, strict=True):
        assert (each.target, each.of_network) == (label, False)
        assert each.probability == pytest.approx(row[predictor.labels.index(label)], abs=1e-6)

    notes: list[str] = []
    ownbert.quantize(folder, tmp_path / "int8", say=notes.append)
    int8 = ownbert.Predictor(tmp_path / "int8").predict_proba(TEXTS)
    np.testing.assert_allclose(int8, expected, atol=0.05)
    if pytest.importorskip("onnxruntime"):
        ownbert.export(folder, tmp_path / "onnx", say=notes.append)
        exported = ownbert.Predictor(tmp_path / "onnx").predict_proba(TEXTS)
        np.testing.assert_allclose(exported, expected, atol=1e-5)
    assert not any(OTHERS in note for note in notes)
    card = (folder / "README.md").read_text()
    assert "predicts instead of the blend" in card
    assert "--network" not in card
    test = read_json(folder / "report.json")
    (row,) = (one for one in test["leaderboard"] if one["name"] == test["best"])
    predictor.save(tmp_path / "saved")
    saved = ownbert.Predictor(tmp_path / "saved").predict_proba(TEXTS)
    np.testing.assert_allclose(saved, expected, atol=1e-6)
    for network in (False, True):
        found = ownbert.evaluate(folder, topics / "test.csv", network=network)
        assert found.macro_f1 == pytest.approx(row["test_score"])


@pytest.mark.parametrize("winner", NETWORKS)
def test_its_weights_are_stored_once(winner: str, won: Callable[[str], Path]):
    folder = won(winner)
    blend = Blend.read(folder)
    assert blend.is_root
    assert not (folder / "members" / winner).exists()
    digests = [hashlib.sha256(p.read_bytes()).digest() for p in folder.rglob("model.safetensors")]
    assert len({*digests}) == len(digests)


@pytest.mark.parametrize("problem", ["single_label", "multi_label", "regression"])
def test_a_calibrated_network_predicts_like_a_blend_of_it(problem: str, tmp_path: Path):
    """For each task: probabilities or values, and the threshold."""
    folder, member = tmp_path / "best", tmp_path / "best" / "members" / "network"
    made(member, "classification")
    kind = problem if problem == "regression" else f"{problem}_classification"
    change_config(member, problem_type=kind)
    copy_network(member, folder)
    task: Any = ownbert.Predictor(member).task
    task.pair, offsets = False, (0.5, -0.25, 1.0)
    if problem == "multi_label":
        task.threshold = 0.2
    one = BlendMember("network", "network", ("members/network",), 0.5)
    Blend((one,), task, offsets).write(folder)
    calibrate_network(folder, task, 0.5, np.asarray(offsets))
    texts = ["a b", "b a c", "c"]
    blend, network = (ownbert.Predictor(folder, network=each) for each in (False, True))
    assert network.predict(texts) == blend.predict(texts) if problem == "multi_label" else True
    assert getattr(network.task, "threshold", None) == getattr(blend.task, "threshold", None)
    for one, other in zip(blend(texts, top_k=None), network(texts, top_k=None), strict=True):
        assert [each.get("label") for each in one] == [each.get("label") for each in other]
        for each, same in zip(one, other, strict=True):
            assert same["score"] == pytest.approx(each["score"], abs=1e-5)


@pytest.mark.parametrize("winner", BLENDS)
def test_uses_of_another_network_are_reported(
    winner: str, won: Callable[[str], Path], topics: Path, tmp_path: Path
):
    folder = won(winner)
    predictor = ownbert.Predictor(folder)
    place = predictor.labels.index
    expected, labels = predictor.predict_proba(TEXTS), predictor.predict(TEXTS).tolist()
    network = Blend.read(folder).network
    assert network is not None
    assert 0 < network.same <= network.rows == 30  # pyright: ignore
    known = f"{OTHERS}, and only this network is used here; both gave the same prediction for "
    known += f"{network.same} of 30 held-out rows"

    done = run_cli("explain", folder, *TEXTS, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    for line, label, row in zip(done.stdout.splitlines(), labels, expected, strict=True):
        explained = json.loads(line)
        assert explained["target"] == label
        assert explained["score"] == pytest.approx(row[place(explained["target"])], abs=1e-5)
        assert "model" not in explained

    for number, command in enumerate(("export", "quantize")):
        done = run_cli(command, folder, "-o", tmp_path / str(number))
        assert done.returncode == 0, done.stderr
        assert known in done.stdout + done.stderr
    np.testing.assert_allclose(
        ownbert.Predictor(tmp_path / "0").predict_proba(TEXTS), in_transformers(folder), atol=1e-5
    )
    done = run_cli("describe", folder)
    assert (done.returncode, known in done.stderr) == (0, True)
    if winner == "blend":
        page = tmp_path / "page.html"
        done = run_cli("explain", folder, TEXTS[0], "--html", page, "--layers", 0)
        assert (done.returncode, page.exists()) == (2, False)
        assert "add --network" in done.stderr
        for more in (["--layers", 0, "--network"], []):
            assert run_cli("explain", folder, TEXTS[0], "--html", page, *more).returncode == 0
    card = (folder / "README.md").read_text()
    assert f"Both gave the same prediction for {network.same} of 30 held-out rows." in card
    for command in ("heads", "faithfulness") if winner == "blend" else ("heads",):
        done = run_cli(command, folder, topics / "test.csv", "--rows", 3)
        assert done.returncode == 0, done.stderr
        assert known in done.stderr


def test_methods_that_need_a_network_explain_it_and_say_so(won: Callable[[str], Path]):
    folder = won("blend")
    network = ownbert.Predictor(folder, network=True)
    alone, place = network.predict_proba(TEXTS), network.labels.index
    for more in (["--method", "integrated_gradients"], ["--network"]):
        done = run_cli("explain", folder, *TEXTS, "--json", *more)
        assert done.returncode == 0, done.stderr
        assert (OTHERS in done.stderr) == (more[0] == "--method")
        for line, row in zip(done.stdout.splitlines(), alone, strict=True):
            explained = json.loads(line)
            assert explained["model"] == "network"
            assert explained["score"] == pytest.approx(row[place(explained["target"])], abs=1e-5)
    with pytest.warns(UserWarning, match=OTHERS):
        (found,) = ownbert.explain(folder, TEXTS[:1], method="gradient_x_input")
    assert "of the network" in repr(found)
    done = run_cli("explain", folder, TEXTS[0], "--method", "gradient_x_input")
    assert done.stdout.splitlines()[0].endswith("(network)")


@pytest.mark.parametrize("winner", ["student", "blend"])
def test_the_server_predicts_and_explains_with_the_same_model(
    winner: str, won: Callable[[str], Path]
):
    pytest.importorskip("fastapi")
    folder = won(winner)
    predictor = ownbert.Predictor(folder)
    expected, place = predictor.predict_proba(TEXTS), predictor.labels.index
    with served(folder) as server:
        status, found, _ = server.post("/v1/classify", {"inputs": TEXTS})
        assert status == 200
        labels = [each["label"] for each in found["answers"]]
        assert labels == predictor.predict(TEXTS).tolist()
        status, found, _ = server.post("/v1/explain", {"inputs": TEXTS})
        assert status == 200
        for (each,), label, row in zip(found["answers"], labels, expected, strict=True):
            assert each["target"] == label
            assert each["score"] == pytest.approx(row[place(label)], abs=1e-5)


def test_words_of_a_blend_are_removed_from_its_text(won: Callable[[str], Path]):
    """By hand: the difference between the logits with and without a word."""
    folder = won("blend")
    opened = ownbert.Predictor(folder).rows_predictor
    (found,) = ownbert.explain(folder, ["red1  red2 blue3"])
    (shapley,) = ownbert.explain(folder, ["red1  red2 blue3"], method="shapley")
    rows = ownbert.Predictor(folder).rows(
        ["red1  red2 blue3", "  red2 blue3", "red1   blue3", "red1  red2 "]
    )
    logits = opened.scores(rows, np.asarray(opened.blend.offsets))  # type: ignore[attr-defined]
    own = logits[:, opened.task.labels.index(found.target)] - logits.mean(1)
    np.testing.assert_allclose(found.values, own[0] - own[1:], atol=1e-4)
    assert found.method == "leave_one_out"
    assert [found.word(i) for i in range(3)] == ["red1", "red2", "blue3"]
    nothing = opened.scores(ownbert.Predictor(folder).rows([" "]), np.asarray(opened.blend.offsets))  # type: ignore[attr-defined]
    total = own[0] - nothing[0, opened.task.labels.index(found.target)] + nothing.mean()
    assert shapley.values.sum() == pytest.approx(total, abs=1e-4)


def test_the_weights_are_restored_for_another_winner(
    won: Callable[[str], Path], fitted: Path, topics: Path, pretrained: Path, tmp_path: Path
):
    """A resumed run in which the network no longer predicts alone, or again does."""
    folder = shutil.copytree(won("student"), tmp_path / "best")
    given = topics, pretrained, fitted.parent / "unlabelled.txt"
    before = ownbert.Predictor(folder).predict_proba(TEXTS)
    resume(folder, "blend", *given)
    found = ownbert.Predictor(folder).predict_proba(TEXTS)
    expected = ownbert.Predictor(won("blend")).predict_proba(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    resume(folder, "student", *given)
    assert Blend.read(folder).is_root
    np.testing.assert_allclose(ownbert.Predictor(folder).predict_proba(TEXTS), before, atol=1e-5)


def test_folders_of_earlier_versions_are_used_as_before(
    won: Callable[[str], Path], fitted: Path, tmp_path: Path
):
    """Without the record of the network; the network of a member is explained."""
    folder = shutil.copytree(won("blend"), tmp_path / "best")
    values = read_json(folder / "blend.json")
    del values["network"]
    (member,) = (m for m in values["members"] if m["name"] == "student")
    values["members"], values["offsets"] = [{**member, "weight": 2.0}], [0.2, 0.0, -0.3]
    (folder / "blend.json").write_text(json.dumps(values))
    predictor = ownbert.Predictor(folder)
    expected, labels = predictor.predict_proba(TEXTS), predictor.predict(TEXTS).tolist()
    for each, label, row in zip(ownbert.explain(folder, TEXTS), labels, expected, strict=True):
        assert (each.target, each.of_network) == (label, False)
        assert each.probability == pytest.approx(row.max(), abs=1e-6)
    done = run_cli("export", folder, "-o", tmp_path / "onnx")
    assert OTHERS in done.stdout + done.stderr
    assert "held-out" not in done.stdout + done.stderr


def test_networks_of_several_folds_are_explained_together(
    won: Callable[[str], Path], tmp_path: Path
):
    folder = shutil.copytree(won("blend"), tmp_path / "best")
    values = read_json(folder / "blend.json")
    found = {m["name"]: m for m in values["members"]}
    folders = [*found["network"]["folders"], *found["student"]["folders"]]
    values["members"] = [{**found["network"], "folders": folders, "weight": 2.0}]
    values["offsets"] = [0.2, 0.0, -0.3]
    (folder / "blend.json").write_text(json.dumps(values))
    predictor = ownbert.Predictor(folder)
    expected, labels = predictor.predict_proba(TEXTS), predictor.predict(TEXTS).tolist()
    explainer = ownbert.Explainer(folder)
    assert len(explainer.models) == 2
    for each, label, row in zip(explainer(TEXTS), labels, expected, strict=True):
        assert (each.target, each.of_network) == (label, False)
        assert each.probability == pytest.approx(row.max(), abs=1e-6)
    (each,) = explainer(TEXTS[:1], method="leave_one_out")
    (own,) = ownbert.explain(
        folder / folders[0], TEXTS[0], method="leave_one_out", target=each.target
    )
    (other,) = ownbert.explain(
        folder / folders[1], TEXTS[0], method="leave_one_out", target=each.target
    )
    np.testing.assert_allclose(each.values, own.values + other.values, rtol=1e-4)
