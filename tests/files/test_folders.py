"""Output folders: nothing of others is replaced, and one process at a time writes into one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ownbert.exceptions import InputError
from ownbert.files.folders import is_ours, refuse_foreign, writing
from ownbert.text.tokenizer import Tokenizer
from support.cli import refusal, run_cli
from support.forks import ForkedCommand
from support.tiny import SPECIAL, made

MINE = b"of somebody else"
ROWS = "".join(f"{i % 2},{'ab'[i % 2]} {'cd'[i % 2]} e\n" for i in range(24))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The inputs of all commands."""
    made(tmp_path / "bert", "mlm", max_position_embeddings=32, num_hidden_layers=1)
    (tmp_path / "train.csv").write_text(f"label,text\n{ROWS}")
    (tmp_path / "corpus.txt").write_text("a b c d e f\n" * 60)
    (tmp_path / "source.txt").write_text("a b c\n" * 40)
    Tokenizer.blank([*SPECIAL, *"abcdef"]).save(tmp_path / "vocab")
    return tmp_path


def commands(place: Path) -> dict[str, list[object]]:
    """A short run of each command that writes a folder, without -o."""
    bert, train, corpus, source = (
        place / name for name in ("bert", "train.csv", "corpus.txt", "source.txt")
    )
    short = ["--max-steps", "1", "--max-length", "8", "-q"]
    tune = ["finetune", "classify", "--model", bert, "--train", train, "--dev", train, *short]
    sides = ["--source", source, "--target", source, "--kind", "blank", "--layers", "1"]
    sizes = ["--d-model", "16", "--d-ff", "16", "--heads", "2", "--max-steps", "1", "-q"]
    return {
        "vocab": ["vocab", corpus, "--kind", "blank", "-q"],
        "prepare": ["prepare", corpus, "--tokenizer", place / "vocab", "-q"],
        "pretrain": [
            "pretrain",
            place / "tokens",
            "--size",
            "tiny",
            "--batch-tokens",
            "64",
            *short,
        ],
        "finetune": tune,
        "seeds": [*tune, "--seeds", "2"],
        "search": [*tune, "search.batch_size=[4,8]"],
        "fit": ["fit", train, "--minutes", "0.02", "-q"],
        "probe": ["probe", bert, "--train", train, "-q"],
        "translate": ["translate", "train", *sides, *sizes],
        "export": ["export", bert, "--to", "torch", "-q"],
        "quantize": ["quantize", bert, "-q"],
    }


# A file or folder that each command would replace, and whether a folder.
TARGETS = {
    "vocab": ("vocab.txt", "tokenizer.json", "vocabulary_report.json"),
    "prepare": ("anything.txt", "store.json"),
    "pretrain": ("config.json", "log.jsonl", "curves.png", "recipe.yaml", "checkpoints/a"),
    "finetune": ("log.jsonl", "confusion.png", "vocab.txt", "modules.json", "ensemble.json"),
    "seeds": ("seed-1/log.jsonl", "ensemble.json", "recipe.yaml"),
    "search": ("search/run-1/a", "search.json"),
    "fit": (
        *("report.html", "report.json", "report.txt", "recipe.yaml", "fit.json", "vocab.txt"),
        *("work/rows.txt", "members/a", "config.json"),
    ),
    "probe": ("blend.json", "members/probe/a"),
    "translate": ("log.jsonl", "source/vocab.txt", "tokenizer.json"),
    "export": ("config.json", "model.pt2", "parity.json", "vocab.txt"),
    "quantize": ("config.json", "quantization.json", "ownbert-int8.safetensors"),
}
CASES = [(command, name) for command, names in TARGETS.items() for name in names]


def line_of(place: Path, command: str) -> list[object]:
    if command == "pretrain" and not (place / "tokens").exists():
        given = commands(place)["prepare"]
        assert run_cli(*given, "-o", place / "tokens").returncode == 0
    return commands(place)[command]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_no_file_of_others_is_replaced(command: str, name: str, place: Path):
    out = place / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes(MINE)
    (out / "other.txt").write_bytes(MINE)
    given, line = line_of(place, command), ""
    overwrite = command not in ("vocab", "prepare")
    for options in [[], ["--overwrite"]][: 1 + overwrite]:
        line = refusal(*given, "-o", out, *options)
        files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert files == {name: MINE, "other.txt": MINE}
    assert "choose another folder" in line
    if overwrite:
        assert str(out) in line
        assert " not written" in line


@pytest.mark.usefixtures("plots")
@pytest.mark.parametrize("command", [c for c in TARGETS if c not in ("vocab", "prepare")])
def test_our_own_folders_are_written_again(command: str, place: Path):
    """With pictures and configs of earlier versions, which do not tell who wrote them."""
    out, given = place / "out", line_of(place, command)
    again = 2 if command == "finetune" else 1  # the others are overwritten in the same way
    for options in ([], *again * [["--overwrite"]]):
        done = run_cli(*given, "-o", out, *options)
        assert done.returncode == 0, done.stderr
        (out / "other.txt").write_bytes(MINE)
        for picture in out.glob("*.png"):
            assert is_ours(picture)
            data = picture.read_bytes().replace(b"Software\0ownbert", b"Software\0Matplotlib")
            picture.write_bytes(data)
    assert (out / "other.txt").read_bytes() == MINE


def test_a_vocabulary_and_a_store_are_written_again(place: Path):
    for command in ("vocab", "prepare"):
        for _ in range(2):
            given = commands(place)[command]
            assert run_cli(*given, "-o", place / f"own-{command}").returncode == 0
            (place / "corpus.txt").write_text("a b c d e f f\n" * 60)
    store = place / "own-prepare"
    (store / "mine.txt").write_bytes(MINE)
    (place / "corpus.txt").write_text("a b c d e f\n" * 80)
    line = refusal(*commands(place)["prepare"], "-o", store)
    assert "mine.txt is not a file of a token store" in line
    assert (store / "mine.txt").read_bytes() == MINE


def test_a_vocabulary_of_others_may_stand_where_its_model_is_pretrained(place: Path):
    out, given = place / "out", line_of(place, "pretrain")
    shutil.copytree(place / "vocab", out)
    assert run_cli(*given, "-o", out).returncode == 0
    other = place / "other"
    Tokenizer.blank([*SPECIAL, *"fedcba"]).save(other)
    assert "was not written by ownbert" in refusal(*given, "-o", other)


@pytest.mark.usefixtures("plots")
def test_the_picture_beside_the_metrics(place: Path):
    tuned, out = place / "tuned", place / "x.json"
    given = line_of(place, "finetune")
    assert run_cli(*given, "-o", tuned).returncode == 0
    evaluate = ("evaluate", tuned, place / "train.csv", "-o", out, "-q")
    picture = place / "x.confusion.png"
    picture.write_bytes(MINE)
    assert f"{picture} was not written by ownbert" in refusal(*evaluate)
    assert picture.read_bytes() == MINE
    assert not out.exists()
    picture.unlink()
    for _ in range(2):
        assert run_cli(*evaluate).returncode == 0
        old = picture.read_bytes().replace(b"Software\0ownbert", b"Software\0Matplotlib")
        picture.write_bytes(old)  # the metrics beside it tell that it is ours


def test_the_manifest_of_a_shard(place: Path):
    tuned, out = place / "tuned", place / "x.jsonl"
    assert run_cli(*line_of(place, "finetune"), "-o", tuned).returncode == 0
    embedded = ("embed", place / "bert", place / "train.csv", "-o", place / "x.npy", "-q")
    predicted = ("predict", tuned, place / "train.csv", "-o", out, "-q")
    for given, name in ((predicted, "x.1-of-2.jsonl"), (embedded, "x.1-of-2.npy")):
        manifest = place / f"{name}.manifest.json"
        manifest.write_bytes(b'{"of": "somebody else"}')
        assert f"{manifest} was not" in refusal(*given, "--shard", "1/2")
        manifest.unlink()
        for _ in range(2):
            assert run_cli(*given, "--shard", "1/2").returncode == 0


@pytest.mark.parametrize(
    ("name", "content", "known"),
    [
        ("recipe.yaml", "seed: 0\nminutes: 5\nlabels_per_class: null\n", True),
        ("recipe.yaml", "seed: 0\noptim: {lr: 1}\n", False),
        ("recipe.yaml", "seed: 0\ndata: {}\nmodel: {}\noptim: {}\nrun: {}\n", True),
        ("recipe.yaml", "a: [", None),
        ("fit.json", '{"format": 1, "identity": {}, "candidates": []}', True),
        ("fit.json", '{"format": 1}', False),
        ("fit.json", '{"format": 1', None),
        ("config.json", '{"model_type": "bert"}', None),
        ("config.json", '{"model_type": "bert", "ownbert_vocabulary": {}}', True),
        ("log.jsonl", '{"step": 1, "seconds": 0.5}\n', True),
        ("log.jsonl", '{"step": 1, "loss": 0.5}\n', None),
        ("log.jsonl", '{"message": "started"}\n', False),
        ("log.jsonl", "", None),
        ("report.html", '<p class="kind">OwnBERT report: x</p>', True),
        ("report.html", '<p class="kind">OwnBERT 报告：x</p>', True),
        ("report.html", "<p>a report</p>", False),
        ("README.md", "<!-- Written by ownbert, and", True),
        ("README.md", "# mine", False),
        ("vocab.txt", "a", None),
    ],
)
def test_whose_a_file_is(name: str, content: str, known: bool | None, tmp_path: Path):
    (tmp_path / name).write_text(content)
    assert is_ours(tmp_path / name) is known


def test_what_was_left_unfinished_is_nobodys(tmp_path: Path):
    (tmp_path / "members" / ".probe.part").mkdir(parents=True)
    refuse_foreign(tmp_path, ["members", "nothing"])


# Locks.


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A folder that another process writes into until it is killed."""
    out = tmp_path / "out"
    code = (
        "import sys, time\nfrom ownbert.files.folders import writing\n"
        "with writing(sys.argv[1]):\n    print('locked', flush=True)\n    time.sleep(600)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, out], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"locked\n"
    yield out
    other.kill()
    other.wait()
    other.stdout.close()


@pytest.mark.parametrize("command", [c for c in TARGETS if c != "prepare"])
def test_the_second_command_on_a_folder_is_refused(command: str, place: Path, held: Path):
    line = refusal(*line_of(place, command), "-o", held)
    assert f"another process is writing {held}; wait for it or end it" in line
    assert list(held.iterdir()) == []


def run_of(place: Path, command: str, out: Path) -> ForkedCommand:
    """A long run in a process of its own, which no patience ends."""
    given = list(map(str, line_of(place, command)))
    given[given.index("--max-steps") + 1] = "1000000"
    if command == "finetune":
        given += ["--patience", "10000"]
    return ForkedCommand(*given, "-o", out)


@pytest.mark.parametrize("command", ["pretrain", "finetune", "translate"])
def test_after_a_kill_the_folder_is_free(command: str, place: Path):
    out, given = place / "out", line_of(place, command)
    first = run_of(place, command, out)
    end = time.monotonic() + 60
    while not (out / "log.jsonl").exists() and first.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    for options in ([], ["--overwrite"], ["--resume"]):
        assert "another process is writing" in refusal(*given, "-o", out, *options)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    done = run_cli(*given, "-o", out, "--overwrite")
    assert done.returncode == 0, done.stderr


def test_a_fork_does_not_keep_the_lock(tmp_path: Path):
    with writing(tmp_path / "out"):
        child = os.fork()
        if child == 0:
            time.sleep(600)
    try:
        with writing(tmp_path / "out"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_refused_command_leaves_no_folder(place: Path):
    out = place / "a" / "b"
    for command in TARGETS:
        given = [*line_of(place, command), "-o", out]
        wrong = [place / "nothing" if g in (place / "train.csv", place / "corpus.txt") else g
                 for g in given]  # fmt: skip
        if wrong == given:
            wrong = [place / "nothing" if g in (place / "bert", place / "source.txt",
                     place / "tokens") else g for g in given]  # fmt: skip
        assert "nothing" in refusal(*wrong)
        assert not (place / "a").exists()


def test_one_folder_after_another_and_within_another(tmp_path: Path):
    out = tmp_path / "out"
    for _ in range(2):
        with writing(out), writing(out / "members" / "a"):
            np.save(out / "members" / "a" / "x.npy", np.zeros(1))
            with pytest.raises(InputError, match="another process"), writing(out):
                pass
    assert (out / "members" / "a" / "x.npy").exists()
    with writing(tmp_path / "new" / "er"):
        pass
    assert not (tmp_path / "new").exists()


def test_only_the_first_process_of_several_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, refused in (("1", False), ("0", True)):
        with writing(tmp_path):
            monkeypatch.setenv("RANK", rank)
            try:
                with writing(tmp_path):
                    found = False
            except InputError:
                found = True
            assert found is refused
        monkeypatch.delenv("RANK")
