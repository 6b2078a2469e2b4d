"""A task with a head of its own, declared here alone, trains from the command line, predicts, is
served, exported and explained."""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
import typer
from torch import nn
from typer.testing import CliRunner

import ownbert
from ownbert.cli.command import command_function
from ownbert.cli.train_commands import finetuning_command
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HEADS, HeadKind, HeadSpec
from ownbert.objectives.objective import Loss
from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import KINDS, SENTENCE_SETTINGS, TaskKind
from ownbert.tasks.metrics import Scores
from ownbert.tasks.row_objectives import RowObjective, mean_per_row
from ownbert.tasks.rows import PLAIN_OUTPUT, Row
from ownbert.tasks.sentence_task import SentenceTask
from ownbert.tasks.task import DEFAULT
from support.serving import served


class LoudnessHead(nn.Module):
    """The largest value of each dimension among the tokens of a text: (T, D) -> (B, 1)."""

    def __init__(self, config: EncoderConfig, spec: HeadSpec, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, outputs)

    def forward(self, hidden: Any, pooled: Any, batch: Any) -> Any:
        return self.dense(batch.layout.largest(hidden))


@dataclass(frozen=True)
class LoudnessObjective(RowObjective):
    name: str = "loudness"
    head: str = "loudness"

    def __call__(self, logits: Any, batch: Any) -> Loss:
        found = mean_per_row(logits.float(), batch)[:, 0]
        true = batch.labels.float()
        loss = self.weigh(F.binary_cross_entropy_with_logits(found, true, reduction="none"), batch)
        return Loss(loss.sum(), ((found > 0) == (true > 0.5)).sum(), len(true))


class LoudnessTask(SentenceTask):
    """Whether a text is loud: one logit, and the share of loudness as the prediction."""

    name = head = "loudness"
    purpose = "says how loud a text is"
    metrics = ("accuracy",)
    problem_type = None
    gives_probabilities = True

    def read(self, path: Any) -> list[Row]:
        _, table = self.read_table(path)
        return [Row(row.line, row.texts, row.cells[0] == "loud") for row in table]

    def learn(self, rows: Sequence[Row], source: Any) -> None:
        self.labels = ("loud",)

    def target(self, row: Row) -> np.float32:
        return np.float32(row.target)

    def objective(self, model: Any) -> LoudnessObjective:
        return LoudnessObjective()

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-logits))

    def output_row(self, decided: Any, row: Row, options: Any = PLAIN_OUTPUT) -> dict[str, Any]:
        return {"loudness": round(float(decided[0]), 4)}

    def answer(self, decided: Any, row: Row, top_k: int | None = DEFAULT) -> Any:
        return {"label": "loud", "score": float(decided[0])}

    def plain(self, decided: Any, row: Row) -> float:
        return float(decided[0])

    def score(self, rows: Sequence[Row], decided: Sequence[Any]) -> Scores:
        right = [(found[0] > 0.5) == row.target for row, found in zip(rows, decided, strict=True)]
        return Scores(values={"accuracy": float(np.mean(right))})


HEAD = HeadKind(module=f"{__name__}:LoudnessHead", outputs=None, exported=("logits",))
KIND = TaskKind(
    task=f"{__name__}:LoudnessTask",
    help="How loud a text is.",
    settings=SENTENCE_SETTINGS,
    columns=COLUMNS["classify"],
)


@pytest.fixture(scope="module")
def registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "loudness", KIND)
        patch.setitem(HEADS, "loudness", HEAD)
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("loud") / "rows.csv", random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(80):
            loud = rng.random() < 0.5
            words = [f"{'red' if loud else 'w'}{rng.randint(0, 9)}" for _ in range(5)]
            writer.writerow([" ".join(words), "loud" if loud else "quiet"])
    return path


@pytest.fixture(scope="module")
def folder(
    registered: None, rows: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path, app = tmp_path_factory.mktemp("loudness") / "model", typer.Typer()
    app.command("loudness")(command_function(finetuning_command("loudness", KIND)))
    files = ["--model", str(pretrained), "--train", str(rows), "--dev", str(rows), "-o", str(path)]
    done = CliRunner().invoke(app, [*files, "--epochs", "4", "--precision", "float32", "--quiet"])
    assert done.exit_code == 0, done.output
    return path


def test_it_learns_and_predicts(folder: Path, rows: Path, tmp_path: Path):
    assert [*ownbert.load(folder).heads] == ["loudness"]
    assert ownbert.evaluate(folder, rows).values["accuracy"] > 0.9
    loud, quiet = ownbert.Predictor(folder)(["red1 red2 red3", "w1 w2 w3"])
    assert loud["score"] > 0.5 > quiet["score"]
    ownbert.predict(folder, rows, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert len(lines) == 80
    assert '"loudness"' in lines[0]


def test_it_is_explained(folder: Path):
    (explanation,) = ownbert.explain(folder, ["red1 w2 w3"], target="loud")
    assert explanation.target == "loud"
    assert len(explanation.values) == 3


def test_it_is_exported(folder: Path, tmp_path: Path):
    ownbert.export(folder, tmp_path / "out", "onnx")
    folders = (tmp_path / "out", folder)
    exported, model = (ownbert.Predictor(f)(["red1 w2"])[0]["score"] for f in folders)
    assert abs(exported - model) < 1e-4


def test_it_is_served(folder: Path):
    with served(folder) as server:
        status, answer, _ = server.post("/v1/loudness", {"inputs": ["red1 red2"]})
        assert status == 200, answer
        assert answer["answers"][0]["score"] > 0.5
        status, answer, _ = server.post("/", {"inputs": "red1 red2"})
        assert status == 200, answer
