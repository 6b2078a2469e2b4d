"""Regression on texts or pairs of texts. C target columns."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ownbert.exceptions import InputError, in_short
from ownbert.language.messages import Message, join
from ownbert.tables.columns import ColumnNames
from ownbert.tables.labels import LabelCells
from ownbert.tables.missing_values import is_missing_number
from ownbert.tables.name_lists import join_names
from ownbert.tables.number_notation import number_signs, point_at_thousands, with_point
from ownbert.tables.tables import Source, columns
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row
from ownbert.tasks.sentence_task import LOGITS, SentenceTask
from ownbert.tasks.task import DEFAULT

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.objectives.objective import Objective

_LARGEST = 1e15  # weights are float32, and squares must remain finite
# Predictions are reported as nearly constant if their standard deviation is below this share of the
# targets'. For least squares this share equals the correlation.
_NEARLY_CONSTANT = 0.05


class RegressionTask(SentenceTask):
    """One linear output per column, trained on standardised values and saved in the user's
    units."""

    name = "regress"
    purpose = "predicts a number for each text"
    transformers_lines = (LOGITS, "print(logits[0].tolist())")
    label_heading = "Numbers"
    problem_type = "regression"
    label_unit = "numbers"
    discrete = False
    output_options = frozenset({"coverage"})
    metrics = ("spearman", "pearson", "mae", "r2")
    is_missing = staticmethod(is_missing_number)
    # (C) undo the standardisation of outputs during training; 0 and 1 if these are in the user's
    # units, as those of finished models and of linear models.
    mean, std = np.zeros(1), np.ones(1)
    learnt = np.zeros(1), np.ones(1)  # (C) of the training targets

    def values(self) -> dict[str, Any]:
        values = super().values()
        if self.pair:  # the CrossEncoder of sentence-transformers would apply a sigmoid
            values["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return values

    def read(self, path: Source) -> list[Row]:
        names, table = self.read_table(path)
        places, columns_of_cells = [row.where for row in table], []
        for i, name in enumerate(names):
            values = [row.cells[i] for row in table]
            LabelCells(values, places, name).refuse_missing(numbers=True, training=not self.labels)
            texts = [value.strip() if isinstance(value, str) else "" for value in values]
            written = [text for text in texts if text]
            if number := point_at_thousands(written):
                raise InputError(
                    "{places}: column {column!r} has {number!r}, and its numbers below 1,000 have "
                    "no point, so the points seem to separate thousands; write {float:.0f}, or "
                    "{float2:g} if it is decimal",
                    places[texts.index(number)],
                    name,
                    number,
                    float(number) * 1000,
                    float(number),
                )
            # Decimal points instead of commas, and no thousands separators.
            signs = number_signs(written, sure=True)
            if signs is not None and any("," in text for text in written):
                values = [with_point(v, *signs) if isinstance(v, str) else v for v in values]
            columns_of_cells.append(map(_number, values, [name] * len(values), places))
        self.labels = self.labels or names
        return [
            Row(row.line, row.texts, numbers, features=row.features)
            for row, numbers in zip(table, zip(*columns_of_cells, strict=True), strict=True)
        ]

    def find_columns(
        self, path: Source, named: ColumnNames | None = None, *, labelled: bool = True
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        named, own = named or self.columns, self.labels
        if own and named.label is None and {*own} <= {*columns(path)}:
            # Use the columns of the training rows, whatever other numeric columns there are.
            named = replace(named, label=own[0] if len(own) == 1 else join_names(own))
        texts, names, features = super().find_columns(path, named, labelled=labelled)
        if labelled and own and len(names) != len(own):
            raise InputError(
                "{path}: {count} columns of numbers ({names}), but the model has {count2} "
                "({own}); name the same number with {--label-column}",
                path,
                len(names),
                ", ".join(names),
                len(own),
                ", ".join(own),
            )
        return texts, names, features

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        numbers = np.asarray([row.target for row in rows])
        for name, column in zip(self.labels, numbers.T, strict=True):
            if column.min() == column.max():
                raise InputError(
                    "{source}: all rows have {column:g} in column {name!r}; different numbers "
                    "are needed",
                    source,
                    column[0],
                    name,
                )
        self.learnt = numbers.mean(0), numbers.std(0)

    def explained_count(self, tokens: int) -> int:
        return len(self.labels)

    def target(self, row: Row) -> np.ndarray:
        """(C) standardised values."""
        mean, std = self.learnt
        return ((np.asarray(row.target) - mean) / std).astype(np.float32)

    def objective(self, model: "Model") -> "Objective":
        from ownbert.tasks.row_objectives import RegressionObjective

        # A new model has standardised outputs until ``finish``.
        self.mean, self.std = self.learnt
        return RegressionObjective(loss=self.settings.loss)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> np.ndarray:
        return raw * self.std + self.mean

    def begin(self, model: "Model") -> None:
        mean, std = self.learnt
        self._change_units(model, 1 / std, -mean / std)

    def finish(self, model: "Model") -> "Model":
        """Rescale the last layer to the user's units."""
        self._change_units(model, self.std, self.mean)
        self.mean, self.std = np.zeros(len(self.labels)), np.ones(len(self.labels))
        return model

    def _change_units(self, model: "Model", factor: np.ndarray, offset: np.ndarray) -> None:
        """Multiply the outputs of a model by factors (C), and add offsets (C)."""
        import torch

        last: Any = model.heads[self.head].dense
        by, plus = (torch.as_tensor(x, device=model.device) for x in (factor, offset))
        with torch.no_grad():
            last.weight.copy_(last.weight * by[:, None])
            last.bias.copy_(last.bias * by + plus)

    def output_row(
        self, decided: np.ndarray, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        # The precision of float32.
        numbers = [float(f"{x:.7g}") for x in decided.tolist()]
        if len(numbers) == 1:
            return {"value": numbers[0]}
        return {"values": dict(zip(self.labels, numbers, strict=True))}

    def answer(self, decided: np.ndarray, row: Row, top_k: int | None = DEFAULT) -> Any:
        """The number, or all numbers in the order of the columns, whatever ``top_k``."""
        numbers = [float(f"{x:.7g}") for x in decided.tolist()]
        pairs = zip(self.labels, numbers, strict=True)
        answers = [{"label": name, "score": number} for name, number in pairs]
        return answers[0] if len(answers) == 1 and top_k is DEFAULT else answers

    def plain(self, decided: np.ndarray, row: Row) -> Any:
        numbers = decided.tolist()
        return numbers[0] if len(numbers) == 1 else tuple(numbers)

    def score(self, rows: Sequence[Row], decided: Sequence[np.ndarray]) -> Scores:
        truth = np.asarray([row.target for row in rows])
        return score_regression(truth, np.stack(decided), self.labels)

    def readable_target(self, row: Row) -> str:
        pairs = zip(self.labels, row.target, strict=True)
        return ", ".join(f"{name} {number:g}" for name, number in pairs)

    def label_distribution(self, rows: Sequence[Row]) -> str:
        numbers = np.asarray([row.target for row in rows])
        line = "{name} from {low:g} to {high:g}, mean {mean:.4g}, spread {spread:.4g}"
        return join(
            (
                Message(line, name, x.min(), x.max(), x.mean(), x.std())
                for name, x in zip(self.labels, numbers.T, strict=True)
            ),
            "; ",
        )


def score_regression(truth: np.ndarray, predictions: np.ndarray, labels: Sequence[str]) -> Scores:
    """Metrics of predicted values (rows, C), averaged over the columns: spearman and pearson
    correlation, 0 if one side is constant; mae, the mean absolute error in the user's units; r2,
    the coefficient of determination, 0 if the truth is constant."""
    from scipy.stats import rankdata

    metrics: dict[str, list[float]] = {name: [] for name in RegressionTask.metrics}
    warnings = []
    for name, true, predicted in zip(labels, truth.T, predictions.T, strict=True):
        spread = float(((true - true.mean()) ** 2).sum())
        metrics["spearman"].append(_correlation(rankdata(true), rankdata(predicted)))
        metrics["pearson"].append(_correlation(true, predicted))
        metrics["mae"].append(float(np.abs(true - predicted).mean()))
        metrics["r2"].append(1 - float(((true - predicted) ** 2).sum()) / spread if spread else 0.0)
        if predicted.std() < _NEARLY_CONSTANT * true.std():
            warnings.append(
                Message(
                    "{name!r}: the model predicts nearly the same for every row ({min:.4g} to "
                    "{max:.4g}, but the true values are {min2:.4g} to {max2:.4g}); try more "
                    "{--epochs}, another {--learning-rate} or more training rows",
                    *(name, predicted.min(), predicted.max(), true.min(), true.max()),
                )
            )
    means = {name: float(np.mean(values)) for name, values in metrics.items()}
    return Scores(values=means, warnings=tuple(warnings))


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if first.min() == first.max() or second.min() == second.max():
        return 0.0
    a, b = first - first.mean(), second - second.mean()
    return float(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1))


def _number(value: Any, column: str, where: str) -> float:
    """Parse a cell as a finite number; raise ``InputError`` with advice otherwise."""
    if isinstance(value, list) and len(value) == 1:  # a column of an array or a DataFrame
        value = value[0]
    if isinstance(value, str):
        value = value.strip()
    try:
        if isinstance(value, bool | list | dict) or "_" in str(value):
            raise ValueError
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        right = (
            "a number such as 3 or 0.25 is needed; correct or remove such rows, or use the task "
            "classify if the values are names"
        )
        if isinstance(value, list):
            right = (
                "give each number of a row its own column, and name these columns with "
                "--label-column 'a,b'"
            )
        elif isinstance(value, str) and "," in value:
            right = "write numbers without commas, with a decimal point, such as 1234.5"
        raise InputError(
            "{where}: column {column!r} has {value}; {right}", where, column, in_short(value), right
        ) from None
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise InputError(
            "{where}: column {column!r} has {value}; a number from -{largest:g} to {largest:g} "
            "is needed",
            where,
            column,
            value,
            _LARGEST,
        )
    return number
