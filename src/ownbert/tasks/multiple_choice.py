"""Multiple choice; each sequence is a prompt with one of its choices."""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.checkpoint import Description
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError, percent
from ownbert.tables.columns import COLUMNS, ColumnNames, find_columns
from ownbert.tables.tables import Source, as_text, place
from ownbert.tasks.metrics import Scores
from ownbert.tasks.row_network import RowNetwork, sequence_counts, softmax
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row, read_table
from ownbert.tasks.task import DEFAULT, Task, ranked
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder, join

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.tasks.row_objectives import MultipleChoiceObjective

_WHOLE = re.compile(r"-?\d+(\.0*)?")


class MultipleChoiceTask(Task):
    """Softmax over the choices of a row, each of which is appended to the prompt.

    Rows may have different numbers of choices. In .jsonl and .parquet the choices are a list; in
    other tables they are columns with a common name and a running number or letter, and the last
    ones are empty for rows with fewer choices.

    A label is a number, or the text of a choice, or its letter (A is the first). Numbers start at
    0, or at 1 if none in the file is 0, none exceeds the row's number of choices, and one equals
    it. An ambiguous file is read like the previous file (dev and evaluation rows like training
    rows).
    """

    name = "choose"
    purpose = "chooses which of several texts fits another"
    example_row = '{"prompt": "a text", "choices": ["one choice", "another"]}'
    transformers_lines = (
        'pairs = (["a text"] * 2, ["one choice", "another"])',
        'encoded = tokenizer(*pairs, padding=True, truncation=True, return_tensors="pt")',
        "logits = model(**{name: values[None] for name, values in encoded.items()}).logits",
        "print(int(logits.argmax()))",
    )
    saved_attributes = (*Task.saved_attributes, "first_label")
    head = "choice"
    gives_probabilities = True
    metrics = ("accuracy",)
    text_keys = ("prompt",)
    output_options = frozenset({"threshold", "probabilities"})
    unit = "questions"
    first_label = 0  # label of the first choice, 0 or 1

    def read(self, path: Source) -> list[Row]:
        rows = list(_rows(path, self.columns, labelled=True))
        numbers = [(_number(row.target), len(row.texts) - 1) for row in rows]
        numbered = [(number, size) for number, size in numbers if number is not None]
        if any(number == 0 for number, _ in numbered):
            self.first_label = 0
        elif (
            numbered
            and all(1 <= n <= size for n, size in numbered)
            and any(n == s for n, s in numbered)
        ):
            self.first_label = 1
        return [replace(row, target=self._index(row, place(path, row.line))) for row in rows]

    def _index(self, row: Row, where: str) -> int:
        choices, number = row.texts[1:], _number(row.target)
        if number is not None:
            index, first = number - self.first_label, self.first_label
            if 0 <= index < len(choices):
                return index
            last = first + len(choices) - 1
            raise InputError(
                "{where}: label {number} must be from {first} to {last}", where, number, first, last
            )
        text = as_text(row.target, "label", where).strip()
        matching = [i for i, choice in enumerate(choices) if choice.strip() == text]
        letter = ord(text.upper()) - ord("A") if re.fullmatch("[A-Za-z]", text) else len(choices)
        if len(matching) == 1:
            return matching[0]
        if not matching and letter < len(choices):
            return letter
        what = (
            "several choices" if matching else "none of the choices, nor a number or letter of one"
        )
        raise InputError("{where}: label {text!r} is {what}", where, text, what)

    def stream(self, path: Source) -> Iterator[Row]:
        return _rows(path, self.columns, labelled=False)

    def head_spec(self, description: Description) -> HeadSpec:
        spec, pooling = super().head_spec(description), self.settings.pooling
        return spec if pooling is None else replace(spec, pooling=pooling)

    def made_row(self, text: str) -> Any:
        return {"prompt": text, "choices": ["a", "b"]}

    def shown_texts(self, row: Row) -> Sequence[str]:
        return row.texts[:1]  # the prompt

    def encode(
        self, rows: Sequence[Row], builder: TextInputBuilder, *, training: bool
    ) -> EncodedRows:
        examples, truncated = [], 0
        for row, (prompt, *choices) in zip(rows, builder.ids_by_row(rows), strict=True):
            pairs = [builder.example((prompt, choice)) for choice in choices]
            label = {} if row.target is None else {"label": row.target}
            examples.append(join([pair for pair, _ in pairs], **label))
            truncated += any(was_truncated for _, was_truncated in pairs)
        return EncodedRows(examples, truncated)

    def objective(self, model: "Model") -> "MultipleChoiceObjective":
        from ownbert.tasks.row_objectives import MultipleChoiceObjective

        return MultipleChoiceObjective()

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        ends = np.cumsum(sequence_counts(examples))[:-1]
        return [softmax(scores) for scores in np.split(logits[:, 0], ends)]

    def output_row(
        self, decided: np.ndarray, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        probabilities = [round(p, 6) for p in decided.tolist()]
        choice = int(decided.argmax())
        sure = options.threshold is None or decided[choice] >= options.threshold
        return {
            "choice": choice if sure else None,
            "text": row.texts[1 + choice] if sure else None,
            "score": probabilities[choice],
            **({"probabilities": probabilities} if options.probabilities else {}),
        }

    def answer(self, decided: np.ndarray, row: Row, top_k: int | None = DEFAULT) -> Any:
        """The choice with its text and probability; Transformers has no pipeline for multiple
        choice."""
        results = [
            {"choice": best["label"], "text": row.texts[1 + best["label"]], "score": best["score"]}
            for best in ranked(range(len(decided)), decided)
        ]
        return results[0] if top_k is DEFAULT else results[:top_k]

    def plain(self, decided: np.ndarray, row: Row) -> int:
        return int(decided.argmax())

    def score(self, rows: Sequence[Row], decided: Sequence[np.ndarray]) -> Scores:
        correct = [int(p.argmax()) == row.target for p, row in zip(decided, rows, strict=True)]
        return Scores({"accuracy": float(np.mean(correct))})

    def fold_keys(self, row: Row) -> Sequence[Hashable]:
        """The prompt only, because many rows may share the same choices."""
        return super().fold_keys(replace(row, texts=row.texts[:1]))

    def readable_target(self, row: Row) -> str:
        return f"{row.target} ({row.texts[1 + row.target]})"

    def label_distribution(self, rows: Sequence[Row]) -> str:
        counts = np.bincount([row.target for row in rows])
        return ", ".join(f"{i} {percent(count / len(rows))}" for i, count in enumerate(counts))


def _rows(path: Source, named: ColumnNames, *, labelled: bool) -> Iterator[Row]:
    """Yield rows with labels as in the file."""
    found_columns = find_columns(path, COLUMNS["choose"], named, labelled=labelled)
    choices, labels = found_columns["second"], found_columns.get("label", ())

    def rows() -> Iterator[Row]:
        cells_of = [*choices, *labels]
        table = read_table(path, found_columns["text"], cells_of, id=named.id)
        for line, where, texts, cells, id, _ in table:
            target = cells[-1] if labels else None
            if labels and (target is None or not str(target).strip()):
                raise InputError(
                    "{where}: {labels!r} is missing or empty; a label is needed", where, labels[0]
                )
            of_row = _choices(cells[: len(choices)], choices, where)
            yield Row(line, (*texts, *of_row), target, id=id)

    return rows()


def _choices(values: Sequence[Any], names: Sequence[str], where: str) -> list[str]:
    """The texts of a row's choices: at least two, none of them empty."""
    if len(names) == 1:
        (choices,) = values
        if not isinstance(choices, list):
            raise InputError("{where}: {names!r} must contain a list of texts", where, names[0])
        names = list(names) * len(choices)
    else:
        last = max((i for i, v in enumerate(values) if v is not None and v != ""), default=-1)
        choices = values[: last + 1]
    if len(choices) < 2:
        raise InputError(
            "{where}: at least two choices are needed, but there are {count}", where, len(choices)
        )
    texts = [as_text(value, name, where) for value, name in zip(choices, names, strict=False)]
    for number, text in enumerate(texts):
        if not text.strip():
            raise InputError("{where}: choice {number} (from 0) is empty", where, number)
    return texts


def _number(label: Any) -> int | None:
    """The label as an integer if it is one, else None."""
    text = "" if isinstance(label, bool) else str(label).strip()
    return int(float(text)) if _WHOLE.fullmatch(text) else None
