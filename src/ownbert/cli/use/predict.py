"""predict: predictions of a fine-tuned model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.input_texts import given_input
from ownbert.cli.progress import counting, say_saved, saying
from ownbert.cli.recipe_options import chosen, settings_command
from ownbert.exceptions import InputError, counted
from ownbert.settings import setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import print_rows

_NOTHING = (
    'nothing to predict; give a file, a text, such as ownbert predict FOLDER "a text", or lines '
    "on standard input"
)
_IDS = {
    "help": "Column with ids, written to the output instead of texts.",
    "shown": "id, guid, uid, uuid, ..., if present",
}


@dataclass(frozen=True, kw_only=True)
class PredictSettings:
    """Options for the predictions, named as in the Python function."""

    top_k: int | None = setting(
        None,
        "Number of labels per row, the most probable first.",
        option="--top",
        metavar="N",
        shown="the label, or all assigned labels",
        check=between(1, limits.VOCABULARY, "[]"),
    )
    threshold: str | None = setting(
        None,
        "Omit lower scores: 0.9; or from which probability to predict a label: yes=0.9, "
        "yes=recall:0.9.",
        metavar="SCORE",
        shown=False,
    )
    probabilities: bool = setting(False, "Add all labels' probabilities.")
    keep: str | None = setting(
        None,
        "Input columns copied to the output: id,date, or all.",
        metavar="COLUMNS",
    )


@settings_command
def predict(
    folder: o.FinetunedFolder,
    texts: o.TextsOrFile = None,
    data: o.Data = None,
    output: o.RowsFile = Path("-"),
    *,
    settings: PredictSettings,
    abstain: o.AbstainSettings,
    columns: Annotated[
        ColumnNames, chosen(text=o.TASK_COLUMNS["text"], second=o.TASK_COLUMNS["second"], id=_IDS)
    ],
    encoding: o.RareEncoding = None,
    device: o.Device = "auto",
    precision: o.FolderPrecision = None,
    engine: o.Engine = None,
    network: o.Network = False,
    resume: o.ResumeFile = False,
    shard: o.ShardOption = None,
    ray: o.RaySettings,
    quiet: o.Quiet = False,
    help_all: o.RayHelp = False,
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
    from ownbert.inference.opened import refuse_missing
    from ownbert.tables.memory import Lines
    from ownbert.tasks.task import DEFAULT
    from ownbert.train.device import keep_memory

    names = [*(texts or ()), *([str(data)] if data is not None else [])]
    bulk = ray.options(names, output, shard=shard, engine=engine, encoding=encoding)
    given: dict[str, Any] = {
        **columns.settings(),
        "device": device,
        "precision": precision,
        "network": network,
        "say": saying(quiet=quiet),
        **vars(settings),
        **vars(abstain),
    }
    if settings.top_k is None:
        given["top_k"] = DEFAULT
    if bulk is not None:
        _predict_with_ray(folder, names, output, quiet, bulk | given | {"resume": resume})
        return
    keep_memory()
    given["engine"] = engine
    inputs: Any = given_input(texts or (), data, missing=_NOTHING)
    if isinstance(inputs, Iterator):
        inputs = Lines(inputs)
    if str(output) != "-":
        _predict_to_file(folder, inputs, output, shard, quiet, given | {"resume": resume})
        return
    o.require_file(resume=resume, shard=shard)
    if isinstance(inputs, Path):
        refuse_missing(inputs)
    _print_predictions(folder, inputs, columns, given)


def _predict_with_ray(
    folder: Path, names: list[str], output: Path, quiet: bool, given: dict[str, Any]
) -> None:
    from ownbert.bulk.ray_runner import predict_with_ray

    if given.pop("calibrate") is not None:
        raise InputError(
            "{--calibrate} cannot be combined with {--runner} ray; calibrate beforehand"
        )
    with counting("rows predicted", quiet=quiet) as progress:
        count = predict_with_ray(folder, names, output, progress=progress, **given)
    say_saved(f"{counted(count, 'row')} predicted", output, quiet=quiet)


def _predict_to_file(
    folder: Path, inputs: Any, output: Path, shard: str | None, quiet: bool, given: dict[str, Any]
) -> None:
    from ownbert.inference.predict import count_rows
    from ownbert.inference.predict import predict as run
    from ownbert.inference.shards import as_shard

    own_shard = as_shard(shard)

    def total() -> int | None:
        rows = count_rows(inputs)
        return rows if rows is None or own_shard is None else own_shard.share(rows)

    with counting("rows predicted", quiet=quiet, total=total) as progress:
        count = run(folder, inputs, output, shard=own_shard, progress=progress, **given)
    written = output if own_shard is None else own_shard.path(output)
    say_saved(f"{counted(count, 'row')} predicted", written, quiet=quiet)


def _print_predictions(
    folder: Path, inputs: Any, columns: ColumnNames, given: dict[str, Any]
) -> None:
    from ownbert.inference.engines import Compute, say_each
    from ownbert.inference.open_folder import open_folder
    from ownbert.inference.pipeline import output_options
    from ownbert.inference.predict import RowPredictions

    options = ("top_k", "threshold", "probabilities", "unknown", "coverage", "keep")
    say = given["say"]
    compute = Compute(*(given[n] for n in ("device", "precision", "engine", "network")))
    opened = open_folder(folder, compute, columns=columns)
    rows = RowPredictions(
        opened,
        inputs,
        columns=columns,
        options=output_options(*(given[name] for name in options)),
        calibrate=given["calibrate"],
        say=say,
    )
    say_each(opened.notes(), say)
    print_rows(rows)
    say_each(opened.warnings(), say)
