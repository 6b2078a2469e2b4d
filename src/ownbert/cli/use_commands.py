"""Commands that use a model on texts: predict, evaluate, embed, score, fill, merge."""

from array import array
from collections.abc import Callable, Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.command import argument
from ownbert.exceptions import InputError, counted
from ownbert.files.writing import together
from ownbert.language import translated
from ownbert.language.messages import Message, join
from ownbert.settings import changed, setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import console, echo, print_rows, say

if TYPE_CHECKING:
    from ownbert.inference.fill_mask import Filled, Mask
    from ownbert.tasks.metrics import Scores


class PredictCommand(o.Abstaining, o.TaskRows, o.Ray, o.Quiet):
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

    keeps_memory = True

    folder: Path = o.FINETUNED_FOLDER
    texts: list[str] | None = o.TEXTS_OR_FILE
    data: Path | None = o.DATA
    output: Path = o.ROWS_FILE
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
        None, "Input columns copied to the output: id,date, or all.", metavar="COLUMNS"
    )
    id_column: str | None = setting(
        None,
        "Column with ids, written to the output instead of texts.",
        shown="id, guid, uid, uuid, ..., if present",
    )
    encoding: str | None = o.RARE_ENCODING
    precision: str | None = o.FOLDER_PRECISION
    resume: bool = o.RESUME_FILE

    def run(self) -> None:
        from ownbert.inference.opened import refuse_missing
        from ownbert.tables.memory import Lines
        from ownbert.tasks.task import DEFAULT

        names = [*(self.texts or ()), *([str(self.data)] if self.data is not None else [])]
        bulk = self.ray_options(names)
        given = self.given(
            *("folder", "texts", "data", "output", "runner", "workers", "threads", "part_rows"),
            *("engine", "shard", "resume", "encoding", "quiet"),
        )
        given |= {"top_k": DEFAULT if self.top_k is None else self.top_k, "say": self.note}
        if bulk is not None:
            self._predict_with_ray(names, bulk | given)
            return
        nothing = (
            'nothing to predict; give a file, a text, such as ownbert predict FOLDER "a text", or '
            "lines on standard input"
        )
        inputs: Any = o.given_input(self.texts, self.data, missing=nothing)
        if isinstance(inputs, Iterator):
            inputs = Lines(inputs)
        if str(self.output) != "-":
            self._predict_to_file(inputs, given)
            return
        o.require_file(resume=self.resume, shard=self.shard)
        if isinstance(inputs, Path):
            refuse_missing(inputs)
        self._print_predictions(inputs, given["top_k"])

    def _predict_with_ray(self, names: list[str], given: dict[str, Any]) -> None:
        from ownbert.bulk.ray_runner import run_on_ray

        if given.pop("calibrate") is not None:
            raise InputError(
                "{--calibrate} cannot be combined with {--runner} ray; calibrate beforehand"
            )
        given["resume"] = self.resume
        with self.counting("rows predicted") as progress:
            count = run_on_ray(
                "predict", self.folder, names, self.output, progress=progress, **given
            )
        self.saved(Message("{count} predicted", counted(count, "row")), self.output)

    def _predict_to_file(self, inputs: Any, given: dict[str, Any]) -> None:
        from ownbert.inference.predict import count_rows, predict
        from ownbert.inference.shards import as_shard

        shard = as_shard(self.shard)

        def total() -> int | None:
            rows = count_rows(inputs)
            return rows if rows is None or shard is None else shard.share(rows)

        given |= {"engine": self.engine, "resume": self.resume, "shard": shard}
        with self.counting("rows predicted", total) as progress:
            count = predict(self.folder, inputs, self.output, progress=progress, **given)
        written = self.output if shard is None else shard.path(self.output)
        self.saved(Message("{count} predicted", counted(count, "row")), written)

    def _print_predictions(self, inputs: Any, top_k: Any) -> None:
        from ownbert.inference.engines import Compute, say_each
        from ownbert.inference.open_folder import open_folder
        from ownbert.inference.pipeline import output_options
        from ownbert.inference.predict import RowPredictions

        columns = ColumnNames(self.text_column, self.second_column, id=self.id_column)
        compute = Compute(self.device, self.precision, self.engine, self.network)
        opened = open_folder(self.folder, compute, columns=columns)
        options = output_options(
            *(top_k, self.threshold, self.probabilities, self.unknown, self.coverage, self.keep)
        )
        rows = RowPredictions(
            opened,
            inputs,
            columns=columns,
            options=options,
            calibrate=self.calibrate,
            say=self.note,
        )
        say_each(opened.notes(), self.note)
        print_rows(rows)
        say_each(opened.warnings(), self.note)


_LABELS = 100  # most labels in the table
_MARKS = "warning: ", "note: "


class EvaluateCommand(o.Abstaining, o.LabelledTaskRows, o.Quiet):
    """Evaluate a fine-tuned model for any task on labelled rows.

    Labels, tags and images: accuracy or F1, and scores per label. Numbers and similarities:
    correlations. Answers in texts: exact match and F1. Choices: accuracy. Matching texts: the
    rank of the correct one.

    With --unknown and --coverage: the share of unknown rows and the accuracy on the others, the
    share of label sets with the correct label and their size.

    Example: ownbert evaluate runs/clf test.csv

    Example: ownbert evaluate runs/clf test.csv --unknown 0.05 --html risk.html

    Example: ownbert evaluate runs/clf test.csv --threshold yes=recall:0.9 --save-threshold
    """

    keeps_memory = True

    folder: Path = o.FINETUNED_FOLDER
    file: Path | None = argument(
        None,
        "Labelled rows: csv, tsv, jsonl or parquet; CoNLL columns (tag), SQuAD JSON (answer), or a "
        "folder of class folders, IDX or .npz (image); also .gz.",
        "FILE",
    )
    data: Path | None = o.DATA
    output: Path | None = setting(
        None,
        "Write the metrics to this file as JSON, and next to it the confusion matrix and, for two "
        "labels, curves as PNG.",
    )
    precision: str | None = o.FOLDER_PRECISION
    out_of_scope: Path | None = setting(
        None, "Texts with none of the labels, to measure how many of them --unknown refuses."
    )
    positive: str | None = setting(
        None,
        "The label that F1, ROC AUC and average precision are about.",
        metavar="LABEL",
        shown="as in training",
    )
    threshold: str | None = setting(
        None, "From which probability to predict a label: yes=0.9, yes=recall:0.9.", shown=False
    )
    save_threshold: bool = setting(False, "Store the threshold in the folder.")
    html: Path | None = setting(
        None, "Write a page with the metrics and the error rate by share of texts answered."
    )

    def run(self) -> None:
        from ownbert.files.folders import refuse_foreign
        from ownbert.finetuning.finetuned_card import CONFUSION, draw_confusion
        from ownbert.inference.evaluate import evaluate
        from ownbert.inspect.result_pages import RANKING_CURVES, draw_ranking, write_risk_page

        if (self.file is None) == (self.data is None):
            raise InputError("a file of labelled rows is needed: evaluate FOLDER FILE")
        pictures: list[Path] = []
        if (output := self.output) is not None:
            names = [f"{output.stem}.{name}" for name in (CONFUSION, RANKING_CURVES)]
            pictures = [output.with_name(name) for name in names]
            refuse_foreign(output.parent, names, signs=[output.name])
        message = None
        given = self.given("file", "data", "html", "quiet")
        with together():
            with self.counting("rows evaluated") as progress:
                given |= {"progress": progress, "say": self._warn}
                scores = evaluate(data=self.file or self.data, **given)
            if pictures:
                message = draw_confusion(pictures[0], scores)
                draw_ranking(pictures[1], scores)
            if self.html is not None:
                write_risk_page(self.html, scores, title=self.folder.name)
        if message is not None and not self.quiet:
            say(message, err=True)
        if not self.quiet:
            _show_scores(scores)

    def _warn(self, text: str) -> None:
        self.note(text if text.startswith(_MARKS) else Message("warning: {line!t}", text))


def _show_scores(scores: "Scores") -> None:
    """Print the scores of each label, the most frequent confusions, and the metrics."""
    from ownbert.finetuning.finetuned_card import most_confused

    if scores.labels:
        _show_labels(scores)
    if confused := most_confused(scores):
        say("most often confused: {confused}\n", join(confused, "; "))
    for level in scores.levels:
        line = "level {level} of the labels, {labels:,} different: {metrics}"
        say(line, level.level, level.labels, list(o.named_metrics(level.values)))
    if (ranking := scores.ranking) is not None and ranking.complete:
        line = "positive label: {label}; lift {lift:.2f} in the first 10% of rows\n"
        say(line, ranking.positive, ranking.lift(0.1))
    echo("   ".join(o.named_metrics(scores.values)))


def _show_labels(scores: "Scores") -> None:
    from rich.table import Table
    from rich.text import Text

    from ownbert.train.metric_names import shown_label_metric

    table = Table(translated("label"), title_justify="left", box=None, pad_edge=False)
    for name in ("precision", "recall", "F1", "support"):
        table.add_column(translated(name), justify="right")
    for row in scores.labels[:_LABELS]:
        values = (row.precision, row.recall, row.f1)
        figures = (shown_label_metric(value, row.support) for value in values)
        table.add_row(Text(row.label), *figures, f"{row.support:,}")
    console().print(table)
    if (more := len(scores.labels) - _LABELS) > 0:
        say("and {labels} more; -o metrics.json has them all", counted(more, "label"))
    echo()


class EmbedCommand(o.Ray, o.Quiet):
    """Embed texts: one vector per text, in input order.

    Texts are the rows of tables or the lines of plain text, including empty ones. Pooling,
    length and normalisation follow the configuration of sentence-transformers in the folder, if
    there is one.

    Example: ownbert embed runs/bert corpus.txt.gz -o vectors.npy

    Example: ownbert embed runs/bert "a text" "another one"
    """

    keeps_memory = True

    folder: Path = o.MODEL_FOLDER
    texts: list[str] | None = o.TEXTS_OR_FILES
    output: Path = setting(
        Path("-"),
        "vectors.npy (a matrix), .parquet or .jsonl (one row per text, with the text); - is "
        "standard output.",
    )
    text_column: str | None = o.TEXT_COLUMN
    id_column: str | None = o.ID_COLUMN
    pooling: str | None = setting(None, "mean, first or max.", shown="the model's, else mean")
    normalize: bool | None = setting(
        None,
        "Normalise vectors to length 1.",
        option="--normalize/--no-normalize",
        shown="as in the model, else no",
    )
    max_length: int | None = o.MAX_LENGTH
    batch_tokens: int | None = setting(
        None,
        "Tokens per forward pass.",
        shown="4096; 32768 on a GPU",
        check=between(1, limits.BATCH_TOKENS, "[]"),
    )
    device: str = o.DEVICE
    precision: str | None = o.FOLDER_PRECISION
    resume: bool = setting(False, "With --runner ray: resume a stopped run.")

    def run(self) -> None:
        from ownbert.inference.engines import Compute
        from ownbert.inference.shards import as_shard
        from ownbert.inference.vector_files import count_texts, embed, embedded_rows

        bulk = self.ray_options(self.texts or ())
        options = self.values("pooling", "normalize", "max_length", "batch_tokens")
        options["say"] = self.note
        given = {**options, **self.values("text_column", "id_column", "device", "precision")}
        if bulk is not None:
            from ownbert.bulk.ray_runner import run_on_ray

            given |= {**bulk, "resume": self.resume}
            with self.counting("texts embedded") as progress:
                count = run_on_ray(
                    "embed", self.folder, self.texts, self.output, progress=progress, **given
                )
            self.saved(Message("{count} embedded", counted(count, "text")), self.output)
            return
        if self.resume:
            raise InputError(
                "embed can resume only with {--runner} ray; omit {--resume}, or use {--shard}"
            )
        columns = ColumnNames(self.text_column, id=self.id_column)
        nothing = (
            'nothing to embed; give files, texts, such as ownbert embed FOLDER "a text", or lines '
            "on standard input"
        )
        inputs = o.given_texts(self.texts, columns, self.folder, missing=nothing)
        if str(self.output) == "-":
            o.require_file(shard=self.shard)
            compute = Compute(self.device, self.precision, self.engine)
            print_rows(embedded_rows(self.folder, inputs, columns, compute, **options))
            return
        shard = as_shard(self.shard)
        # Read everything once, to detect an error in the last line now and not after hours.
        total = count_texts(inputs, columns)
        if shard is not None and total is not None:
            total = shard.share(total)
        given |= {"engine": self.engine, "shard": shard}
        with self.counting("texts embedded", lambda: total) as progress:
            count = embed(self.folder, inputs, self.output, progress=progress, **given)
        written = self.output if shard is None else shard.path(self.output)
        self.saved(Message("{count} embedded", counted(count, "text")), written)


class ScoreCommand(o.TextFiles, o.Quiet):
    """Score how surprising texts and their tokens are to a pretrained model.

    Each token is masked once and predicted from the others. The surprisal of a text is the mean
    of -ln p over its tokens; its perplexity is the exponential of the surprisal.

    With --normal, texts are also compared with normal ones: unseen tokens, the order of tokens,
    their counts relative to the nearest normal text, and the length. The score sums up how rare
    each of these is. Texts above a threshold are flagged, with reasons.

    Example: ownbert score runs/bert new.txt --normal normal.txt -o scores.jsonl

    Example: ownbert score runs/bert "a text" --tokens
    """

    keeps_memory = True

    folder: Path = argument(..., "Folder of a pretrained model.")
    texts: list[str] | None = o.TEXTS_OR_FILES
    output: Path = o.ROWS_FILE
    normal: list[Path] | None = setting(
        None,
        "Normal texts to compare with; their profile is saved in the folder (normal.npz) and used "
        "in later runs.",
        option="--normal --fit",
        shown="as fitted",
    )
    false_alarms: float | None = setting(
        None,
        "Share of normal texts that may be flagged.",
        shown="as fitted, else 0.01",
        check=between(0, 1),
    )
    tokens: bool = setting(False, "Include the surprisal of each token in the output.")
    passes: int | None = setting(
        None,
        "Passes per text; in each of n passes every n-th token is masked.",
        shown="6",
        check=between(1, limits.LENGTH, "[]"),
    )
    exact: bool = setting(False, "Mask one token in each pass.")
    html: Path | None = setting(
        None, "Write a page with the most unusual texts, 200 at most, with coloured tokens."
    )
    text_column: str | None = o.TEXT_COLUMN
    id_column: str | None = o.ID_COLUMN
    engine: str | None = o.ENGINE
    resume: bool = o.RESUME_FILE
    shard: str | None = o.SHARD

    def run(self) -> None:
        from ownbert.inference.score import NORMAL, ScoredRows, score
        from ownbert.inference.shards import as_shard
        from ownbert.inspect.explain.explanation import MostUnusual

        shard, to_file, html = as_shard(self.shard), str(self.output) != "-", self.html
        if not to_file:
            o.require_file(resume=self.resume, shard=self.shard)
        if html is not None and self.resume:
            raise InputError("a page needs all rows: omit {--resume} or {--html}")
        columns = ColumnNames(self.text_column, id=self.id_column)
        inputs: Any = None
        if self.texts or to_file or html or not self.normal:
            nothing = (
                'nothing to score; give files, texts, such as ownbert score FOLDER "a text", or '
                "lines on standard input"
            )
            inputs = o.given_texts(self.texts, columns, self.folder, missing=nothing)
        unusual = MostUnusual()
        given = self.values("false_alarms", "tokens", "passes", "exact", "device", "engine")
        given |= {"normal": self.normal or None, "say": self.note, "each": unusual}
        count, rows = 0, None
        with self.counting("texts scored") as progress:
            given["progress"] = progress
            if inputs is None or not to_file:
                rows = ScoredRows(self.folder, inputs, columns=columns, **given)
            else:
                given |= {**columns.settings(), "resume": self.resume, "shard": shard}
                count = score(self.folder, inputs, self.output, **given)
        if self.normal and not self.quiet:
            say("saved {output}", self.folder / NORMAL, err=not to_file)
        if rows is not None and html is None:
            print_rows(rows)
        elif rows is not None:
            for _ in rows:  # the page collects the rows
                pass
        done = Message("{count} scored", counted(count or unusual.count, "text"))
        # A resumed run has seen only the last texts.
        if unusual.flagged is not None and unusual.count >= count:
            done += Message(", {count:,} flagged", unusual.flagged)
        if to_file and inputs is not None:
            self.saved(done, self.output if shard is None else shard.path(self.output))
        if html is not None:
            unusual.write(html, title=self.folder.name)
            if not self.quiet:
                template = "saved {output}" if to_file else "{done}; saved {output}"
                say(template, *([] if to_file else [done]), html, err=not to_file)


_BAR = 24  # characters of the longest bar
_NOTHING = 'no text to fill; give one, such as "12 [MASK] 9", or a file'


class FillCommand(o.Command):
    """Fill the masks in texts: the most probable tokens with their probabilities.

    Write masks as [MASK] or <mask>, with any tokenizer. If a text has several masks, each is
    filled while the others stay masked.

    Example: ownbert fill runs/bert "12 [MASK] 845 9"
    """

    folder: Path = argument(..., "Folder of a pretrained model.")
    texts: list[str] | None = o.TEXTS_OR_FILE
    data: Path | None = o.DATA
    top: int = setting(
        5, "Number of candidates for each mask.", check=between(1, limits.VOCABULARY, "[]")
    )
    text_column: str | None = o.TEXT_COLUMN
    json: bool = changed(o.JSON, help="Print JSON, one line per text.")
    device: str = o.DEVICE
    engine: str | None = o.ENGINE

    def run(self) -> None:
        from ownbert.inference.fill_mask import Filler

        texts, where = self._texts()
        filler = Filler(self.folder, top=self.top, device=self.device, engine=self.engine)
        if filler.engine.note:
            say(filler.engine.note, err=True)
        output = console()
        for index, filled in enumerate(filler(texts, where=where)):
            if self.json:
                echo(dumps(filled.as_json(), ensure_ascii=False))
            else:
                if index:
                    output.print()
                _show_filled(filled, output)

    def _texts(self) -> tuple[Iterator[str], Callable[[int], str]]:
        """The texts to fill, without empty lines, and a function that names them by their
        number."""
        from ownbert.tables.columns import read_numbered_texts
        from ownbert.tables.tables import not_empty, place

        given = o.given_input(self.texts, self.data, missing=_NOTHING)
        source, rows = "standard input", enumerate(given, 1) if not isinstance(given, Path) else ()
        if isinstance(given, Path):
            read = read_numbered_texts(given, ColumnNames(self.text_column))
            source, rows = given, ((line, text) for line, _, text in read)
        lines = array("q")  # numbers of the texts that were read

        def stripped() -> Iterator[str]:
            for line, text in rows:
                if text.strip():
                    lines.append(line)
                    yield text.strip()

        def where(number: int) -> str:
            line = lines[number - 1]
            return Message("text {line}", line) if isinstance(given, list) else place(source, line)

        return not_empty(stripped(), _NOTHING), where


def _show_filled(filled: "Filled", output: Any) -> None:
    from rich.text import Text

    output.print(Text(filled.text, style="bold"))
    for number, mask in enumerate(filled.masks, 1):
        if len(filled.masks) > 1:
            output.print(Text(translated("mask {number} of {count}", number, len(filled.masks))))
        output.print(_candidates(mask))
    output.print(Text(translated("filled: {filled}", filled.filled)))


def _candidates(mask: "Mask") -> Any:
    """A table of tokens, their probabilities, and bars of proportional length."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=40)
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    for candidate in mask.candidates:
        word = candidate.token if candidate.token.startswith("##") else candidate.text
        p = candidate.probability
        full, eighths = divmod(round(8 * _BAR * p), 8)
        bar = Text("█" * full + " ▏▎▍▌▋▊▉"[eighths].strip(), style="cyan")
        table.add_row(Text(f"  {word}"), f"{p:.2%}" if p >= 1e-4 else f"{p:.1e}", bar)
    return table


class MergeCommand(o.Quiet):
    """Merge the parts written by predict, embed or score with --shard.

    All parts must exist, be complete, and come from the same model, input and options; they are
    kept. The rows of the result are in input order.

    Example: ownbert merge predictions.jsonl
    """

    output: Path = argument(
        ..., "The output file (-o) of the commands with --shard.", metavar="OUT"
    )
    parts: Path | None = setting(None, "Folder of the parts.", shown="the folder of OUT")

    def run(self) -> None:
        from ownbert.inference.shards import merge

        with self.counting("rows joined") as progress:
            count = merge(self.output, parts=self.parts, progress=progress)
        self.saved(Message("{count} joined", counted(count, "row")), self.output)
