"""Commands that write, with work enough to be stopped in the middle, and what they must give."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hostile.commands import IN, command_line
from hostile.forks import run
from hostile.place import Place

_STEPS = {"--max-steps": "8", "--save-every": "2", "--log-every": "1"}


@dataclass(frozen=True)
class Writing:
    """A command that writes.

    Args:
        path: its names.
        changed: of its valid command line.
        output: what it writes, a file or folder.
        result: files of a folder that are the same in every run; empty where the clock decides.
        resumes: whether ``--resume`` continues it. Else a second run starts anew, and a stopped
            one leaves nothing.
        kept: whether a stopped run may leave what the next one continues.
    """

    path: tuple[str, ...]
    changed: Mapping[str, str]
    output: str = "out"
    result: tuple[str, ...] = ()
    resumes: bool = False
    kept: bool = False

    def line(self, *, again: bool = False, output: str | None = None) -> list[str]:
        """The command line.

        Args:
            again: after a run that was stopped.
            output: another place for what it writes.
        """
        option = "--html" if self.path == ("trace",) else "-o"
        line = command_line(self.path, {**self.changed, option: output or self.output})
        return [*line, "--resume"] if again and self.resumes else line

    def outcome(self, folder: Path, written: str | None = None) -> dict[str, str]:
        """The checksums of what the command must always give; empty if it is not there."""
        output = folder / (written or self.output)
        files = [output / name for name in self.result] if self.result else [output]
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if file.is_file()
        }


_FOLDER = ("model.safetensors", "config.json")
MANY = f"{IN}many.csv"
WRITING = {
    "vocab": Writing(
        ("vocab",), {"--kind": "wordpiece"}, result=("vocab.txt", "tokenizer.json"), kept=False
    ),
    "prepare": Writing(
        ("prepare",),
        {"inputs": f"{IN}many.txt"},
        result=("tokens.bin", "sentences.bin", "documents.bin"),
        kept=True,
    ),
    "pretrain": Writing(("pretrain",), _STEPS, result=_FOLDER, resumes=True, kept=True),
    "finetune": Writing(("finetune", "classify"), _STEPS, result=_FOLDER, resumes=True, kept=True),
    "ensemble": Writing(
        ("finetune", "classify"),
        {**_STEPS, "--seeds": "2"},
        result=("seed-0/model.safetensors", "seed-1/model.safetensors", "ensemble.json"),
        resumes=True,
        kept=True,
    ),
    "fit": Writing(("fit",), {}, result=(), resumes=True, kept=True),
    "probe": Writing(("probe",), {}, result=("blend.json",)),
    "train": Writing(("translate", "train"), _STEPS, result=_FOLDER, resumes=True, kept=True),
    "translate": Writing(("translate", "use"), {}, output="out.txt", resumes=True, kept=True),
    "predict": Writing(("predict",), {"texts": MANY}, output="out.jsonl", resumes=True, kept=True),
    "evaluate": Writing(("evaluate",), {"file": MANY}, output="out.json"),
    "embed": Writing(("embed",), {"texts": MANY}, output="out.npy"),
    "export": Writing(("export",), {}, result=("config.json", "tokenizer.json")),
    "quantize": Writing(("quantize",), {}, result=("config.json", "ownbert-int8.safetensors")),
    "trace": Writing(("trace",), {}, output="out.html"),
    "relevance": Writing(("relevance",), {}, output="out.png"),
}
# What is a file, and may be there before.
FILES = tuple(name for name, writing in WRITING.items() if not writing.result and name != "fit")


def make_much(place: Place) -> None:
    """Inputs that take a while."""
    for source, target, times in (("train.csv", "many.csv", 80), ("corpus.txt", "many.txt", 60)):
        if not (place.inputs / target).exists():
            first, *lines = (place.inputs / source).read_text().splitlines(keepends=True)
            (place.inputs / target).write_text(first + "".join(lines) * times)


def undisturbed(place: Place, name: str) -> tuple[dict[str, str], float]:
    """What a command gives that nothing stops, and how many seconds it takes."""
    make_much(place)
    writing = WRITING[name]
    place.need(tuple(writing.line()))
    folder = place.folder(f"whole-{name}")
    ended = run(writing.line(), folder, plots=writing.path == ("relevance",))
    assert ended.code == 0, ended.err
    found = writing.outcome(folder)
    assert found or name == "fit"
    return found, ended.wall
