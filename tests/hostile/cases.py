"""Wrong command lines, made from a few tables and the options that the commands declare."""

import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hostile import bad_files
from hostile.commands import BASE, IN, OUTPUT, command, command_line, kind
from ownbert.cli.command import OUTPUTS

NUMBERS = ("0", "-1", "nan", "inf", "1e12", "1000000000000", "9" * 26, "-" + "9" * 26, "x", "")
TEXTS = ("", "nope", "\x1b[31mred\x07", "x" * 100_000, "../..", "\u202e", "-", "a=b", "日本")
# One more than the tasks of finetune have in common is tried with each of them.
_TASKS = tuple(path for path in BASE if path[0] == "finetune" and path[1] != "classify")
# Folders of models, with the commands that read them.
FOLDERS: dict[str, tuple[tuple[tuple[str, ...], dict[str, str]], ...]] = {
    "bert": ((("fill",), {}), (("describe",), {}), (("embed",), {})),
    "clf": ((("predict",), {}), (("finetune", "classify"), {"--model": ""})),
    "labels": ((("predict",), {}),),
    "ratings": ((("predict",), {}),),
    "reader": ((("predict",), {"texts": f"{IN}questions.json"}),),
    "chooser": ((("predict",), {"texts": f"{IN}choices.jsonl"}),),
    "tagger": ((("predict",), {"texts": f"{IN}tags.conll"}),),
    "vectors": ((("embed",), {}),),
    "image": ((("predict",), {"texts": f"{IN}images.npz"}), (("relevance",), {})),
    "marian": ((("translate", "use"), {}),),
    "several": ((("predict",), {}),),
    "best": ((("predict",), {}), (("evaluate",), {})),
    "probe": ((("predict",), {}),),
    "run": ((("runs",), {}), (("pretrain",), {"tokens": f"{IN}tokens", "--resume": ""})),
    "tokens": ((("pretrain",), {}),),
    "vocab": ((("prepare",), {}),),
}


@dataclass(frozen=True)
class Case:
    """A command line with something wrong.

    Args:
        name: says what is wrong.
        arguments: of ``ownbert``.
        make: writes files into the working folder before, given that and the folder of inputs;
            returns the process that does, if that is still running.
        refused: whether it must be refused; else it may be accepted.
        inputs: of the inputs, the folders that are read besides those in the arguments.
        path: the names of the command.
        output: how the names of files begin that a command which succeeds may replace.
    """

    name: str
    arguments: tuple[Any, ...]
    path: tuple[str, ...]
    make: Callable[[Path, Path], int | None] | None = None
    refused: bool = False
    inputs: tuple[str, ...] = ()
    output: str = "there"

    @property
    def order(self) -> int:
        """As good as random, and the same everywhere."""
        return zlib.crc32(self.name.encode(errors="surrogateescape"))


def _case(path: tuple[str, ...], what: str, changed: dict[str, Any], **about: Any) -> Case:
    return Case(f"{' '.join(path)}: {what}", tuple(command_line(path, changed)), path, **about)


def option_cases(path: tuple[str, ...]) -> Iterator[Case]:
    """Every option and argument of a command with wrong values."""
    for parameter in command(path).params:
        option = parameter.param_type_name == "option"
        name = parameter.opts[0] if option else parameter.name
        what = kind(parameter)
        common = path in _TASKS and name in _common_options()
        if what == "number":
            for value in NUMBERS:
                # Tasks share most of their options.
                if not common or zlib.crc32(f"{path}{name}{value}".encode()) % 5 == 0:
                    shown = value if len(value) < 20 else f"{value[:2]}…"
                    refused = value in ("nan", "x", "")
                    yield _case(path, f"{name} {shown!r}", {name: value}, refused=refused)
        elif what == "text" and not common:
            for value in TEXTS:
                yield _case(path, f"{name} {value[:9]!r}", {name: value})
        elif what == "path" and parameter.name in OUTPUTS:
            yield from _output_cases(path, name)
        elif what == "path" and not common:
            yield from _input_cases(path, name)
        if parameter.name == "texts":
            yield from stdin_cases(path)
    yield _case(path, "unknown option", {"--nope": "1"}, refused=True)
    line = command_line(path)
    for number in range(len(path), len(line)):
        if not str(line[number]).startswith("-"):
            cut = (*line[:number], b"\xff\xfe", *line[number + 1 :])
            name = f"{' '.join(path)}: not utf-8 at {number}"
            yield Case(name, cut, path, refused=True)
    yield Case(f"{' '.join(path)}: NUL", (*line, "a=\x01"), path)


def stdin_cases(path: tuple[str, ...]) -> Iterator[Case]:
    """What commands that read lines of standard input may find there."""
    for what, write in bad_files.BAD_FILES.items():
        yield _case(
            path,
            f"standard input {what}",
            {"texts": "-"},
            make=lambda work, place, write=write: _nothing(write(Path(f"{work}.in"))),
        )


def _nothing(result: object) -> None:
    """What most functions that write files return is of no use."""


def _common_options() -> set[str]:
    return {p.opts[0] for p in command(("finetune", "classify")).params}


# Never a folder above the working one: root may write to it.
def _output_cases(path: tuple[str, ...], name: str) -> Iterator[Case]:
    base = command_line(path)
    written = OUTPUT[path]
    suffix = Path(written[1]).suffix if written else ""
    inputs = [str(a) for a in base if str(a).startswith(IN)]
    for given in inputs:
        yield _case(path, f"{name} is {given}", {name: given}, refused=True)

    def make(write: Callable[[Path], object]) -> Callable[[Path, Path], None]:
        return lambda work, place: _nothing(write(work / f"there{suffix}"))

    for what, value, write in (
        ("missing folder", f"a/b/c{suffix}", None),
        ("below a file", f"there{suffix}/x{suffix}", lambda p: p.write_text("mine")),
        ("a file", f"there{suffix}", lambda p: p.write_text("mine")),
        ("a folder", f"there{suffix}", Path.mkdir),
        ("a link to itself", f"there{suffix}", lambda p: p.symlink_to(p.name)),
        ("a broken link", f"there{suffix}", lambda p: p.symlink_to("nowhere")),
        ("a long name", "x" * 300 + suffix, None),
        ("a long path", "x/" * 3000 + "x" + suffix, None),
        ("empty", "", None),
        ("a dot", ".", None),
        # A link: root would replace the device itself, and every program on the machine needs it.
        ("a device", f"there{suffix}", lambda p: p.symlink_to("/dev/null")),
        ("a pipe that nobody reads", f"there{suffix}", os.mkfifo),
        ("a process", "/proc/self/nope" + suffix, None),
        ("controls", f"a\x1b[31m\n{suffix}", None),
        ("another suffix", "out.xyz", None),
    ):
        yield _case(path, f"{name} is {what}", {name: value}, make=write and make(write))


def _input_cases(path: tuple[str, ...], name: str) -> Iterator[Case]:
    given = BASE[path].get(name, "")
    folder = given.startswith(IN) and "." not in given.removeprefix(IN)
    suffix = "" if folder else Path(given).suffix or {"--config": ".yaml"}.get(name, ".csv")
    bad = f"bad{suffix}"
    for what, write in bad_files.NOT_FILES.items():
        value = f"{bad}/x" if what == "below a file" else bad
        sure = what in ("missing", "broken link", "link to itself", "below a file")
        yield _case(
            path,
            f"{name} {what}",
            {name: value},
            make=lambda work, place, write=write: _nothing(write(work / bad)),
            refused=sure,
        )
    yield _case(path, f"{name} controls", {name: f"a\x1b[31m\r{suffix}"}, refused=True)
    yield _case(path, f"{name} long", {name: "x" * 5000 + suffix}, refused=True)
    yield _case(
        path,
        f"{name} a pipe",
        {name: bad},
        make=lambda work, place: bad_files.write_pipe(work / bad),
    )
    suffixes = [suffix, ".jsonl"] if suffix == ".csv" else [suffix]
    for ending in suffixes:
        for what, write in bad_files.BAD_FILES.items():
            file = f"bad{ending}"
            yield _case(
                path,
                f"{name} {what} {ending}",
                {name: file},
                make=lambda work, place, write=write, file=file: _nothing(write(work / file)),
            )


def broken_folders(place: Path, name: str, part: int = 1) -> Iterator[Case]:
    """A folder with one thing wrong in one of its files, for a command that reads it.

    Args:
        place: the folder of inputs.
        name: of the folder.
        part: take one of so many wrong values.
    """
    folder = place / name
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    for file in files:
        inner = file.relative_to(folder)
        if "seed-1" in inner.parts:
            continue
        for what, content in _broken(file):
            for number, (path, changed) in enumerate(FOLDERS[name]):
                title = f"{inner} {what}"
                draw = zlib.crc32(f"{name}{title}{number}".encode(errors="replace"))
                # Each wrong value is for one of the commands that read the folder.
                if draw % part == 0 and draw // 64 % len(FOLDERS[name]) == number:
                    yield _broken_folder(path, changed, name, inner, title, content)


def _broken_folder(
    path: tuple[str, ...],
    changed: dict[str, str],
    name: str,
    inner: Path,
    title: str,
    content: bytes,
) -> Case:
    def make(work: Path, place: Path) -> None:
        source = place / name
        for file in source.rglob("*"):
            target = work / name / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and "--resume" not in changed:
                target.symlink_to(file)
            elif file.is_file():
                target.write_bytes(file.read_bytes())
        (work / name / inner).unlink()
        (work / name / inner).write_bytes(content)

    given = dict(changed)
    if "--resume" in given:
        given |= {"--resume": None, "-o": name, "--max-steps": "2"}
    elif "--model" in given:
        given["--model"] = name
    else:
        argument = {"prepare": "--tokenizer", "pretrain": "tokens"}.get(path[0], "folder")
        given[argument] = name
    line = command_line(path, given)
    if "--resume" in changed:
        line.append("--resume")
    resumed = name if "--resume" in changed else "there"
    about = f"{' '.join(path)}: {name}/{title}"
    return Case(about, tuple(line), path, make=make, inputs=(name,), output=resumed)


def _broken(file: Path) -> Iterator[tuple[str, bytes]]:
    if file.suffix == ".json" and file.name != "report.json":
        text = file.read_text()
        for where, what, value in bad_files.wrong_values(json.loads(text)):
            yield f"{where} {what}", json.dumps(value).encode()
        yield from bad_files.broken_json(text)
    elif file.suffix == ".yaml":
        text = file.read_text()
        for where, what, value in bad_files.wrong_values(yaml.safe_load(text)):
            yield f"{where} {what}", yaml.safe_dump(value).encode()
        for what in ("yaml bomb", "yaml tag", "deep json", "nul"):
            yield what, _written(bad_files.BAD_FILES[what], file)
    elif file.suffix == ".safetensors":
        yield from bad_files.broken_weights(file.read_bytes())
    elif file.suffix in (".npy", ".bin"):
        yield from bad_files.broken_binary(file.read_bytes())
    elif file.name in ("vocab.txt", "log.jsonl", "README.md", "merges.txt"):
        for what in ("empty", "latin-1", "nul", "terminal", "digits", "array", "long word"):
            yield what, _written(bad_files.BAD_FILES[what], file)


def _written(write: bad_files.Write, file: Path) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x")
        return (Path(folder) / "x").read_bytes()
