"""Inputs where files of texts are expected: file names, standard input, texts in memory."""

import contextlib
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.text_files import UTF8_BOM, own_text
from ownbert.language.messages import is_on_command_line
from ownbert.tables.memory import MemoryTable, table_of
from ownbert.tables.tables import is_known

# Prefixes that identify file names.
_PATH_STARTS = ("/", "./", "../", "~/")
# Number of strings in a list that are checked for file names.
_LOOKED_AT = 100
STANDARD_INPUT = "-"
# Names in other libraries for the rows that are named train, labels and dev here.
_OTHER_NAMES = {
    "train": ("texts", "X", "data", "train_texts", "train_data", "train_dataset", "train_file"),
    "labels": ("y", "train_labels"),
    "dev": ("eval", "eval_dataset", "eval_data", "validation", "validation_data", "valid", "val"),
}


def text_or_file(data: Any) -> Any:
    """Convert a string to a ``Path`` if it names a file; otherwise it is a text.

    Raises:
        InputError: it looks like a name of a file or folder that does not exist.
    """
    if not isinstance(data, str):
        return data
    try:
        exists = bool(data) and Path(data).exists()
    except (OSError, ValueError):  # too long for a name, or with a null character
        exists = False
    if exists:
        return Path(data)
    named = is_known(data) or data.startswith(_PATH_STARTS) or data.endswith("/")
    if named and not any(map(str.isspace, data)):
        raise InputError("no such file: {data} (pass a text as [text])", data)
    return data


@contextlib.contextmanager
def corpus_files(given: Any) -> Iterator[list[str]]:
    """Yield the names of corpus files; other inputs are written to a temporary file.

    Args:
        given: files, folders and globs, one or several, where ``-`` is standard input; or texts:
            a Series, an array, an iterator or a list of them, a DataFrame, a datasets.Dataset, a
            mapping of columns. A list of strings contains texts if none of them names a file.

    Raises:
        InputError: the input has another form.
    """
    with tempfile.TemporaryDirectory(prefix="ownbert-texts-") as folder:
        if not are_names(given):
            path = own_text(Path(folder, "texts.jsonl"))
            with path.open("w", encoding="utf-8") as file:
                file.writelines(table_of_texts(given).lines())
            try:
                yield [str(path)]
            except InputError as error:  # hide the name of the temporary file
                hidden = {path: "the texts", str(path): "the texts"}
                raise InputError(error.message.replaced(hidden)) from None
            return
        names = [given] if isinstance(given, str | os.PathLike) else list(given)
        yield [_read_once(os.fspath(name), Path(folder, str(i))) for i, name in enumerate(names)]


def table_of_texts(given: Any) -> MemoryTable:
    """Texts in memory, in the forms of ``corpus_files``, as a table."""
    return table_of(given, name="the texts", positional=_one_text)


def _one_text(width: int) -> Sequence[str]:
    if width != 1:
        raise InputError("each of the texts must be one string")
    return ("text",)


def are_names(given: Any) -> bool:
    """Whether the input consists of file names rather than texts."""
    if isinstance(given, str | os.PathLike):
        return True
    if not isinstance(given, list | tuple | set | frozenset):
        return False
    some = list(given)[:_LOOKED_AT]
    if not all(isinstance(each, str) for each in some):
        return all(isinstance(each, str | os.PathLike) for each in some)
    if any(map(_is_name, some)):
        return True
    # A single word on the command line is more likely the name of a missing folder.
    word = len(some) == 1 and not any(map(str.isspace, some[0]))
    return len(some) == 0 or (word and is_on_command_line())


def _is_name(text: str) -> bool:
    if text == STANDARD_INPUT or isinstance(text_or_file(text), Path):
        return True
    try:
        return glob.has_magic(text) and bool(glob.glob(text))
    except (OSError, ValueError):
        return False


def _read_once(name: str, folder: Path) -> str:
    """``name``, or the name of a copy of its content if it can only be read once."""
    if name == STANDARD_INPUT:
        return _copied(sys.stdin.buffer, folder / "standard-input")
    if not Path(name).is_fifo():
        return name
    with open(name, "rb") as source:
        return _copied(source, folder / Path(name).name)


def _copied(source: Any, copy: Path) -> str:
    first = source.read(1 << 16)
    # The first character distinguishes JSON lines from texts.
    is_json = first.removeprefix(UTF8_BOM).lstrip()[:1] == b"{"
    copy = copy.with_name(f"{copy.name}.{'jsonl' if is_json else 'txt'}")
    copy.parent.mkdir()
    with copy.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(source, file)
    return str(copy)


def rows_by_other_names(train: Any, labels: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Training rows and labels, possibly passed by the names of other libraries.

    Args:
        train: training rows as passed.
        labels: labels as passed.
        options: options of the call; used ones are removed, and those for ``dev`` renamed.
    """
    given = {"train": train, "labels": labels, "dev": options.get("dev")}
    for ours, others in _OTHER_NAMES.items():
        for name in others:
            if given[ours] is None and name in options:
                given[ours] = options.pop(name)
    if given["dev"] is not None:
        options["dev"] = given["dev"]
    return given["train"], given["labels"]
