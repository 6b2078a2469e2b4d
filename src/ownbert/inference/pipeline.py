"""A trained folder in memory, with the inputs and outputs of transformers.pipeline."""

import copy
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.checks import between
from ownbert.exceptions import InputError, named_repr, other_names
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import read_json
from ownbert.inference.decisions import Doubts, output_rows, with_thresholds
from ownbert.inference.engines import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Opened, characters, given_rows, read_labelled_rows
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import REPORT
from ownbert.tables.columns import ColumnNames, usual_names
from ownbert.tables.memory import as_record, is_list, items
from ownbert.tasks.metrics import Scores
from ownbert.tasks.row_network import blocks
from ownbert.tasks.rows import OutputOptions, Row
from ownbert.tasks.task import DEFAULT, Task

# Rows per block of an iterator in ``stream``.
_ROWS = 1024
_PACKED = "rows are always packed by length and truncated at the model's limit; omit it"
# Options of transformers.pipeline, which are not columns of a row, with advice.
_OF_PIPELINES = {
    **dict.fromkeys(("batch_size", "padding", "truncation", "max_length"), _PACKED),
    "return_all_scores": "use top_k=None",
    "aggregation_strategy": "words and entities are always returned; omit it",
}
# Metrics that estimators of scikit-learn call their score.
_OF_SKLEARN = ("accuracy", "subset_accuracy", "r2")


class Predictor:
    """A folder of ``finetune``, ``fit`` or ``probe``, loaded once, that predicts rows in memory.

    The blend is used if the folder has one. Rows are computed in packed batches. Calls from several
    threads are serialised.

    Args:
        folder: folder of a fine-tuned model, an ensemble or a blend; or an opened folder, in which
            case the other arguments are ignored.
        text_column: column of the text; by default as in training.
        second_column: column of the second text; by default as in training.
        device: auto, cpu or cuda.
        precision: float32 (default), bfloat16 or auto; None: the folder decides. In float32 a
            prediction does not depend on the other rows.
        network: use only the network of a ``fit`` folder.
        engine: torch, onnx or openvino; auto uses the fastest one installed. By default torch, or
            the engine of an exported folder.
        threshold: probabilities from which labels are predicted: ``{"yes": 0.9}`` or
            ``{"yes": "recall:0.9"}``, see ``ownbert fit``; for several labels per row also one
            number for all. By default those of the folder.

    Attributes:
        labels: labels in the order of the columns of ``predict_proba``.

    Raises:
        InputError: the folder cannot be used.
    """

    @in_float32
    def __init__(
        self,
        folder: str | Path | Opened,
        *,
        text_column: str | None = None,
        second_column: str | None = None,
        device: str = "auto",
        precision: str | None = "float32",
        network: bool = False,
        engine: str | None = None,
        threshold: Any = None,
        **others: Any,
    ) -> None:
        _refuse_options_of_pipelines(others)
        if others:
            raise TypeError(f"Predictor has no option {next(iter(others))!r}")
        if not isinstance(folder, Opened):
            compute = Compute(device, precision, engine, network)
            columns = ColumnNames(text_column, second_column)
            folder = open_folder(folder, compute, columns=columns)
        if threshold is not None:
            folder = with_thresholds(folder, threshold)
        self.rows_predictor, self.folder = folder, folder.folder
        self.labels = self.task.labels
        self._turn = threading.Lock()
        self._doubts: Doubts | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_turn", "_doubts")
        }

    def __repr__(self) -> str:
        return named_repr(self, self.folder, task=self.task.name, labels=self.labels)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Locks cannot be pickled, and calibration data are read again.
        self.__dict__.update(state, _turn=threading.Lock(), _doubts=None)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "Predictor":
        """Same as ``Predictor(folder)``."""
        return cls(folder, **options)

    def __fspath__(self) -> str:
        """The folder, so that functions that take a folder accept a predictor."""
        return str(self.folder)

    @property
    def task(self) -> Task:
        """The task that the folder was trained for."""
        return self.rows_predictor.task

    def __call__(
        self,
        data: Any = None,
        /,
        *,
        top_k: int | None = DEFAULT,
        threshold: Any = None,
        probabilities: bool = False,
        unknown: float | None = None,
        coverage: float | None = None,
        **columns: Any,
    ) -> Any:
        """Predict one or several rows.

        Args:
            data: a text, a pair of texts as a tuple or a mapping, or an image; several in a list, a
                Series or an array; a DataFrame, a datasets.Dataset, a mapping of columns; or a
                ``Path`` of a file with rows (a string is a text).
            top_k: number of labels per row, most probable first; None: all.
            threshold: minimum score; labels below it are left out; or thresholds of labels, as for
                the whole predictor.
            probabilities: whether to include the probabilities of all labels.
            unknown: share of in-scope texts that may be rejected (see ``calibrate``).
            coverage: share of rows whose label set contains the right label, such as 0.9.
            columns: one row instead of ``data``, as in ``question=..., context=...``.

        Returns:
            The format of ``transformers.pipeline``: for one text a list with a dict of label and
            score (classify, regress) or of all positive labels (multilabel); a dict or a list of
            dicts for other tasks; for several rows a list of these. With options other than
            ``top_k``, each row is one dict, as in a file of ``predict``.

        Raises:
            InputError: the rows do not fit the task, or the task lacks the options.
        """
        requested = output_options(top_k, threshold, probabilities, unknown, coverage)
        predictor, options = self._deciding(requested)
        answers = predictor._answering(options, top_k)
        single, source = self._source(data, columns)
        if source is None:
            return []
        predictions = list(answers(self.task.stream(source)))
        if not single:
            return predictions
        # A text-classification pipeline returns a list for one text, but not for one pair.
        odd = isinstance(data, str) and self.task.head == "classification"
        return predictions if odd and isinstance(predictions[0], dict) else predictions[0]

    def predict(
        self,
        data: Any,
        *,
        threshold: Any = None,
        unknown: float | None = None,
        coverage: float | None = None,
    ) -> Any:
        """Predict labels, values, choices or texts without scores, or lists of labels or tags.

        Args:
            data, coverage: see ``__call__``.
            threshold: thresholds of labels, as for the whole predictor.
            unknown: see ``__call__``; the prediction for a rejected text is None.

        Returns:
            An array with one prediction per row, or a list of lists (with ``coverage``, of label
            sets, or of lower and upper ends of numbers); for one row its prediction.
        """
        requested = OutputOptions(unknown=unknown, coverage=coverage, thresholds=threshold)
        predictor, options = self._deciding(requested)
        single, source = self._source(data, {})
        if source is None:
            return []
        rows = self.task.stream(source)
        if options.abstains:
            answers = predictor._answering(options, DEFAULT)(rows)
            predictions = [self._abstained(answer, coverage) for answer in answers]
        else:
            predictions = [self.task.plain(*decided) for decided in predictor._decided(rows)]
        if single:
            return predictions[0]
        listed = coverage is not None or isinstance(predictions[0], list)
        return predictions if listed else np.asarray(predictions)

    def _abstained(self, output: Mapping[str, Any], coverage: float | None) -> Any:
        """The prediction in an output row: a label or None, a label set, or the ends of an interval
        (of each column, if there are several)."""
        if output.get("unknown"):
            return None
        if "low" not in output:
            of_set = "possible" if self.task.label_sets else "labels"
            return output["label" if coverage is None else of_set]
        low, high = output["low"], output["high"]
        if isinstance(low, Mapping):
            return [(low[name], high[name]) for name in self.labels]
        return low, high

    def predict_proba(self, data: Any) -> Any:
        """Predict the probability of each label.

        Returns:
            (N, C) in the order of ``labels``, (C) for one row; for tags a list of (words, C), for
            multiple choice with varying numbers of choices a list of (choices).

        Raises:
            InputError: the task has no probabilities.
        """
        if not self.task.gives_probabilities:
            raise InputError("{name} gives no probabilities; use predict", self.task.name)
        single, source = self._source(data, {})
        if source is None:
            return np.zeros((0, len(self.labels)))
        rows = self.task.stream(source)
        probabilities = list(self._by_block(rows, lambda block: self.rows_predictor.raws(block)[0]))
        if single:
            return probabilities[0]
        alike = self.task.head != "tokens" and len({len(each) for each in probabilities}) == 1
        return np.stack(probabilities) if alike else probabilities

    def stream(
        self,
        data: Any,
        *,
        top_k: int | None = DEFAULT,
        threshold: Any = None,
        probabilities: bool = False,
    ) -> Iterator[Any]:
        """Yield predictions for rows that need not fit in memory, in their order.

        Args:
            data: a file, an iterator of rows, or any input of ``__call__``.
            top_k, threshold, probabilities: see ``__call__``.

        Raises:
            InputError: a row cannot be read.
        """
        predictor, options = self._deciding(output_options(top_k, threshold, probabilities))
        if isinstance(data, Iterable) and hasattr(data, "__next__"):
            given: Any = {"threshold": options.threshold, "probabilities": probabilities}
            for block in blocks(data, _ROWS, size=lambda row: 0):
                yield from predictor(block, top_k=top_k, **given)
            return
        if isinstance(data, str):
            data = Path(data)
        _, source = self._source(data, {})
        if source is not None:
            yield from predictor._answering(options, top_k)(self.task.stream(source))

    def calibrate(self, data: Any, labels: Any = None) -> "Predictor":
        """Calibrate ``unknown`` and ``coverage`` on labelled rows that were not used for training.

        The calibration is saved in the folder (held_out.npz) and used from then on.

        Args:
            data: labelled rows, see ``evaluate``.
            labels: labels of the rows, see ``evaluate``.

        Raises:
            InputError: a row cannot be read, or has an unknown label.
        """
        from ownbert.inference.calibrate import held_out_of

        data = data if labels is None else (data, labels)
        held_out_of(self.rows_predictor, Path(data) if isinstance(data, str) else data)
        self._doubts = None
        return self

    @property
    def classes_(self) -> np.ndarray:
        """Same as ``labels``; the name in scikit-learn."""
        return np.asarray(self.labels)

    def evaluate(self, data: Any, labels: Any = None) -> Scores:
        """Compute metrics on labelled rows; for the arguments see ``ownbert.evaluate``.

        Raises:
            InputError: a row cannot be read, or has an unknown label.
        """
        rows = read_labelled_rows(self.task, given_rows(data, labels), self.folder)
        return self.task.score(rows, self.decide(rows))

    def score(self, data: Any, labels: Any = None) -> float:
        """The ``score`` of scikit-learn: accuracy (of whole label sets, if rows have several), or
        R2 for numbers; for other tasks the main metric of ``evaluate``."""
        values = self.evaluate(data, labels).values
        return values[next((name for name in _OF_SKLEARN if name in values), next(iter(values)))]

    def leaderboard(self) -> list[dict[str, Any]]:
        """The models compared by ``fit``, as in report.json, best first.

        Raises:
            InputError: the folder has no ``fit`` report.
        """
        path = self.folder / REPORT
        report = read_json(path) if path.is_file() else {}
        rows = report.get("leaderboard")
        if not isinstance(rows, list):
            raise InputError("{folder} has no {report} from ownbert fit", self.folder, REPORT)
        sign = -1 if report.get("lower") else 1

        def sort_key(row: dict[str, Any]) -> float:
            value = row.get("score")  # missing in reports of earlier versions
            return sign * value if isinstance(value, int | float) else -np.inf

        return sorted((row for row in rows if isinstance(row, dict)), key=sort_key, reverse=True)

    def save(self, folder: str | Path) -> None:
        """Copy the folder's files needed for inference.

        Raises:
            InputError: the target is the folder itself, or a link points outside the folder.
        """
        from ownbert.inference.finished_files import copy_files, finished_files

        refuse_same(self.folder, folder)
        copy_files(self.folder, Path(folder), finished_files(self.folder))

    save_pretrained = save  # name in Transformers

    def __getattr__(self, name: str) -> Any:
        instead = other_names("Predictor").get(name)
        advice = f"; {instead}" if instead else ""
        raise AttributeError(f"Predictor has no attribute {name!r}{advice}")

    def rows(self, data: Any) -> list[Row]:
        """Convert any input of ``__call__`` to rows of the task.

        Raises:
            InputError: the rows do not fit the task.
        """
        _, source = self._source(data, {})
        return [] if source is None else list(self.task.stream(source))

    def outputs(self, rows: Sequence[Row], options: OutputOptions) -> list[Any]:
        """Predictions as rows of a file, without their texts."""
        return list(self._answering(options, DEFAULT)(rows))

    def decide(self, rows: Sequence[Row]) -> list[Any]:
        """The task's decision for each row, before conversion by ``task.answer``."""
        return [decided for decided, _ in self._decided(rows)]

    def warnings(self) -> list[str]:
        """Warnings about truncated rows and unknown words."""
        return list(self.rows_predictor.warnings())

    def _answering(
        self, options: OutputOptions, top_k: int | None
    ) -> Callable[[Iterable[Row]], Iterator[Any]]:
        """A function that turns rows into predictions."""
        if not options.given - {"top"}:
            return lambda rows: (
                self.task.answer(decided, row, top_k) for decided, row in self._decided(rows)
            )
        self.task.refuse_output_options(options)
        given = options, self.doubts(options)
        return lambda rows: self._by_block(
            rows, lambda block: output_rows(self.rows_predictor, block, *given)
        )

    def _deciding(self, options: OutputOptions) -> tuple["Predictor", OutputOptions]:
        """The predictor with the thresholds of the options, and the other options."""
        if options.thresholds is None:
            return self, options
        found = copy.copy(self)
        found._turn, found._doubts = self._turn, self._doubts
        found.rows_predictor = with_thresholds(self.rows_predictor, options.thresholds)
        return found, replace(options, thresholds=None)

    def doubts(self, options: OutputOptions) -> Doubts | None:
        """The ``Doubts`` required by the options; None if they are not required."""
        if not options.abstains:
            return None
        known = self._doubts
        found = known.with_options(options) if known else Doubts(self.rows_predictor, options)
        self._doubts = found
        return found

    def _decided(self, rows: Iterable[Row]) -> Iterator[tuple[Any, Row]]:
        return self._by_block(
            rows, lambda block: zip(self.rows_predictor(block), block, strict=True)
        )

    def _by_block(
        self, rows: Iterable[Row], work: Callable[[list[Row]], Iterable[Any]]
    ) -> Iterator[Any]:
        """What ``work`` returns for blocks of rows, one after the other."""
        for block in blocks(rows, size=characters):
            with self._turn:
                results = work(block)
            yield from results

    def _source(self, data: Any, columns: Mapping[str, Any]) -> tuple[bool, Any]:
        """Whether the input is a single row, and the input for the task; None if there are no
        rows."""
        if columns:
            if data is not None:
                _refuse_options_of_pipelines(columns)
                raise InputError("give the row or {columns}, not both", ", ".join(columns))
            data = columns
        elif data is None:
            raise InputError("no rows: give a text, several in a list, a table or a Path")
        reads_tables = not self.task.reads_arrays
        if reads_tables:
            if isinstance(data, os.PathLike):
                return False, Path(data)
            data = as_record(data, usual_names(self.task.column_specs, self.task.columns))
        if single := self.task.is_one_row(data):
            data = [data]
        elif reads_tables and is_list(data):
            data = items(data)
            if not data:
                return False, None
        return single, self.task.source(data, labelled=False)


def output_options(
    top_k: int | None = DEFAULT,
    threshold: Any = None,
    probabilities: bool = False,
    unknown: float | None = None,
    coverage: float | None = None,
    keep: str | Sequence[str] | None = None,
) -> OutputOptions:
    """Check the options of output rows."""
    top = None if top_k is DEFAULT else limits.VOCABULARY if top_k is None else top_k
    if top is not None:
        between(1, limits.VOCABULARY, "[]")("--top", top)
    score = thresholds = None  # the minimum score of predictions; thresholds of labels, as text
    if isinstance(threshold, Mapping):
        thresholds = json.dumps({str(k): str(v) for k, v in threshold.items()})
    elif threshold is not None:
        try:
            score = float(threshold)
        except ValueError:
            thresholds = str(threshold)
        else:
            between(0, 1, "[]")("--threshold", score)
    for name, share in (("unknown", unknown), ("coverage", coverage)):
        if share is not None:
            between(0, 1)(f"--{name}", share)
    columns = (keep,) if isinstance(keep, str) else tuple(keep or ())
    return OutputOptions(top, score, probabilities, unknown, coverage, columns, thresholds)


def _refuse_options_of_pipelines(given: Mapping[str, Any]) -> None:
    for name in given.keys() & _OF_PIPELINES.keys():
        raise InputError("there is no {name} here: {of_pipelines}", name, _OF_PIPELINES[name])
