"""Ordinary situations of ``fit``, each in a small size to its last step: a taught network.

Sources, tasks, options and lengths of texts that are fine one by one have failed together.
"""

import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ownbert
from ownbert.finetuning import default_settings
from ownbert.fitting import candidates, findings, finished_folder, fit, networks
from ownbert.fitting.report import report as written_report
from support.cli import run_cli
from support.fit_files import json_of, write_table

TOPICS = ("red", "green", "blue")
# Enough on any machine: all that there is to do ends earlier.
MINUTES = "10"
Table = Mapping[str, Sequence[Any]]


def text_of(topic: str, rng: random.Random, words: int) -> str:
    own = [f"{topic}{rng.randint(0, 11)}" for _ in range(words // 2)]
    both = [*own, *(f"w{rng.randint(0, 30)}" for _ in range(words - len(own)))]
    rng.shuffle(both)
    return " ".join(both)


def table(
    task: str, rows: int, *, words: int = 8, text: str = "text", label: str = "label"
) -> Table:
    rng = random.Random(rows)
    topics = [TOPICS[i % 3] for i in range(rows)]
    texts = [text_of(topic, rng, words) for topic in topics]
    labels: list[Any] = topics
    if task == "multilabel":
        labels = [
            ";".join(sorted({t, *rng.sample(TOPICS, 1)})) if i % 4 else ""
            for i, t in enumerate(topics)
        ]
    if task == "regress":
        labels = [TOPICS.index(t) + rng.random() / 10 for t in topics]
    return {text: texts, label: labels}


# Name: task, ending of the files, names of the columns, words of a text, further options; {dev}
# and so on are files that are made for them. Those that are not slow are quick to be sure of.
QUICK: Sequence[tuple[str, str, str, tuple[str, str], int, Sequence[str]]] = (
    ("named columns", "classify", ".csv", ("Verlauf", "Sparte"), 8, ()),
    ("labels, named", "multilabel", ".tsv", ("report", "codes"), 8, ("--test", "{dev}")),
)
SITUATIONS = (
    ("numbers, named columns", "regress", ".jsonl", ("befund", "dosis"), 8, ()),
    ("parquet", "classify", ".parquet", ("text", "label"), 8, ()),
    ("long texts", "classify", ".csv", ("text", "label"), 300, ()),
    ("long texts, several labels", "multilabel", ".jsonl", ("text", "label"), 300, ()),
    ("dev", "classify", ".csv", ("text", "label"), 8, ("--dev", "{dev}")),
    ("dev, named columns", "classify", ".csv", ("a text", "a label"), 8, ("--dev", "{dev}")),
    ("test", "classify", ".csv", ("text", "label"), 8, ("--test", "{dev}")),
    ("labels per class", "classify", ".csv", ("text", "label"), 8, ("--labels-per-class", "9")),
    ("task", "classify", ".csv", ("text", "label"), 8, ("--task", "classify")),
    ("metric accuracy", "classify", ".csv", ("text", "label"), 8, ("--metric", "accuracy")),
    ("metric log loss", "classify", ".csv", ("text", "label"), 8, ("--metric", "log_loss")),
    ("metric of labels", "multilabel", ".csv", ("text", "label"), 8, ("--metric", "log_loss")),
    ("metric of numbers", "regress", ".csv", ("text", "label"), 8, ("--metric", "mae")),
    ("seed", "classify", ".csv", ("text", "label"), 8, ("--seed", "3")),
    ("device", "classify", ".csv", ("text", "label"), 8, ("--device", "cpu")),
    ("seeds", "classify", ".csv", ("text", "label"), 8, ("--seeds", "2")),
)


@pytest.mark.parametrize(
    "situation",
    [
        *(pytest.param(each, id=each[0]) for each in QUICK),
        *(pytest.param(each, id=each[0], marks=pytest.mark.slow) for each in SITUATIONS),
    ],
)
def test_a_run_goes_to_its_last_step(
    situation: Any,
    topics: Path,
    pretrained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    if situation in QUICK:
        monkeypatch.setattr(default_settings, "_FEWEST_STEPS", 16)
    _, task, ending, (text, label), words, options = situation
    made = {"words": words, "text": text, "label": label}
    train = write_table(table(task, 36, **made), tmp_path / f"train{ending}")
    dev = write_table(table(task, 24, **made), tmp_path / f"dev{ending}")
    others = tmp_path / "others.txt"
    others.write_text("\n".join((topics / "corpus.txt").read_text().splitlines()[:12]))
    named = ["--text-column", text, "--label-column", label]
    usual = ["--seeds", "1"] if "--seeds" not in options else []
    out = tmp_path / "best"
    done = run_cli(
        *("fit", train, "--unlabelled", others, "--model", pretrained, "--minutes", MINUTES),
        *(named if (text, label) != ("text", "label") else []),
        *usual,
        *(option.format(dev=dev) for option in options),
        *("-o", out),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "left out" not in done.stdout
    candidates = json_of(out, "fit.json")["candidates"]
    assert candidates[-1]["name"] in ("student", "joined-student")
    # Without dev rows, what is measured has learnt from the first fold alone.
    (joined,) = (c for c in candidates if c["name"] == "joined")
    assert (joined["first"] == joined["folders"]) == ("--dev" in options)
    assert not [*out.rglob("first-fold*")]  # removed once a network has been taught
    report = json_of(out)
    linear = [c["title"] for c in candidates if c["kind"] == "linear"]
    scores = {row["name"]: row["score"] for row in report["leaderboard"]}
    if "log_loss" not in options and "mae" not in options:
        best = max(scores[title] for title in linear)
        # Theirs is the score on the first fold's held-out rows, which are seven.
        assert scores["network, linear models built in"] > best - 0.25
        assert scores[report["network"]] > best - 0.25
    assert all(row["score"] is not None for row in report["leaderboard"])
    assert all(row["texts_per_second"] for row in report["leaderboard"])
    asked = run_cli("predict", out, dev)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert len(asked.stdout.splitlines()) == 24
    asked = run_cli("evaluate", out, dev, "--network", "-q", "-o", tmp_path / "network.json")
    assert (asked.returncode, asked.stderr) == (0, "")
    if "--test" in options:  # of the network in the folder, as of the blend
        values = json.loads((tmp_path / "network.json").read_text())
        own = next(row for row in report["leaderboard"] if row["name"] == report["network"])
        # A probability at the threshold may be rounded to either side.
        assert values[report["metric"]] == pytest.approx(own["test_score"], abs=0.03)
        card = (out / "README.md").read_text()
        assert ("assigns a label if its probability is at least" in card) == (task == "multilabel")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frame", "mapping", "pairs", "arrow"])
def test_rows_in_memory_go_to_the_last_step(kind: str, pretrained: Path, tmp_path: Path):
    rows = dict(table("classify", 36, text="Verlauf", label="Sparte"))
    data: Any = {
        "frame": lambda: pytest.importorskip("pandas").DataFrame(rows),
        "mapping": lambda: rows,
        "pairs": lambda: list(zip(*rows.values(), strict=True)),
        "arrow": lambda: pa.table(rows),
    }[kind]()
    named = {} if kind == "pairs" else {"text_column": "Verlauf", "label_column": "Sparte"}
    predictor = ownbert.fit(
        data,
        unlabelled=[text_of("red", random.Random(1), 8)] * 3,
        model=pretrained,
        seeds=1,
        minutes=float(MINUTES),
        output=tmp_path / "best",
        quiet=True,
        **named,
    )
    assert predictor.predict("red1 red2 red3") == "red"
    written = (tmp_path / "best" / "recipe.yaml").read_text()
    assert "tmp" not in re.sub(r"folder: .*|model: .*", "", written)


# What is raised in one of these is named in a line, and the run goes on.
PARTS: Sequence[tuple[Any, str]] = (
    (findings, "_curve"),
    (findings, "_margin"),
    (findings, "_spread"),
    (findings, "_speed"),
    (findings, "score_all"),
    (findings, "Members"),
    (findings, "find_label_errors"),
    (findings, "calibrate"),
    (findings, "hardest_rows"),
    (findings, "typical_rows"),
    (findings, "compare_texts"),
    (findings, "give_advice"),
    (findings, "best_network"),
    (written_report, "as_page"),
    (fit, "write_fit_card"),
    (candidates, "self_train"),
)
NETWORKS: Sequence[tuple[Any, str]] = (
    (candidates, "fit_probe"),
    (finished_folder, "copy_network"),
    (candidates, "copy_network"),
    (networks, "finetune_on"),
    (networks, "taught_texts"),
    (candidates, "finetune_on"),
)


class Broken(Exception):
    pass


def broken(*_: Any, **__: Any) -> Any:
    raise Broken("this part is broken")


def fit_linear(files: Path, out: Path, *options: str) -> CompletedProcess[str]:
    return run_cli(
        *("fit", files / "train.csv", "--unlabelled", files / "corpus.txt"),
        *("--test", files / "test.csv", "--minutes", "0.3", "-o", out, *options),
    )


@pytest.fixture(scope="module")
def linear(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, and ``best``, what fit makes of them without a network; do not write into it."""
    folder = tmp_path_factory.mktemp("linear")
    for file, lines in (("train.csv", 31), ("corpus.txt", 120), ("test.csv", 19)):
        first = (topics / file).read_text().splitlines(keepends=True)[:lines]
        (folder / file).write_text("".join(first))
    assert fit_linear(folder, folder / "best").returncode == 0
    return folder


@pytest.mark.parametrize(("module", "name"), PARTS)
def test_a_part_that_fails_ends_no_run(
    module: Any, name: str, linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, name, broken)
    out, options = tmp_path / "best", ()
    if module is not candidates:  # what follows the models is done again
        shutil.copytree(linear / "best", out)
        options = ("--resume",)
    done = fit_linear(linear, out, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "skipped, this part is broken" in done.stdout
    assert run_cli("predict", out, "red1 red2").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), NETWORKS)
def test_a_network_that_fails_ends_no_run(
    module: Any,
    name: str,
    topics: Path,
    pretrained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, name, broken)
    out = tmp_path / "best"
    done = run_cli(
        *("fit", topics / "train.csv", "--unlabelled", topics / "corpus.txt", "--seeds", "1"),
        *("--model", pretrained, "--minutes", MINUTES, "-o", out),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "skipped, this part is broken" in done.stdout
    assert run_cli("evaluate", out, topics / "test.csv").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(fit, "pretrain_on"), (findings, "probe_scores")])
def test_a_pretraining_that_fails_ends_no_run(
    module: Any, name: str, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(findings, "_FEWEST_MINUTES", 0.01)
    monkeypatch.setattr(module, name, broken)
    out = tmp_path / "best"
    done = run_cli(
        "fit", topics / "train.csv", "--minutes", "0.8", "--seeds", "1", "--debug", "-o", out
    )
    assert done.returncode == 0
    assert "skipped, this part is broken" in done.stdout
    assert "Broken: this part is broken" in done.stderr  # the traceback of --debug
    assert run_cli("evaluate", out, topics / "test.csv").returncode == 0


def test_without_any_model_the_reasons_are_said(
    topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(candidates, "fit_view", broken)
    done = run_cli("fit", topics / "train.csv", "--minutes", "0.1", "-o", tmp_path / "best")
    assert done.returncode == 2
    assert "no model could be fitted (TF-IDF of 1 to 2 words: this part is broken" in done.stderr


@pytest.mark.slow
def test_many_rows_with_many_labels_are_fitted(tmp_path: Path):
    """8,000 rows of ids with 17 labels, several per row, a quarter without any."""
    rng = random.Random(0)
    names = [f"L{i:02d}" for i in range(17)]
    own = {name: [str(rng.randint(1, 858)) for _ in range(14)] for name in names}

    def row() -> tuple[str, str]:
        labels = sorted(rng.sample(names, rng.choice((0, 1, 2, 3))))
        words = [str(min(858, int(rng.expovariate(1 / 150)) + 1)) for _ in range(28)]
        words += [rng.choice(own[rng.choice(labels)]) for _ in range(14) if labels]
        return " ".join(words), "|".join(labels)

    path = tmp_path / "train.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("report", "codes"), *(row() for _ in range(8000))])
    out = tmp_path / "best"
    done = run_cli(
        *("fit", path, "--text-column", "report", "--label-column", "codes"),
        *("--minutes", "2", "-o", out),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (out / "model.safetensors").exists()
    report = json_of(out)
    assert max(row["score"] for row in report["leaderboard"]) > 0.85


def metric_of(folder: Path) -> Callable[[str], float]:
    report = json_of(folder)
    return lambda name: next(r["score"] for r in report["leaderboard"] if r["name"] == name)


def test_the_best_member_answers_where_the_blend_is_no_better(topics: Path, tmp_path: Path):
    out = tmp_path / "best"
    done = run_cli("fit", topics / "train.csv", "--minutes", "0.3", "-o", out)
    assert done.returncode == 0
    score, blend = metric_of(out), json_of(out, "blend.json")
    report = json_of(out)
    lines = (topics / "train.csv").read_text().splitlines()
    for row in report["hardest"]:
        assert row["text"] in lines[int(row["place"].removeprefix("line ")) - 1]
    best = max(row["score"] for row in report["leaderboard"])
    if len(blend["members"]) == 1:
        assert report["best"] != "blend of all"
        assert score(report["best"]) == best
    else:  # a member may be better by chance
        assert score("blend of all") > best - 0.5 / report["held_out"] ** 0.5
    predicted = np.asarray(ownbert.Predictor(out).predict(["red1 red2", "blue1 blue2"]))
    assert predicted.tolist() == ["red", "blue"]


@pytest.mark.parametrize(
    ("task", "metric"),
    [("classify", "macro_f1"), ("classify", "accuracy"), ("multilabel", "micro_f1")]
    + [("regress", name) for name in ("mae", "r2", "pearson")],
)
def test_the_score_on_test_rows_is_that_of_evaluate(task: str, metric: str, tmp_path: Path):
    train, test = table(task, 60), table(task, 30)
    out = tmp_path / "best"
    predictor = ownbert.fit(train, test=test, metric=metric, minutes=0.1, output=out, quiet=True)
    report = json_of(out)
    said = next(r["test_score"] for r in report["leaderboard"] if r["name"] == report["best"])
    assert predictor.evaluate(test).values[metric] == pytest.approx(said, abs=1e-5)


@pytest.mark.slow
def test_a_busy_machine_gets_a_network_in_time(tmp_path: Path):
    """Two minutes on examples/anonymised beside four busy processes, in a process of its own."""
    sample = Path(__file__).parents[2] / "examples" / "anonymised"
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "ownbert", "fit", str(sample / "train.csv.gz")]
    command += ["--unlabelled", str(sample / "unlabelled.txt.gz"), "--minutes", "2"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "-o", str(tmp_path / "best")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        taken = time.monotonic() - began
        for other in others:
            other.kill()
            other.wait()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "best" / "model.safetensors").exists(), done.stdout
    assert taken < 1.1 * 120, done.stdout
