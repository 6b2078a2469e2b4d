"""score: how surprising texts are, and how unusual beside normal ones."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.cli.input_texts import given_inputs
from ownbert.cli.options import (
    Device,
    Encoding,
    Engine,
    IdColumn,
    Quiet,
    ResumeFile,
    ShardOption,
    TextColumn,
    TextsOrFiles,
)
from ownbert.cli.progress import counting, saying
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.terminal import echo, print_rows

_NOTHING = 'nothing to score; give files, texts, as in ownbert score FOLDER "a text", or lines'


def score(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a pretrained model.", show_default=False)
    ],
    texts: TextsOrFiles = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A table (.csv, .tsv) or JSON lines (.jsonl), in the same order; .gz too; - is "
            "standard output.",
        ),
    ] = Path("-"),
    normal: Annotated[
        list[Path] | None,
        typer.Option(
            "--normal",
            "--fit",
            help="Normal texts to compare with; what is learnt from them is saved in the folder "
            "(normal.npz) and used from then on.",
            show_default="as fitted",
        ),
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            help="Share of normal texts that may be flagged.",
            show_default="as fitted, else 0.01",
            min=0,
            max=1,
        ),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="The surprisal of each token in each row.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="A page with the most unusual texts, 200 at most, and their tokens in colours.",
            show_default=False,
        ),
    ] = None,
    passes: Annotated[
        int | None,
        typer.Option(
            help="Passes per text; in each of n passes every n-th token is masked.",
            show_default="6",
            min=1,
            max=limits.LENGTH,
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Mask one token in each pass.")] = False,
    text_column: TextColumn = None,
    id_column: IdColumn = None,
    encoding: Encoding = None,
    device: Device = "auto",
    engine: Engine = None,
    resume: ResumeFile = False,
    shard: ShardOption = None,
    quiet: Quiet = False,
) -> None:
    """Tell how surprising each text is to a pretrained model, and which of its tokens are.

    Each token is masked once and predicted from the others. The surprisal of a text is the mean of
    -ln p of its tokens, its perplexity e to the power of that.

    With --normal, texts are also compared with normal ones: unseen tokens, the order of tokens,
    their counts beside those of the nearest normal text, the length. The score is the sum of how
    rare each of these is. Texts above a threshold are flagged; reasons name what is unusual.

    Example: ownbert score runs/bert new.txt --normal normal.txt -o scores.jsonl

    Example: ownbert score runs/bert "a text" --tokens
    """
    from ownbert.inference.output.shards import as_shard
    from ownbert.inference.scoring.normal_profile import NORMAL
    from ownbert.inference.scoring.score import ScoredRows
    from ownbert.inference.scoring.score import score as run
    from ownbert.inspect.explain.score_page import MostUnusual
    from ownbert.tables.columns import TEXT, ColumnNames, positional_names
    from ownbert.tables.memory import Lines, table_of
    from ownbert.train.device import keep_memory

    keep_memory()
    own, to_file = as_shard(shard), str(output) != "-"
    if not to_file and resume:
        raise InputError("--resume continues a file; give it as -o FILE")
    if not to_file and own is not None:
        raise InputError("--shard writes a part of a file; give the file as -o FILE")
    if html is not None and resume:
        raise InputError("a page needs all rows: leave out --resume, or --html")
    columns = ColumnNames(text=text_column, id=id_column)
    inputs: Any = None
    if texts or not normal:
        inputs = given_inputs(texts or (), missing=_NOTHING)
    if inputs is not None and not (isinstance(inputs, list) and isinstance(inputs[0], Path)):
        inputs = inputs if isinstance(inputs, list) else Lines(inputs)
        names = positional_names([TEXT], columns, labelled=False)
        inputs = table_of(inputs, name="the input", positional=names)
    page = None if html is None else MostUnusual()
    given: dict[str, Any] = {
        "normal": normal or None,
        "false_alarms": false_alarms,
        "passes": passes,
        "exact": exact,
        "device": device,
        "engine": engine,
        "tokens": tokens,
        "say": saying(quiet=quiet),
        "each": page,
    }
    count = 0
    with counting("texts scored", quiet=quiet) as progress:
        given["progress"] = progress
        if inputs is None or not to_file:
            rows = ScoredRows(folder, inputs, columns=columns, **given)
        else:
            named = {"text_column": text_column, "id_column": id_column}
            count = run(folder, inputs, output, resume=resume, shard=own, **named, **given)
            rows = None
    if normal and not quiet:
        echo(translated(f"saved {folder / NORMAL}"), err=not to_file)
    if rows is not None:
        if html is None:
            print_rows(rows)
        else:
            for _ in rows:  # the page takes each
                pass
    elif not quiet:
        what = "text" if count == 1 else "texts"
        shown = output if own is None else own.path(output)
        echo(translated(f"{count:,} {what} scored; saved {shown}"))
    if page is not None and html is not None:
        page.write(html, title=folder.name)
        if not quiet:
            echo(translated(f"saved {html}"), err=not to_file)
