"""Files that cannot grow, a file system without room, files that may not be read, and memory that
does not suffice."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.checks import one_line
from hostile.commands import command_line
from hostile.forks import run
from hostile.place import Place, state
from hostile.test_signals import OLD
from hostile.writing import FILES, WRITING, undisturbed

# Of files, for each command.
SIZES = 2
NOBODY = 65534


def no_larger(size: int) -> Callable[[], None]:
    """For a fork: no file can grow beyond so many bytes."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        # Its standard error is a file, too; the limit is for those of the command.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return limit


def check_full(name: str, place: Place, rng: random.Random) -> list[str]:
    """Run a command while files cannot grow, and again when they can."""
    writing = WRITING[name]
    whole, _ = undisturbed(place, name)
    plots = writing.path == ("relevance",)
    made = place.root / f"whole-{name}"
    largest = max(p.stat().st_size for p in made.rglob("*") if p.is_file())
    found = []
    for _ in range(SIZES):
        size = int(largest * rng.random() ** 2)
        folder = place.folder(f"full-{name}")
        output = folder / writing.output
        before = name in FILES
        if before:
            output.write_text(OLD)
        there, inputs = state(folder), state(place.inputs)
        ended = run(writing.line(), folder, prepare=no_larger(max(size, 2000)), plots=plots)
        wrong = []
        if ended.code not in (0, 2):
            wrong.append(f"exit code {ended.code}")
        if ended.code == 2:
            wrong += one_line(ended)
            if not re.search("cannot (write|make)|full|too large|room", ended.err):
                wrong.append("a message about something else")
        if before and ended.code == 2 and output.read_text() != OLD:
            wrong.append("the output from before is gone")
        if ended.code == 2 and not writing.kept and state(folder) != there:
            wrong.append(f"left {sorted(state(folder).keys() ^ there.keys())}")
        if ended.code == 0 and writing.outcome(folder) != whole:
            wrong.append("half of the output")
        done = run(writing.line(again=True), folder, plots=plots)
        finished = ended.code == 0 and done.code == 2 and "already contains" in done.err
        if done.code != 0 and not finished:
            wrong.append(f"not continued: {done.code} {done.err[-600:]}")
        elif name != "fit" and writing.outcome(folder) != whole:
            wrong.append("another result")
        if state(place.inputs) != inputs:
            wrong.append("inputs are changed")
        found += [f"{name}, {size:,} of {largest:,} bytes: {w}\n    {ended.err!r}" for w in wrong]
    return found


def test_a_file_that_cannot_grow(place: Place):
    assert not check_full("embed", place, random.Random(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_files_that_cannot_grow(name: str, place: Place):
    found = check_full(name, place, random.Random(f"5 {name}"))
    assert not found, "\n".join(found)


@pytest.fixture
def small_disk(place: Place, tmp_path: Path):
    """A file system of 64 kB, beside the inputs as the working folders are."""
    folder = place.folder("small")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["predict", "embed", "vocab", "prepare", "finetune", "pretrain"])
def test_a_disk_without_room(name: str, place: Place, small_disk: Path):
    whole, _ = undisturbed(place, name)
    writing = WRITING[name]
    (small_disk / "filling").write_bytes(b"x" * 52_000)
    ended = run(writing.line(output=f"small/{writing.output}"), _beside(small_disk))
    assert ended.code == 2, (ended.out, ended.err)
    assert not list(one_line(ended))
    assert "No space left" in ended.err
    output = small_disk / writing.output
    assert not output.is_file()
    assert not list(small_disk.rglob("model.safetensors"))
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    again = writing.line(again=True, output=f"small/{writing.output}")
    assert run(again, _beside(small_disk)).code == 0
    assert writing.outcome(_beside(small_disk), f"small/{writing.output}") == whole


def _beside(folder: Path) -> Path:
    """The working folder from which inputs are ../in/, and the small disk is small/."""
    work = folder.parent / "beside"
    work.mkdir(exist_ok=True)
    link = work / "small"
    if not link.is_symlink():
        link.symlink_to(folder)
    return work


def as_nobody() -> None:
    """For a fork: without the rights of root, who may read everything."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.mark.parametrize(
    ("path", "changed", "file"),
    [
        (("vocab",), {"inputs": "mine.txt"}, "mine.txt"),
        (("embed",), {"texts": "mine.csv"}, "mine.csv"),
        (("finetune", "classify"), {"--train": "mine.csv"}, "mine.csv"),
        (("describe",), {"folder": "model"}, "model/config.json"),
        (("trace",), {"folder": None, "text": None, "--inputs": "mine.json"}, "mine.json"),
        (("runs",), {"folder": "model"}, "model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_file_that_may_not_be_read(
    place: Place, path: tuple[str, ...], changed: dict[str, str], file: str
):
    folder = place.folder("unreadable")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text("{}") if file != "model" else (folder / file).mkdir()
    for parent in (*place.root.parents, place.root, place.inputs, folder):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    folder.chmod(0o777)
    (folder / file).chmod(0)
    before = state(folder)
    ended = run(command_line(path, changed), folder, prepare=as_nobody)
    assert ended.code == 2, ended.err
    assert not list(one_line(ended))
    assert re.search("[Pp]ermission denied|not readable", ended.err)
    assert file in ended.err
    assert state(folder) == before


@pytest.mark.slow
def test_memory_that_does_not_suffice(place: Place):
    """A base model has 0.4 GB of weights, and as much for each of Adam's means."""

    def little() -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + (96 << 20), hard))

    folder = place.folder("memory")
    ended = run(command_line(("pretrain",), {"--size": "base"}), folder, prepare=little)
    assert ended.code == 2, ended.err
    assert not list(one_line(ended))
    assert re.search(r"out of memory; lower --batch-tokens=\d+ or --max-length=\d+, or", ended.err)
    # It may have come as far as the first step; what is left is not in a smaller run's way.
    assert not list(folder.rglob("*.safetensors"))
    smaller = run(command_line(("pretrain",)), folder)
    assert smaller.code == 0, smaller.err
