"""Translate a file into another; a stopped run is gone on with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ownbert.data.resumable_file import ResumableFile, identity_of
from ownbert.errors import InputError
from ownbert.files import open_text, refuse_same, refuse_unreadable
from ownbert.train.state_files import summed_model
from ownbert.translate.translator import Translator


def translate_file(
    translator: Translator,
    input: str | Path | Iterable[str],
    output: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Translate the lines of a file, or texts, a line each, in their order; returns how many.

    ``output`` appears whole or not at all, packed where its name ends with .gz. What a stopped run
    has translated of a file is kept beside it, and ``resume`` goes on there. progress is called
    with the number of lines so far. Raises ``InputError`` for a file that cannot be read or
    written, and, to resume, if the model, the input or the search are others.
    """
    if isinstance(input, str | Path):
        texts, made_for = _read(Path(input), output), _made_for(translator, Path(input))
    elif resume:
        raise InputError("only a file can be gone on with; give it as --input, or do not --resume")
    else:
        texts, made_for = input, None
    file = ResumableFile(output, made_for, resume=resume)

    def lines(block: Sequence[str]) -> list[str]:
        return [f"{one_line(text)}\n" for text in translator.block(block)]

    return file.fill(translator.blocks(texts), lines, progress)


def one_line(text: str) -> str:
    """A text without line breaks, which a model may have learnt to write."""
    return " ".join(text.splitlines())


def _read(path: Path, output: str | Path) -> Iterator[str]:
    refuse_unreadable(path)
    refuse_same(path, output)
    return (text for _, text in open_text(path))


def _made_for(translator: Translator, path: Path) -> dict[str, Any]:
    """All that the lines depend on."""
    return {
        "format": 1,
        "model": summed_model(translator.folder),
        "input": identity_of(path),
        "search": translator.settings(),
    }
