"""Options shared by several commands that are not recipe settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between, known
from ownbert.cli.recipe_options import chosen, help_all
from ownbert.exceptions import InputError
from ownbert.files.encodings import ENCODING_HELP, UTF8
from ownbert.settings import setting
from ownbert.tables.columns import ColumnNames
from ownbert.train.training_settings import RUN

Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz; - is standard "
        "input."
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        help="Layout of plain text. line: one document per line; blank: one sentence per line, "
        "blank lines between documents; conll (detected for .conll and .conllu files): one word "
        "per line in columns, blank lines between sentences."
    ),
]
# The inputs of a command follow the folder. The options are alternative spellings.
TextsOrFile = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE",
        help="Texts, or a file with rows or lines; - or omitted: lines of standard input.",
    ),
]
# For commands that read any number of files, folders and globs.
TextsOrFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE",
        help="Texts; or files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz; - "
        "or omitted: lines of standard input.",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", "--input", help="The input file.", hidden=True)
]
# Columns of tables of texts. Commands with ids copy them to their output rows.
TextAndIds = Annotated[ColumnNames, chosen("text", "id")]
# Applied before the command runs (``ownbert.cli._guard_inputs``).
Encoding = Annotated[str | None, typer.Option(help=ENCODING_HELP, show_default=UTF8)]
# For commands with ``RayHelp``, which shows the option.
RareEncoding = Annotated[
    str | None, typer.Option(help=ENCODING_HELP, show_default=UTF8, hidden=True)
]
ResultsJson = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the results to this file as JSON.")
]
ResultsPage = Annotated[Path | None, typer.Option(help="Write the results as a page.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
TextColumn = Annotated[
    str | None,
    typer.Option(help="Column with the text, in tables.", show_default="detected by name"),
]

# Options of training commands.

# Required except for a dry run.
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the model.")]
Config = Annotated[
    Path | None,
    typer.Option(help="A recipe.yaml to start from; options and overrides take precedence."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.NAME=VALUE]...",
        help="Any setting of the recipe, such as optim.weight_decay=0.1 (--dry-run lists all).",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the settings, counts and the first examples, then exit."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume from the last saved state in the output folder; start over if there is none.",
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
    """The output folder, which is optional only for a dry run."""
    if output is None:
        raise InputError("{-o} is needed: the folder for the model")
    return output


# Options of commands that use a trained model.

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or auto (the faster one here).")]
# For commands that compute in bfloat16 if the folder says that predictions agree.
FolderPrecision = Annotated[
    str | None,
    typer.Option(help="float32, bfloat16 or auto.", show_default="as recorded in the folder"),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="torch, onnx, openvino (see ownbert export) or auto.", show_default="as exported"
    ),
]


RowsFile = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="Output file: .csv, .tsv, .jsonl (also .gz) or .parquet; - is standard output.",
    ),
]
ResumeFile = Annotated[
    bool, typer.Option("--resume", help="Resume a stopped run of the same command.")
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard", help="One shard of the rows, such as 3/16 (see ownbert merge).", metavar="I/N"
    ),
]


def require_file(*, resume: bool = False, shard: str | None = None) -> None:
    """Refuse options that need an output file, for commands that write to standard output."""
    if resume:
        raise InputError("{--resume} continues an output file; name it with {-o FILE}")
    if shard is not None:
        raise InputError("{--shard} writes one part of a file; name the file with {-o FILE}")


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Where a command runs: locally, or on Ray, with one output file per part."""

    runner: str = setting(
        "local", "local, or ray, where -o is a folder (see --help-all).", shown=False
    )
    workers: int | None = setting(
        None,
        "With --runner ray: number of worker processes, each with its own model, on this machine "
        "or on the cluster at RAY_ADDRESS.",
        shown="as many as the cores allow",
        hidden=True,
        check=between(1, limits.SHARDS, "[]"),
    )
    threads: int | None = setting(
        None,
        "With --runner ray: threads, and cores, per worker.",
        shown="1",
        hidden=True,
        check=between(1, limits.PROCESSES, "[]"),
    )
    part_rows: int | None = setting(
        None,
        "With --runner ray: rows per part; after a stop, only unfinished parts are computed again.",
        shown="8192",
        hidden=True,
        check=between(1, limits.COUNT, "[]"),
    )

    def options(
        self,
        given: Sequence[str],
        output: Path,
        *,
        shard: str | None,
        engine: str | None,
        encoding: str | None,
    ) -> dict[str, int] | None:
        """The options of --runner ray; None for the local runner.

        Args:
            given: names of the inputs.
            output: output path.
            shard: the option --shard, which Ray does not support.
            engine: the option --engine, which Ray does not support.
            encoding: the option --encoding, which Ray does not support: it splits files by bytes.

        Raises:
            InputError: the runner does not exist, or does not support an option.
        """
        ray_options = {k: v for k, v in vars(self).items() if k != "runner" and v is not None}
        known("local", "ray")("--runner", self.runner)
        if self.runner == "local":
            for name in ray_options:
                raise InputError("--{name} requires {--runner} ray", name.replace("_", "-"))
            return None
        if str(output) == "-":
            raise InputError("{--runner} ray writes a folder; name it with {-o FOLDER}")
        if not given or "-" in given:
            raise InputError("{--runner} ray reads files; name files or folders")
        if shard is not None:
            raise InputError("{--shard} and {--runner} ray cannot be combined; use one of them")
        if engine is not None:
            raise InputError("{--runner} ray supports only torch; omit {--engine}")
        if encoding is not None:
            raise InputError(
                "{--runner} ray reads only UTF-8; save the files as UTF-8, and omit {--encoding}"
            )
        return ray_options


# Shows the options that --help omits: those of Ray, and the encoding.
RayHelp = Annotated[bool, help_all(dict.fromkeys(("encoding", "workers", "threads", "part_rows")))]


FinetunedFolder = Annotated[Path, typer.Argument(help="Folder written by ownbert finetune or fit.")]
Network = Annotated[bool, typer.Option("--network", help="For fit folders: use only the network.")]
SkipUnlabelled = Annotated[
    bool,
    typer.Option(
        "--skip-unlabelled",
        help="Leave out rows without a label or number, and report how many there are; without it "
        "such rows are an error.",
    ),
]
# The meaning of the columns depends on the task; see ownbert finetune TASK --help.
_AS_IN_TRAINING = {"shown": "as in training, else detected by name"}
TASK_COLUMNS: dict[str, Any] = {
    "text": {"help": "Column with the texts, questions, prompts or words.", **_AS_IN_TRAINING},
    "second": {
        "help": "Column with the second texts, the contexts of questions, or the choices.",
        **_AS_IN_TRAINING,
    },
    "label": {
        "help": "Column with the labels, numbers, tags, answers, correct choices or scores.",
        **_AS_IN_TRAINING,
    },
}


# Columns of labelled rows, and of rows to predict.
LabelledColumns = Annotated[ColumnNames, chosen(**TASK_COLUMNS)]
TextColumns = Annotated[
    ColumnNames, chosen(text=TASK_COLUMNS["text"], second=TASK_COLUMNS["second"])
]


@dataclass(frozen=True, kw_only=True)
class AbstainSettings:
    """Options for predictions that may be rejected, or that are sets of labels."""

    unknown: float | None = setting(
        None,
        "Predict no label for texts that seem to fit none; SHARE of the texts that do fit one may "
        "be unknown too, such as 0.05.",
        metavar="SHARE",
        shown=False,
        check=between(0, 1),
    )
    coverage: float | None = setting(
        None,
        "Predict sets of labels, or intervals of numbers; a share of them is right, such as 0.9.",
        metavar="SHARE",
        shown=False,
        check=between(0, 1),
    )
    calibrate: Path | None = setting(
        None,
        "Labelled rows not used for training, for these options; saved in the folder.",
        shown="held-out rows of fit, dev rows of finetune",
    )


def numbers(option: str, given: str | None) -> list[int] | None:
    """Parse numbers such as "0,3-5"; None stays None."""
    if given is None:
        return None
    values: set[int] = set()
    for piece in given.split(","):
        first, dash, last = (part.strip() for part in piece.partition("-"))
        last = last if dash else first
        digits = first.isdecimal() and last.isdecimal() and len(first + last) < 10
        if not digits or not int(first) <= int(last) <= limits.WIDTH:
            raise InputError(
                "{option} is {value!r}; it must be numbers, as in 0,3-5", option, given
            )
        values |= set(range(int(first), int(last) + 1))
    return sorted(values)
