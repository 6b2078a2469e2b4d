"""predict: predictions of a fine-tuned model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.cli.input_texts import given_input
from ownbert.cli.options import (
    Calibrate,
    Coverage,
    Data,
    Device,
    Engine,
    FinetunedFolder,
    FolderPrecision,
    Network,
    Quiet,
    RareEncoding,
    RayHelp,
    RaySettings,
    ResumeFile,
    ShardOption,
    TaskSecondColumn,
    TaskTextColumn,
    TextsOrFile,
    Unknown,
)
from ownbert.cli.progress import counting, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.terminal import echo, print_rows

_NOTHING = (
    'nothing to predict; give a file, a text, such as ownbert predict FOLDER "a text", or lines '
    "on standard input"
)


@settings_command
def predict(
    folder: FinetunedFolder,
    texts: TextsOrFile = None,
    data: Data = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Output file: .csv, .tsv or .jsonl, also .gz; rows in input order; - is "
            "standard output.",
        ),
    ] = Path("-"),
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            help="Number of labels per row, the most probable first.",
            metavar="N",
            min=1,
            max=limits.VOCABULARY,
            show_default="the label, or all assigned labels",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Omit predictions with a lower score.",
            metavar="SCORE",
            min=0,
            max=1,
            show_default="as in training",
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Include the probabilities of all labels."),
    ] = False,
    unknown: Unknown = None,
    coverage: Coverage = None,
    calibrate: Calibrate = None,
    text_column: TaskTextColumn = None,
    second_column: TaskSecondColumn = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            help="Column with ids, written to the output instead of texts.",
            show_default="id, guid, uid, uuid, ..., if present",
        ),
    ] = None,
    encoding: RareEncoding = None,
    device: Device = "auto",
    precision: FolderPrecision = None,
    engine: Engine = None,
    network: Network = False,
    resume: ResumeFile = False,
    shard: ShardOption = None,
    *,
    ray: RaySettings,
    quiet: Quiet = False,
    help_all: RayHelp = False,
) -> None:
    """Run a fine-tuned model for any task on texts or on every row of a file.

    Writes one row per input row, in the same order: its id if the file has ids, else its text,
    and the prediction: labels with their scores, numbers, word tags and entities, the answer
    found in the text, the choice, or the similarity of two texts.

    Files are csv, tsv, jsonl or parquet; plain text, one text per line; CoNLL columns (tag),
    SQuAD JSON (answer), or an image, a folder of images, IDX or .npz (image); also .gz. Lines
    of standard input are texts, or JSON objects such as {"text": ..., "text_pair": ...}.

    Example: ownbert predict runs/clf new.csv -o predictions.jsonl

    Example: ownbert predict runs/clf "I want my money back" --top 3

    Example: ownbert predict runs/clf new.csv --unknown 0.05 --coverage 0.9 -o predictions.jsonl
    """
    from ownbert.inference.compute import Compute
    from ownbert.inference.output.shards import as_shard
    from ownbert.inference.pipeline import output_options
    from ownbert.inference.predict import RowPredictions, count_rows, refuse_missing
    from ownbert.inference.predict import predict as run
    from ownbert.tables.columns import ColumnNames
    from ownbert.tables.memory import Lines
    from ownbert.tasks.task import DEFAULT
    from ownbert.train.device import keep_memory

    names = [*(texts or ()), *([str(data)] if data is not None else [])]
    bulk = ray.options(names, output, shard=shard, engine=engine, encoding=encoding)
    say = saying(quiet=quiet)
    top_k = DEFAULT if top is None else top
    options = output_options(top_k, threshold, probabilities, unknown, coverage)
    if bulk is not None:
        from ownbert.bulk.ray_runner import predict_with_ray

        if calibrate is not None:
            raise InputError(
                "--calibrate cannot be combined with --runner ray; calibrate beforehand"
            )
        with counting("rows predicted", quiet=quiet) as progress:
            count = predict_with_ray(
                folder,
                names,
                output,
                text_column=text_column,
                second_column=second_column,
                id_column=id_column,
                device=device,
                precision=precision,
                network=network,
                top_k=top,
                threshold=threshold,
                probabilities=probabilities,
                unknown=unknown,
                coverage=coverage,
                resume=resume,
                progress=progress,
                say=say,
                **bulk,
            )
        _say_saved(count, output, quiet)
        return
    keep_memory()
    found: Any = given_input(texts or (), data, missing=_NOTHING)
    if isinstance(found, Iterator):
        found = Lines(found)
    if str(output) == "-":
        if resume:
            raise InputError("--resume continues an output file; name it with -o FILE")
        if shard is not None:
            raise InputError("--shard writes one part of a file; name the file with -o FILE")
        if isinstance(found, Path):
            refuse_missing(found)
        rows = RowPredictions(
            folder,
            found,
            columns=ColumnNames(text_column, second_column, id=id_column),
            compute=Compute(device, precision, engine, network),
            options=options,
            calibrate=calibrate,
            say=say,
        )
        for note in rows.notes():
            say(note)
        print_rows(rows)
        for warning in rows.warnings():
            say(warning)
        return
    own_shard = as_shard(shard)

    def total() -> int | None:
        rows = count_rows(found)
        return rows if rows is None or own_shard is None else own_shard.share(rows)

    with counting("rows predicted", quiet=quiet, total=total) as progress:
        count = run(
            folder,
            found,
            output,
            text_column=text_column,
            second_column=second_column,
            id_column=id_column,
            top_k=top_k,
            threshold=threshold,
            probabilities=probabilities,
            unknown=unknown,
            coverage=coverage,
            calibrate=calibrate,
            resume=resume,
            shard=own_shard,
            progress=progress,
            say=say,
            device=device,
            precision=precision,
            engine=engine,
            network=network,
        )
    _say_saved(count, output if own_shard is None else own_shard.path(output), quiet)


def _say_saved(count: int, output: Path, quiet: bool) -> None:
    if not quiet:
        what = "row" if count == 1 else "rows"
        echo(translated(f"{count:,} {what} answered; saved {output}"))
