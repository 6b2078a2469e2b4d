"""Input texts from the command line, a file or standard input."""

import sys
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.encodings import UTF8, current_encoding, decoded_lines
from ownbert.tables.columns import TEXT, ColumnNames, positional_names


def given_input(
    given: Sequence[str], data: Path | None, *, missing: str
) -> "Path | list[str] | Iterator[str]":
    """Determine the input of a command: a file, texts, or lines of standard input.

    Args:
        given: arguments; a single one that names a file is the file, and - is standard input.
        data: file given by an option; - is standard input.
        missing: message if standard input is a terminal.

    Returns:
        A file, texts, or the lines of standard input.

    Raises:
        InputError: both arguments and the option are given, or there is no input.
    """
    if given and data is not None:
        raise InputError("{data} and {value!r} are both given; give one of them", data, given[0])
    named = [str(data)] if data is not None else list(given)
    if named == ["-"] or not named:
        if not named and sys.stdin.isatty():
            raise InputError(missing)
        return _stdin_lines()
    if data is not None:
        return data
    inputs = [_text_or_file(each) for each in given]
    files = [each for each in inputs if isinstance(each, Path)]
    if files and len(inputs) > 1:
        raise InputError(
            "{files} is a file among {count} arguments; give one file, or only texts",
            files[0],
            len(inputs),
        )
    return files[0] if files else list(given)


def given_inputs(given: Sequence[str], *, missing: str) -> "list[Path] | list[str] | Iterator[str]":
    """Like ``given_input``, for commands that read any number of files, folders and globs."""
    if list(given) == ["-"] or not given:
        return given_input(given, None, missing=missing)  # type: ignore[return-value]
    inputs = [Path(each) if glob(each) else _text_or_file(each) for each in given]
    files = [each for each in inputs if isinstance(each, Path)]
    if texts := [each for each in inputs if files and isinstance(each, str)]:
        raise InputError(
            "no such file: {texts} (but {files} is a file; give only files, or only texts)",
            texts[0],
            files[0],
        )
    return files or list(given)


def given_texts(given: Sequence[str], columns: ColumnNames, model: Path, *, missing: str) -> Any:
    """Like ``given_inputs``, but texts become a table with the named columns; the folder ``model``
    is checked before standard input is read."""
    from ownbert.checkpoint import describe
    from ownbert.tables.memory import Lines, table_of

    inputs: Any = given_inputs(given, missing=missing)
    if isinstance(inputs, list) and isinstance(inputs[0], Path):
        return inputs
    names = positional_names([TEXT], columns, labelled=False)
    if not isinstance(inputs, list):
        describe(model)
    rows = inputs if isinstance(inputs, list) else Lines(inputs)
    return table_of(rows, name="the input", positional=names)


def _text_or_file(argument: str) -> str | Path:
    from ownbert.tables.texts_or_files import text_or_file

    try:
        return text_or_file(argument)
    except InputError:
        raise InputError(
            "no such file: {argument} (pass texts on standard input: -)", argument
        ) from None


def _stdin_lines() -> Iterator[str]:
    encoding, number = current_encoding(), 0
    try:
        for line in decoded_lines(sys.stdin.buffer, encoding):
            number += 1
            line = line.removeprefix("\ufeff") if number == 1 else line  # the byte order mark
            yield line.rstrip("\r\n")
    except UnicodeError:
        shown = "UTF-8" if encoding == UTF8 else encoding
        raise InputError("standard input, line {number}: not {shown}", number + 1, shown) from None
