"""What several commands share: settings that are not those of recipes, progress bars, inputs."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.checks import between, known
from ownbert.cli.command import Command, argument
from ownbert.exceptions import InputError
from ownbert.files.encodings import ENCODING_HELP, UTF8, current_encoding, decoded_lines
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.settings import changed, setting
from ownbert.tables.columns import TEXT, ColumnNames, positional_names
from ownbert.terminal import console, say
from ownbert.train.training_settings import RUN

# Inputs.

INPUTS = argument(
    ...,
    "Files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz; - is standard input.",
)
LAYOUT = setting(
    "auto",
    "Layout of plain text. line: one document per line; blank: one sentence per line, blank lines "
    "between documents; conll (detected for .conll and .conllu files): one word per line in "
    "columns, blank lines between sentences.",
)
# The inputs of a command follow the folder. The option is an alternative spelling.
TEXTS_OR_FILE = argument(
    None, "Texts, or a file with rows or lines; - or omitted: lines of standard input.", "TEXT|FILE"
)
DATA = setting(None, "The input file.", option="--data --input", hidden=True)
# For commands that read any number of files, folders and globs.
TEXTS_OR_FILES = argument(
    None,
    "Texts; or files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz; - or omitted: "
    "lines of standard input.",
    "TEXT|FILE",
)
TRAINED_FOLDER = argument(..., "Folder of a trained model.")
FINETUNED_FOLDER = argument(..., "Folder written by ownbert finetune or fit.")
MODEL_FOLDER = argument(..., "Model folder.")
# Applied before the command runs. Commands with options of Ray show it with these.
ENCODING = setting(None, ENCODING_HELP, shown=UTF8)
RARE_ENCODING = changed(ENCODING, rare=True)

# Columns of tables. In labelled rows, their meaning depends on the task; see ownbert finetune TASK
# --help.
TEXT_COLUMN = setting(None, "Column with the text, in tables.", shown="detected by name")
ID_COLUMN = setting(None, "Column with ids, copied to the output.", shown="none")
_AS_IN_TRAINING = "as in training, else detected by name"
TASK_TEXT = setting(
    None, "Column with the texts, questions, prompts or words.", shown=_AS_IN_TRAINING
)
TASK_SECOND = setting(
    None,
    "Column with the second texts, the contexts of questions, or the choices.",
    shown=_AS_IN_TRAINING,
)
TASK_LABEL = setting(
    None,
    "Column with the labels, numbers, tags, answers, correct choices or scores.",
    shown=_AS_IN_TRAINING,
)

# Computation.

DEVICE = setting("auto", "auto, cpu or cuda.")
PRECISION = setting("float32", "float32, bfloat16 or auto (the faster one here).")
# For commands that compute in bfloat16 if the folder says that predictions agree.
FOLDER_PRECISION = setting(None, "float32, bfloat16 or auto.", shown="as recorded in the folder")
ENGINE = setting(None, "torch, onnx, openvino (see ownbert export) or auto.", shown="as exported")
MAX_LENGTH = setting(
    None,
    "Maximum input length, in tokens; longer texts are truncated.",
    shown="the model's limit",
    check=between(1, limits.LENGTH, "[]"),
)
SEED = setting(0, "Seed for clustering.", check=between(0, limits.SEED, "[]"))
NETWORK = setting(False, "For fit folders: use only the network.")

# Outputs.

ROWS_FILE = setting(
    Path("-"), "Output file: .csv, .tsv, .jsonl (also .gz) or .parquet; - is standard output."
)
RESULTS_JSON = setting(None, "Write the results to this file as JSON.")
RESULTS_PAGE = setting(None, "Write the results as a page.")
JSON = setting(False, "Print JSON.")
RESUME_FILE = setting(False, "Resume a stopped run of the same command.")
SHARD = setting(None, "One shard of the rows, such as 3/16 (see ownbert merge).", metavar="I/N")
OVERWRITE_FILES = setting(
    False, "Replace files with the same names in the folder.", option="--overwrite"
)
OVERWRITE = setting(False, "Replace the model in the output folder.", RUN)


def warn(text: str) -> None:
    """Print a note or warning to standard error."""
    say(text, err=True)


def require_file(*, resume: bool = False, shard: str | None = None) -> None:
    """Refuse options that need an output file, for commands that write to standard output."""
    if resume:
        raise InputError("{--resume} continues an output file; name it with {-o FILE}")
    if shard is not None:
        raise InputError("{--shard} writes one part of a file; name the file with {-o FILE}")


class Quiet(Command):
    """A command that reports what it does."""

    quiet: bool = setting(False, "Print errors only.")

    def note(self, text: str) -> None:
        """Print a note or warning to standard error; with --quiet only warnings."""
        if not (self.quiet and text.startswith("note: ")):
            say(text, err=True)

    def saved(self, done: str, path: Path) -> None:
        """Print what was done, such as "3 texts embedded", and where it was saved."""
        if not self.quiet:
            say("{done}; saved {output}", done, path)

    @contextmanager
    def counting(
        self, what: str, total: Callable[[], int | None] = lambda: None
    ) -> Iterator[Callable[[int], None]]:
        """Show a running count and its rate on a terminal; the callback receives the number so far.

        Args:
            total: function that returns the final number, for a bar and the remaining time, or
                None if it is unknown. Called only if the bar is shown.
        """
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Any) -> Text:
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{speed:,.0f}/s")

        output = console(stderr=True)
        if self.quiet or not output.is_terminal:
            yield lambda count: None
            return
        number = total()
        bar = (SpinnerColumn(),) if number is None else (BarColumn(bar_width=None),)
        left = () if number is None else (Remaining(),)
        columns = (*bar, TextColumn("{task.description}"), Rate(), *left)
        # Standard output is reserved for answers; other output is printed above the bar. The bar
        # is transient, because the command prints a summary.
        with Progress(*columns, console=output, expand=True, transient=True) as progress:
            task = progress.add_task(translated(what), total=number)

            def update(count: int) -> None:
                shown = translated("{count:,} {what!t}", count, what)
                if number is not None:
                    shown = translated("{count:,} of {total:,} {what!t}", count, number, what)
                progress.update(task, completed=count, description=shown)

            yield update


class Training(Quiet):
    """A command that trains with a recipe."""

    keeps_memory = True

    output: Path | None = setting(
        None, "Folder for the model.", required=Message("{-o} is needed: the folder for the model")
    )
    overrides: list[str] | None = argument(
        None,
        "Any setting of the recipe, such as optim.weight_decay=0.1 (--dry-run lists all).",
        "[SECTION.NAME=VALUE]...",
    )
    resume: bool = setting(
        False,
        "Resume from the last saved state in the output folder; start over if there is none.",
        RUN,
    )
    overwrite: bool = OVERWRITE
    config: Path | None = setting(
        None, "A recipe.yaml to start from; options and overrides take precedence."
    )
    dry_run: bool = setting(False, "Print the settings, counts and the first examples, then exit.")

    settings: dict[str, Any]

    @property
    def recipe(self) -> dict[str, Any]:
        """The arguments that a recipe is made from."""
        return {"config": self.config, "overrides": self.overrides or (), **self.settings}

    @property
    def how(self) -> dict[str, bool]:
        """The arguments of a run that are not settings of its recipe."""
        return self.values("resume", "overwrite", "quiet")


class TextFiles(Command):
    """Texts in files."""

    text_column: str | None = TEXT_COLUMN
    encoding: str | None = ENCODING
    device: str = DEVICE


class TaskRows(Command):
    """Rows of the task of a fine-tuned model."""

    text_column: str | None = TASK_TEXT
    second_column: str | None = TASK_SECOND
    encoding: str | None = ENCODING
    device: str = DEVICE
    network: bool = NETWORK

    @property
    def columns(self) -> ColumnNames:
        """The named columns."""
        return ColumnNames(self.text_column, self.second_column)

    @property
    def compute(self) -> dict[str, Any]:
        """The arguments that choose the columns and the model."""
        return {"columns": self.columns, **self.values("device", "network")}


class LabelledTaskRows(TaskRows):
    """Labelled rows of the task of a fine-tuned model."""

    label_column: str | None = TASK_LABEL
    skip_unlabelled: bool = setting(
        False,
        "Leave out rows without a label or number, and report how many there are; without it such "
        "rows are an error.",
    )

    @property
    def columns(self) -> ColumnNames:
        return ColumnNames(self.text_column, self.second_column, self.label_column)


class Abstaining(Command):
    """Predictions that may be rejected, or that are sets of labels."""

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


class Ray(Command):
    """Where a command runs: locally, or on Ray, with one output file per part."""

    output: Path
    runner: str = setting(
        "local", "local, or ray, where -o is a folder (see --help-all).", shown=False
    )
    workers: int | None = setting(
        None,
        "With --runner ray: number of worker processes, each with its own model, on this machine "
        "or on the cluster at RAY_ADDRESS.",
        shown="as many as the cores allow",
        rare=True,
        check=between(1, limits.SHARDS, "[]"),
    )
    threads: int | None = setting(
        None,
        "With --runner ray: threads, and cores, per worker.",
        shown="1",
        rare=True,
        check=between(1, limits.PROCESSES, "[]"),
    )
    part_rows: int | None = setting(
        None,
        "With --runner ray: rows per part; after a stop, only unfinished parts are computed again.",
        shown="8192",
        rare=True,
        check=between(1, limits.COUNT, "[]"),
    )
    # What Ray does not support; files are split by bytes.
    encoding: str | None = RARE_ENCODING
    engine: str | None = ENGINE
    shard: str | None = SHARD

    def ray_options(self, inputs: Sequence[str]) -> dict[str, int] | None:
        """The options of --runner ray; None for the local runner.

        Args:
            inputs: names of the inputs.

        Raises:
            InputError: the runner does not exist, or does not support an option.
        """
        given = self.values("workers", "threads", "part_rows")
        options = {name: value for name, value in given.items() if value is not None}
        known("local", "ray")("--runner", self.runner)
        if self.runner == "local":
            for name in options:
                raise InputError("--{name} requires {--runner} ray", name.replace("_", "-"))
            return None
        if str(self.output) == "-":
            raise InputError("{--runner} ray writes a folder; name it with {-o FOLDER}")
        if not inputs or "-" in inputs:
            raise InputError("{--runner} ray reads files; name files or folders")
        if self.shard is not None:
            raise InputError("{--shard} and {--runner} ray cannot be combined; use one of them")
        if self.engine is not None:
            raise InputError("{--runner} ray supports only torch; omit {--engine}")
        if self.encoding is not None:
            raise InputError(
                "{--runner} ray reads only UTF-8; save the files as UTF-8, and omit {--encoding}"
            )
        return options


def named_metrics(values: Mapping[str, float]) -> Iterator[str]:
    """Metrics with their names."""
    from ownbert.train.metric_names import decimals, shown_name

    return (f"{translated(shown_name(n))} {decimals(v, 4)}" for n, v in values.items())


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


def given_input(
    texts: Sequence[str] | None, data: Path | None, *, missing: str
) -> "Path | list[str] | Iterator[str]":
    """Determine the input of a command: a file, texts, or lines of standard input.

    Args:
        texts: arguments; a single one that names a file is the file, and - is standard input.
        data: file given by an option; - is standard input.
        missing: message if standard input is a terminal.

    Raises:
        InputError: both arguments and the option are given, or there is no input.
    """
    if texts and data is not None:
        raise InputError("{data} and {value!r} are both given; give one of them", data, texts[0])
    named = [str(data)] if data is not None else list(texts or ())
    if named == ["-"] or not named:
        if not named and sys.stdin.isatty():
            raise InputError(missing)
        return _stdin_lines()
    if data is not None:
        return data
    inputs = [_text_or_file(argument) for argument in named]
    files = [path for path in inputs if isinstance(path, Path)]
    if files and len(inputs) > 1:
        raise InputError(
            "{files} is a file among {count} arguments; give one file, or only texts",
            files[0],
            len(inputs),
        )
    return files[0] if files else named


def given_texts(
    texts: Sequence[str] | None, columns: ColumnNames, model: Path, *, missing: str
) -> Any:
    """Like ``given_input``, for commands that read any number of files, folders and globs. Texts
    become a table with the named columns; the folder ``model`` is checked before standard input
    is read."""
    from ownbert.checkpoint import describe
    from ownbert.tables.memory import Lines, table_of

    rows: Any = list(texts or ())
    if rows in ([], ["-"]):
        lines: Any = given_input(rows, None, missing=missing)
        describe(model)
        rows = Lines(lines)
    else:
        inputs = [Path(row) if glob(row) else _text_or_file(row) for row in rows]
        files = [path for path in inputs if isinstance(path, Path)]
        if files and len(files) < len(inputs):
            raise InputError(
                "no such file: {texts} (but {files} is a file; give only files, or only texts)",
                next(text for text in inputs if isinstance(text, str)),
                files[0],
            )
        if files:
            return files
    names = positional_names([TEXT], columns, labelled=False)
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
