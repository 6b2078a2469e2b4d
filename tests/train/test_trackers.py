"""MLflow and Weights & Biases get a run's rows as docs/training.md shows, offline.

Neither is in the extra for tests: each brings dozens of packages (pip install mlflow-skinny wandb).
"""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/training.md"


def run_snippet(package: str, tokens: Path) -> None:
    """The Python of the page that imports the package, with a run of a few steps."""
    found = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = [code for code in found if f"import {package}\n" in code]
    code = code.replace('"runs/my-tokens"', repr(str(tokens)))
    short = "max_steps=6, log_every=2, eval_every=3, save_every=3, quiet=True"
    assert "max_minutes=3" in code
    exec(code.replace("max_minutes=3", short), {})


@pytest.mark.slow
def test_mlflow(topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="needs: pip install mlflow-skinny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    run_snippet("mlflow", topics / "tokens")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    history = {
        name: [metric.step for metric in client.get_metric_history(run.info.run_id, name)]
        for name in ("mlm_loss", "held_out/mlm_loss")
    }
    assert history == {"mlm_loss": [2, 4, 6], "held_out/mlm_loss": [3, 6]}
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["recipe.yaml"]


@pytest.mark.slow
def test_weights_and_biases(topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="needs: pip install wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run_snippet("wandb", topics / "tokens")
    (saved,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = saved.read_bytes()
    assert b"held_out/mlm_loss" in content
    assert b"saved" in content
