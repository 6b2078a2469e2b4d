"""The command line as a user meets it: help, the whole way, and one clear line for a mistake."""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cli import run_cli
from support.limits import files_of_at_most


def refused(*arguments: object) -> str:
    """The single line that a mistake gets."""
    done = run_cli(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def time_of_an_empty_program(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds in which a program of two empty commands shows its help on this machine."""
    program = tmp_path_factory.mktemp("empty") / "empty.py"
    program.write_text(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef a(): ...\n@app.command()\ndef b(): ...\napp()\n"
    )
    return min(_help_time([sys.executable, str(program), "a"]) for _ in range(3))


@pytest.mark.parametrize("command", ["", "pretrain", "finetune classify", "predict"])
def test_help_takes_little_longer_than_that_of_an_empty_program(
    command: str, time_of_an_empty_program: float
):
    line = [sys.executable, "-m", "ownbert", *command.split()]
    limit = 2.5 * time_of_an_empty_program  # importing torch alone takes more than this
    assert any(_help_time(line) < limit for _ in range(3))  # the machine may be busy


def _help_time(command: list[str]) -> float:
    """Seconds of the processor's time."""
    start = _processor_time()
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    taken = _processor_time() - start
    assert done.returncode == 0
    assert "Usage" in done.stdout
    return taken


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_the_whole_way(topics: Path, tmp_path: Path):
    bert, tokens, classifier = tmp_path / "bert", tmp_path / "tokens", tmp_path / "classifier"
    corpus = topics / "corpus.txt"
    steps = [
        ("vocab", corpus, "--kind", "blank", "-o", bert),
        ("prepare", corpus, "--tokenizer", bert, "-o", tokens),
        ("prepare", corpus, "--tokenizer", bert, "-o", tokens),
        ("pretrain", tokens, "-o", bert, "--max-steps", 20, "--max-length", 48),
        (
            *("finetune", "classify", "--model", bert, "--train", topics / "train.csv"),
            *("--dev", topics / "dev.csv", "--epochs", 2, "-o", classifier),
        ),
        ("evaluate", classifier, "--data", topics / "test.csv", "-o", tmp_path / "test.json"),
        ("predict", classifier, "--input", topics / "test.csv", "-o", tmp_path / "p.jsonl"),
    ]
    outputs = []
    for step in steps:
        done = run_cli(*step)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "sentences end at: 9" in outputs[1]
    assert "unchanged, kept" in outputs[2]
    assert "unigram baseline" in outputs[3]
    assert "macro-F1" in outputs[5]
    assert json.loads((tmp_path / "test.json").read_text())["macro_f1"] > 0.3
    row = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])
    assert list(row) == ["text", "label", "score"]


def test_quiet_prints_nothing(topics: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    options = ("-o", str(tmp_path / "m"), "--max-steps", "1", "--quiet")
    done = run_cli("pretrain", topics / "tokens", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert capfd.readouterr() == ("", "")  # libraries may print by other ways than sys.stdout


@pytest.mark.slow
def test_quiet_prints_nothing_in_a_process_of_its_own(topics: Path, tmp_path: Path):
    options = ("-o", str(tmp_path / "m"), "--max-steps", "1", "--quiet")
    command = [sys.executable, "-m", "ownbert", "pretrain", str(topics / "tokens"), *options]
    # Libraries may print when they are imported.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dry_runs_show_recipe_counts_and_examples_and_write_nothing(topics: Path, tmp_path: Path):
    output, changed = tmp_path / "out", ("optim.clip=0.5", "--objectives", "mlm,nsp")
    done = run_cli("pretrain", topics / "tokens", "-o", output, "--dry-run", *changed)
    assert done.returncode == 0, done.stderr
    for part in ("clip: 0.5", "size: tiny", "240 documents", "[MASK]->", "[CLS]", "(next)"):
        assert part in done.stdout
    run_cli("pretrain", topics / "tokens", "-o", tmp_path / "bert", "--max-steps", 1, "-q")
    done = run_cli(
        *("finetune", "classify", "--model", tmp_path / "bert", "--train", topics / "train.csv"),
        *("--dev", topics / "dev.csv", "-o", output, "--dry-run"),
    )
    assert done.returncode == 0, done.stderr
    for part in ("epochs: 50", "red 33.3%", "60 training and 30 dev", "[CLS]"):
        assert part in done.stdout
    assert not output.exists()


def test_a_recipe_file_and_options_on_top(pretrained: Path, topics: Path, tmp_path: Path):
    recipe = pretrained / "recipe.yaml"
    done = run_cli(
        *("pretrain", "-o", tmp_path / "m", "--config", recipe, "--dry-run", "seed=9"),
        *("--mask-rate", "0.2"),
    )
    assert done.returncode == 0, done.stderr
    assert "max_steps: 60" in done.stdout
    assert "mask_rate: 0.2" in done.stdout
    assert "seed: 9" in done.stdout


def test_files_that_cannot_be_read(tmp_path: Path):
    output = tmp_path / "out"
    assert "no such file: nowhere.txt" in refused("vocab", "nowhere.txt", "-o", output)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    assert "corpus is empty" in refused("vocab", empty, "--kind", "blank", "-o", output)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"1 2 3\n4 \xff 6\n")
    line = refused("vocab", bad, "--kind", "blank", "-o", output)
    assert "bad.txt, line 2: not UTF-8" in line
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    line = refused("vocab", table, "--text-column", "words", "-o", output)
    assert "words" in line
    assert "a, b" in line
    assert not output.exists()


def test_settings_and_labels_that_cannot_be(topics: Path, pretrained: Path, tmp_path: Path):
    output = tmp_path / "out"
    line = refused("pretrain", topics / "tokens", "-o", output, "optim.learning_rat=1")
    assert "did you mean optim.learning_rate" in line
    assert "'huge'" in refused("pretrain", topics / "tokens", "-o", output, "--size", "huge")
    assert "no token store" in refused("pretrain", tmp_path, "-o", output)
    odd = tmp_path / "odd.csv"
    odd.write_text("label,text\nmauve,red1\n")
    line = refused(
        *("finetune", "classify", "--model", pretrained, "--train", topics / "train.csv"),
        *("--dev", odd, "-o", output),
    )
    assert "odd.csv, line 2: label 'mauve'" in line
    assert not output.exists()


def test_a_folder_with_another_vocabulary(classifier: Path, topics: Path, tmp_path: Path):
    folder = tmp_path / "classifier"
    shutil.copytree(classifier, folder)
    (folder / "tokenizer.json").unlink()
    lines = (folder / "vocab.txt").read_text().splitlines()
    lines[-1], lines[-2] = lines[-2], lines[-1]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    line = refused("predict", folder, "--input", topics / "test.csv", "-o", tmp_path / "p.jsonl")
    assert "vocabulary is not the one that the model was trained with" in line


def test_a_store_that_was_cut_off(topics: Path, tmp_path: Path):
    folder = tmp_path / "tokens"
    shutil.copytree(topics / "tokens", folder)
    tokens = folder / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    assert "tokens.bin" in refused("pretrain", folder, "-o", tmp_path / "m")


def test_a_full_disk_leaves_what_was_there(classifier: Path, topics: Path, tmp_path: Path):
    output = tmp_path / "p.jsonl"
    output.write_text("before\n")
    with files_of_at_most(2000):
        line = refused("predict", classifier, "--input", topics / "test.csv", "-o", output)
    assert "cannot write" in line
    assert output.read_text() == "before\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.jsonl"]
    with files_of_at_most(2000):
        refused("prepare", topics / "corpus.txt", "-t", topics / "vocab", "-o", tmp_path / "tokens")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.jsonl"]


@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_write(topics: Path, tmp_path: Path):
    big = tmp_path / "big.txt"
    big.write_text(topics.joinpath("corpus.txt").read_text() * 2000)
    command = [sys.executable, "-m", "ownbert", "prepare", big, "-t", topics / "vocab"]
    run = subprocess.Popen(
        [*map(str, command), "-o", str(tmp_path / "tokens")], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _begun(tmp_path):
        time.sleep(0.01)
    assert _begun(tmp_path)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert len(err.splitlines()) == 1
    # What was finished is kept for the next time, if there was anything.
    kept = (tmp_path / ".tokens.part").exists()
    assert ("the same command again" if kept else "no incomplete output") in err
    assert not (tmp_path / "tokens").exists()


def _begun(folder: Path) -> bool:
    return any(p.stat().st_size for p in folder.glob(".tokens.part/store/tokens.bin"))
