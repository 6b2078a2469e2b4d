"""Options shared by several commands that are not settings of a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.recipe_options import help_all
from ownbert.encodings import ENCODING_HELP, UTF8
from ownbert.errors import InputError
from ownbert.train.training_settings import RUN

Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz; - is standard "
        "input.",
        show_default=False,
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        help="Plain text: line is one document per line; blank is one sentence per line, with "
        "blank lines between documents; conll is one word per line in columns, with blank lines "
        "between sentences."
    ),
]
# What a command reads stands after the folder. The options are other spellings.
TextsOrFile = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE",
        help="Texts, or a file with rows or lines; - or nothing: lines of standard input.",
        show_default=False,
    ),
]
# Of commands that read any number of files: several, folders and globs too.
TextsOrFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE",
        help="Texts; or files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz; - or "
        "nothing: lines of standard input.",
        show_default=False,
    ),
]
Data = Annotated[Path | None, typer.Option("--data", "--input", help="The file.", hidden=True)]
IdColumn = Annotated[
    str | None,
    typer.Option(help="Column of ids, which the rows of the output have too.", show_default="none"),
]
# Takes effect before the command runs (``ownbert.cli._guarded``).
Encoding = Annotated[str | None, typer.Option(help=ENCODING_HELP, show_default=UTF8)]
# Of commands with ``RayHelp``, which shows it.
RareEncoding = Annotated[
    str | None, typer.Option(help=ENCODING_HELP, show_default=UTF8, hidden=True)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the text in tables.", show_default="by its name")
]

# Options of commands that train.

# Required except for a dry run.
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for the model.", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A recipe.yaml to start from; options and overrides come on top."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.NAME=VALUE]...",
        help="Any setting of the recipe, such as optim.weight_decay=0.1 (--dry-run shows them "
        "all).",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the resolved recipe, counts and a first batch, then exit."
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume from the last saved state in the output folder; start if there is none.",
        rich_help_panel=RUN,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the model in the output folder.", rich_help_panel=RUN
    ),
]


def required_output(output: Path | None) -> Path:
    """The folder of -o, which only a dry run may lack."""
    if output is None:
        raise InputError("-o is needed: the folder for the model")
    return output


# Options of commands that use a trained model.

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or auto (what is faster here).")]
# Of commands that compute in bfloat16 where the folder says that it agrees.
FolderPrecision = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16 or auto.",
        show_default="by its card",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="torch, onnx, openvino (see ownbert export) or auto.",
        show_default="as exported",
    ),
]


def refuse_with_ray(engine: str | None, encoding: str | None) -> None:
    """Raise ``InputError`` for an engine or an encoding beside --runner ray, whose parts are many
    texts, split by their bytes."""
    if engine is not None:
        raise InputError("--runner ray computes with torch; leave --engine out")
    if encoding is not None:
        raise InputError("--runner ray reads UTF-8; save the files so, and leave --encoding out")


ResumeFile = Annotated[
    bool, typer.Option("--resume", help="Resume where a stopped run of the same command ended.")
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="A share of the rows, as 3/16 (see ownbert merge).",
        show_default=False,
        metavar="I/N",
    ),
]
Runner = Annotated[
    str,
    typer.Option(help="local, or ray: -o is a folder (see --help-all).", show_default=False),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Of --runner ray: processes with a model each, on this machine or on the cluster that "
        "RAY_ADDRESS names.",
        show_default="as many as there are cores for",
        min=1,
        max=limits.SHARDS,
        hidden=True,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Of --runner ray: threads, and cores, of each worker.",
        show_default="1",
        min=1,
        max=limits.PROCESSES,
        hidden=True,
    ),
]
PartRows = Annotated[
    int | None,
    typer.Option(
        help="Of --runner ray: rows of a part, which is what is computed again after a stop.",
        show_default="8192",
        min=1,
        max=limits.COUNT,
        hidden=True,
    ),
]
RayHelp = Annotated[bool, help_all(dict.fromkeys(("encoding", "workers", "threads", "part_rows")))]


def ray_options(
    runner: str, given: Sequence[str], output: Path, **options: int | None
) -> dict[str, int] | None:
    """The options of --runner ray; None for the local one.

    Args:
        runner: local or ray.
        given: names of the input.
        output: of the results.
        options: workers, threads, part_rows.

    Raises:
        InputError: there is no such runner, or what is given is not for it.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if runner not in ("local", "ray"):
        raise InputError(f"--runner {runner!r} is not known; one of local, ray")
    if runner == "local":
        for name in chosen:
            raise InputError(f"--{name.replace('_', '-')} is for --runner ray")
        return None
    if str(output) == "-":
        raise InputError("--runner ray writes a folder; give it as -o FOLDER")
    if not given or "-" in given:
        raise InputError("--runner ray reads files; name files or folders")
    return chosen


FinetunedFolder = Annotated[
    Path, typer.Argument(help="Folder that ownbert finetune or fit wrote.", show_default=False)
]
Network = Annotated[
    bool,
    typer.Option("--network", help="Of a folder of ownbert fit: the network alone, no blend."),
]
# What the columns mean depends on the task; see ownbert finetune TASK --help.
_DEFAULT_COLUMN = "as in training, else by its name"
TaskTextColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the texts, questions, prompts or words.", show_default=_DEFAULT_COLUMN
    ),
]
TaskSecondColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the second texts, of the texts that hold answers, or of the choices.",
        show_default=_DEFAULT_COLUMN,
    ),
]
TaskLabelColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the labels, numbers, tags, answers, right choices or scores.",
        show_default=_DEFAULT_COLUMN,
    ),
]
Unknown = Annotated[
    float | None,
    typer.Option(
        help="Give no label to texts that seem to have none; this share of the texts that have one "
        "may be refused, such as 0.05.",
        show_default=False,
    ),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        help="Also give all labels that cannot be excluded: this share of the sets has the right "
        "label, such as 0.9.",
        show_default=False,
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        help="Labelled rows that were not trained on, for --unknown and --coverage; saved in the "
        "folder.",
        show_default="rows held out by fit, dev rows of finetune",
    ),
]
