"""fill: predictions of a masked language model for masked tokens."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownbert import limits
from ownbert.cli.input_texts import given_input
from ownbert.cli.options import Data, Device, Engine, TextColumn, TextsOrFile
from ownbert.language import translated
from ownbert.terminal import console, echo, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ownbert.inference.fill_mask import Filled, Mask

_BAR = 24  # characters of the longest bar
_NOTHING = 'no text to fill; give one, such as "12 [MASK] 9", or a file'


def fill(
    folder: Annotated[Path, typer.Argument(help="Folder of a pretrained model.")],
    texts: TextsOrFile = None,
    data: Data = None,
    top: Annotated[
        int, typer.Option(help="Number of candidates for each mask.", min=1, max=limits.VOCABULARY)
    ] = 5,
    text_column: TextColumn = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per text.")] = False,
    device: Device = "auto",
    engine: Engine = None,
) -> None:
    """Fill the masks in texts: the most probable tokens with their probabilities.

    Write masks as [MASK] or <mask>, with any tokenizer. If a text has several masks, each is
    filled while the others stay masked.

    Example: ownbert fill runs/bert "12 [MASK] 845 9"
    """
    from json import dumps

    from ownbert.inference.fill_mask import Filler

    given, where = _texts(texts or [], data, text_column)
    filler = Filler(folder, top=top, device=device, engine=engine)
    if filler.engine.note:
        say(filler.engine.note, err=True)
    output = console()
    for number, filled in enumerate(filler(given, where=where)):
        if json:
            echo(dumps(filled.as_json(), ensure_ascii=False))
        else:
            if number:
                output.print()
            _show(filled, output)


def _texts(
    texts: Sequence[str], data: Path | None, text_column: str | None
) -> tuple[Iterator[str], Callable[[int], str]]:
    """The texts to fill, without empty lines, and a function that names them by their number."""
    from ownbert.tables.columns import ColumnNames, read_numbered_texts
    from ownbert.tables.tables import not_empty, place

    given = given_input(texts, data, missing=_NOTHING)
    source = given if isinstance(given, Path) else "standard input"
    rows = (
        ((line, text) for line, _, text in read_numbered_texts(given, ColumnNames(text_column)))
        if isinstance(given, Path)
        else enumerate(given, start=1)
    )
    lines = array("q")  # numbers of the texts that were read

    def stripped() -> Iterator[str]:
        for line, text in rows:
            if text.strip():
                lines.append(line)
                yield text.strip()

    def where(number: int) -> str:
        line = lines[number - 1]
        return f"text {line}" if isinstance(given, list) else place(source, line)

    return not_empty(stripped(), _NOTHING), where


def _show(filled: "Filled", console: "Console") -> None:
    from rich.text import Text

    console.print(Text(filled.text, style="bold"))
    for number, mask in enumerate(filled.masks, 1):
        if len(filled.masks) > 1:
            console.print(Text(translated(f"mask {number} of {len(filled.masks)}")))
        _candidates(mask, console)
    console.print(Text(translated(f"filled: {filled.filled}")))


def _bar(probability: float) -> "Text":
    from rich.text import Text

    full, eighths = divmod(round(8 * _BAR * probability), 8)
    return Text("█" * full + " ▏▎▍▌▋▊▉"[eighths].strip(), style="cyan")


def _candidates(mask: "Mask", console: "Console") -> None:
    """Print each token, its probability, and a bar of proportional length."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=40)
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    for candidate in mask.candidates:
        word = candidate.token if candidate.token.startswith("##") else candidate.text
        p = candidate.probability
        table.add_row(Text(f"  {word}"), f"{p:.2%}" if p >= 1e-4 else f"{p:.1e}", _bar(p))
    console.print(table)
