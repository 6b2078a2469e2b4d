"""What is refused changes nothing: no input is overwritten, and nothing half-made is left."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ownbert import InputError
from ownbert.files.input_files import protected
from ownbert.files.writing import atomic_path
from support.cli import run_cli
from support.limits import files_of_at_most


def contents(folder: Path) -> dict[str, str]:
    """Files below a folder with their checksums, and the empty folders."""
    return {
        str(path.relative_to(folder)): _checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()


def refused(folder: Path, *arguments: object) -> str:
    """The line that a command is refused with; the folder is as it was."""
    before = contents(folder)
    done = run_cli(*arguments, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert contents(folder) == before
    return done.stderr


@pytest.fixture(scope="module")
def place(
    topics: Path, pretrained: Path, classifier: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with inputs of every kind; every test leaves it as it was."""
    folder = tmp_path_factory.mktemp("place")
    for name, source in (("bert", pretrained), ("clf", classifier), ("tokens", topics / "tokens")):
        shutil.copytree(source, folder / name)
    for name in ("corpus.txt", "train.csv", "dev.csv"):
        shutil.copy(topics / name, folder / name)
    (folder / "rows.jsonl").write_text('{"text": "w1 w2", "label": "red"}\n')
    os.link(folder / "rows.jsonl", folder / "link.jsonl")
    (folder / "data").mkdir()
    (folder / "data" / "vocab.txt").write_text("red1 red2 red1 red1 red1\n" * 9)
    numbers = {"inputs": [[1.0]], "query": [[1.0]], "key": [[1.0]], "value": [[1.0]]}
    (folder / "numbers.json").write_text(json.dumps(numbers))
    (folder / "empty.csv").write_text("")
    (folder / "wide.csv").write_bytes("text\nw1\n".encode("utf-16"))
    (folder / "twice.csv").write_text("text,text\nw1,w2\n")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "embed bert rows.jsonl -o rows.jsonl",
        "embed bert rows.jsonl -o link.jsonl",
        "embed bert *.jsonl -o rows.jsonl",
        "embed bert rows.jsonl -o ./data/../rows.jsonl",
        "predict clf --input rows.jsonl -o link.jsonl",
        "predict clf --input rows.jsonl -o clf/config.json",
        "evaluate clf --data rows.jsonl -o rows.jsonl",
        "trace --inputs numbers.json --html numbers.json",
        "trace bert w1 --html bert/config.json",
        "vocab data/vocab.txt -o data --kind blank",
        "vocab data -o data --kind blank",
        "prepare corpus.txt -t bert -o bert",
        "pretrain tokens -o tokens --max-steps 1",
        "pretrain tokens --init-from bert -o bert --overwrite",
        "finetune classify --model bert --train train.csv -o bert --overwrite",
        "finetune classify --train train.csv -o bert --overwrite model.folder=bert",
        "probe bert --train train.csv -o bert --overwrite",
        "fit train.csv --model bert -o bert --overwrite",
    ],
)
def test_no_command_writes_to_what_it_reads(place: Path, command: str):
    assert "read by this command" in refused(place, *command.split())


def test_what_overwriting_would_remove_is_not_read(place: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(place / "bert", run / "pretrained" / "model")
    (run / "ensemble.json").write_text("{}")
    said = refused(
        *(tmp_path, "finetune", "classify", "--model", run / "pretrained" / "model", "-o", run),
        *("--train", place / "train.csv", "--overwrite"),
    )
    assert "which would be overwritten" in said


def test_files_that_are_protected_are_not_written_whatever_they_are_called(tmp_path: Path):
    (tmp_path / "model").mkdir()
    for name in ("a.txt", "model/config.json", "model/rows.csv"):
        (tmp_path / name).write_text("old")
    with protected([tmp_path / "a.txt", str(tmp_path / "model"), tmp_path / "none"]):
        for name in ("a.txt", "model/config.json"):
            with (
                pytest.raises(InputError, match="read by this command"),
                atomic_path(tmp_path / name),
            ):
                raise AssertionError
        for name in ("model/rows.csv", "none"):
            with atomic_path(tmp_path / name) as temporary:
                temporary.write_text("new")
    with atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")


@pytest.mark.parametrize(
    "options",
    [
        "--input train.csv --text-column nope",
        "--input empty.csv",
        "--input wide.csv",
        "--input twice.csv",
        "--input bert",
        "--input train.csv --precision foo",
        "--input train.csv --device tpu",
    ],
)
def test_predictions_that_are_refused_leave_nothing(place: Path, options: str):
    refused(place, "predict", "clf", *options.split(), "-o", "new/out.jsonl")


def test_a_stopped_file_survives_a_run_that_is_refused(place: Path, tmp_path: Path):
    shutil.copy(place / "empty.csv", tmp_path / "empty.csv")
    (tmp_path / ".out.jsonl.part").write_text("{}\n")
    (tmp_path / ".out.jsonl.part.json").write_text("{}")
    refused(tmp_path, "predict", place / "clf", "--input", "empty.csv", "-o", "out.jsonl")


def without_weights(place: Path, folder: Path) -> Path:
    shutil.copytree(place / "bert", folder / "bert")
    (folder / "bert" / "model.safetensors").write_bytes(b"damaged")
    return folder / "bert"


@pytest.mark.parametrize(
    "options", [(), ("--seeds", 2), ("--folds", 2), ("--search",), ("--pretrain-steps", 2)], ids=str
)
def test_a_model_that_cannot_be_loaded_leaves_no_folder(
    place: Path, tmp_path: Path, options: tuple[object, ...]
):
    model = without_weights(place, tmp_path)
    data = "--train", place / "train.csv", "--dev", place / "dev.csv"
    command = "finetune", "classify", "--model", model, *data, *options
    assert "model.safetensors" in refused(tmp_path, *command, "-o", tmp_path / "new")


def test_a_pretraining_that_is_refused_leaves_no_folder(place: Path, tmp_path: Path):
    bad = without_weights(place, tmp_path)
    (tmp_path / "counts.txt").write_text("no counts\n")
    common = "pretrain", place / "tokens", "-o", tmp_path / "new", "--max-steps", 1
    for options in (
        ("--init-from", bad),
        ("--init-from", place / "bert", "--init-counts", "counts.txt"),
        ("--resume-step", 7),
    ):
        refused(tmp_path, *common, *options)


def test_a_damaged_state_leaves_the_recipe_as_it_was(place: Path, tmp_path: Path):
    run = tmp_path / "run"
    common = "pretrain", place / "tokens", "-o", run, "--max-length", 48, "--quiet"
    assert run_cli(*common, "--max-steps", 2).returncode == 0
    state = sorted(run.glob("checkpoints/step-*/*.safetensors"))[-1]
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    assert "is damaged" in refused(tmp_path, *common, "--max-steps", 4, "--resume")


def test_another_task_is_not_ignored(place: Path):
    command = "finetune", "classify", "--model", "bert", "--train", "train.csv", "task.name=tag"
    for rest in (("-o", "new"), ("--dry-run",)):
        assert "task.name is 'tag', but the task is classify" in refused(place, *command, *rest)


def test_complex_numbers_do_not_lose_half(tmp_path: Path):
    numbers = {name: np.ones((1, 1), complex) for name in ("inputs", "query", "key", "value")}
    np.savez(tmp_path / "numbers.npz", **numbers)  # pyright: ignore
    said = refused(tmp_path, "trace", "--inputs", "numbers.npz")
    assert "contains complex numbers; real ones are needed" in said


def test_what_the_system_says_comes_with_a_remedy(place: Path, tmp_path: Path):
    (tmp_path / ".out.jsonl.part").mkdir()
    command = "predict", place / "clf", "--input", place / "train.csv", "-o", "out.jsonl"
    assert ".out.jsonl.part: it is a folder, a file is needed" in refused(tmp_path, *command)


def test_a_setting_that_is_unlike_any_other_does_not_list_them_all(place: Path):
    said = refused(place, "pretrain", "tokens", "-o", "new", "qqq=1")
    assert said == "error: there is no setting 'qqq'; --dry-run shows them all\n"


def test_a_full_disk_before_the_first_state_offers_none(place: Path, tmp_path: Path):
    common = "pretrain", place / "tokens", "-o", tmp_path / "new", "--max-steps", 2
    with files_of_at_most(50_000):
        done = run_cli(*common, "--save-every", 1, "--quiet")
    assert done.returncode == 2
    assert "no state is saved yet: make room, and run the same command again" in done.stderr
    assert run_cli(*common, "--quiet").returncode == 0


@pytest.mark.parametrize("command", ["topics", "embed", "score", "explain", "search build -o i"])
def test_a_folder_without_a_model_is_refused_before_standard_input_is_read(
    command: str, tmp_path: Path
):
    done = run_cli(*command.split(), tmp_path / "none", stdin=b"\xff\n", cwd=tmp_path)
    assert done.returncode == 2
    assert f"no such folder: {tmp_path / 'none'}" in done.stderr
