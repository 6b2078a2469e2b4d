"""embed: turn texts into vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.input_texts import given_texts
from ownbert.cli.progress import counting, say_saved, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.exceptions import InputError, counted
from ownbert.settings import setting
from ownbert.terminal import print_rows

_NOTHING = (
    'nothing to embed; give files, texts, such as ownbert embed FOLDER "a text", or lines on '
    "standard input"
)


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """Options for the vectors, named as in the Python function."""

    pooling: str | None = setting(None, "mean, first or max.", shown="the model's, else mean")
    normalize: bool | None = setting(
        None,
        "Normalise vectors to length 1.",
        option="--normalize/--no-normalize",
        shown="as in the model, else no",
    )
    max_length: int | None = setting(
        None,
        "Maximum input length, in tokens; longer texts are truncated.",
        shown="the model's limit",
        check=between(1, limits.LENGTH, "[]"),
    )
    batch_tokens: int | None = setting(
        None,
        "Tokens per forward pass.",
        shown="4096; 32768 on a GPU",
        check=between(1, limits.BATCH_TOKENS, "[]"),
    )


@settings_command
def embed(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    texts: o.TextsOrFiles = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="vectors.npy (a matrix), .parquet or .jsonl (one row per text, with the text); - "
            "is standard output.",
        ),
    ] = Path("-"),
    *,
    columns: o.TextAndIds,
    encoding: o.RareEncoding = None,
    settings: EmbedSettings,
    device: o.Device = "auto",
    precision: o.FolderPrecision = None,
    engine: o.Engine = None,
    shard: o.ShardOption = None,
    ray: o.RaySettings,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --runner ray: resume a stopped run.")
    ] = False,
    quiet: o.Quiet = False,
    help_all: o.RayHelp = False,
) -> None:
    """Embed texts: one vector per text, in input order.

    Texts are the rows of tables or the lines of plain text, including empty ones. Pooling,
    length and normalisation follow the configuration of sentence-transformers in the folder, if
    there is one.

    Example: ownbert embed runs/bert corpus.txt.gz -o vectors.npy

    Example: ownbert embed runs/bert "a text" "another one"
    """
    from ownbert.inference.engines import Compute
    from ownbert.inference.shards import as_shard
    from ownbert.inference.vector_files import count_texts, embedded_rows
    from ownbert.inference.vector_files import embed as run
    from ownbert.train.device import keep_memory

    bulk = ray.options(texts or (), output, shard=shard, engine=engine, encoding=encoding)
    options: dict[str, Any] = {"say": saying(quiet=quiet), **vars(settings)}
    given = {**columns.settings(), "device": device, "precision": precision, **options}
    if bulk is not None:
        from ownbert.bulk.ray_runner import embed_with_ray

        with counting("texts embedded", quiet=quiet) as progress:
            count = embed_with_ray(
                folder, texts, output, resume=resume, progress=progress, **bulk, **given
            )
        say_saved(f"{counted(count, 'text')} embedded", output, quiet=quiet)
        return
    given["engine"] = engine
    if resume:
        raise InputError(
            "embed can resume only with {--runner} ray; omit {--resume}, or use {--shard}"
        )
    keep_memory()
    inputs = given_texts(texts or (), columns, folder, missing=_NOTHING)
    if str(output) == "-":
        o.require_file(shard=shard)
        compute = Compute(device, precision, engine)
        print_rows(embedded_rows(folder, inputs, columns, compute, **options))
        return
    own_shard = as_shard(shard)
    # Read everything once, to detect an error in the last line now and not after hours.
    total = count_texts(inputs, columns)
    if own_shard is not None and total is not None:
        total = own_shard.share(total)
    with counting("texts embedded", quiet=quiet, total=lambda: total) as progress:
        count = run(folder, inputs, output, shard=own_shard, progress=progress, **given)
    written = output if own_shard is None else own_shard.path(output)
    say_saved(f"{counted(count, 'text')} embedded", written, quiet=quiet)
