"""Predict and evaluate with a fine-tuned folder."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ownbert.checkpoint import describe, load, load_tokenizer
from ownbert.files import atomic_path, write_json
from ownbert.nn.prepack import prepack
from ownbert.tasks.finetune import cut_warning
from ownbert.tasks.forward import answers, blocks
from ownbert.tasks.frame import Frame
from ownbert.tasks.measures import Scores
from ownbert.tasks.rows import Columns, Row
from ownbert.tasks.task import task_of
from ownbert.train.machine import pick_device, pick_precision

Progress = Callable[[int], None]
Say = Callable[[str], None]


class Predictor:
    """A fine-tuned folder, ready to answer rows of its task.

    precision: float32 by default, so that a row gets the same answer in any company. ``seen`` and
    ``cut`` count the rows so far and those that were too long.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        columns: Columns | None = None,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        self.folder = Path(folder)
        place = pick_device(device)
        self.precision = pick_precision(precision, place)
        said = describe(folder)
        self.task = task_of(said, folder, columns)
        model = load(folder).to(place)
        self.tokenizer = load_tokenizer(folder, config=model.config)
        self.max_length = model.config.longest
        self.frame = Frame(self.tokenizer, model.config, self.max_length)
        self.model = prepack(model) if self.precision == "float32" else model
        self.seen = self.cut = 0

    def __call__(self, rows: Sequence[Row]) -> list[Any]:
        """What the task decides of each row; counts rows seen and cut."""
        data = self.task.encode(rows, self.frame, training=False)
        self.seen += len(rows)
        self.cut += data.cut
        raws = answers(self.model, self.task, data.examples, precision=self.precision).raws
        return [self.task.decide(*each) for each in zip(raws, rows, data.notes, strict=True)]

    def warning(self) -> str | None:
        """What to tell of rows that were too long, if there were any."""
        if not self.cut:
            return None
        return cut_warning(self.cut, self.seen, self.max_length, self.task.unit)


def predict(
    folder: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    progress: Progress | None = None,
    say: Say | None = None,
) -> int:
    """Answer every row of a file, one JSON row each, order kept.

    Streams, so neither file need fit in memory. Returns the number of rows; progress is called
    with it as it grows. ``output`` appears whole or not at all.
    """
    columns = Columns(text=text_column, second=second_column)
    predictor = Predictor(folder, columns=columns, device=device, precision=precision)
    rows = predictor.task.stream(input)
    done = 0
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for block in blocks(rows, size=characters):
            for row, decided in zip(block, predictor(block), strict=True):
                shown = predictor.task.shown(decided, row)
                file.write(json.dumps(shown, ensure_ascii=False) + "\n")
            done += len(block)
            if progress is not None:
                progress(done)
    if say is not None and (warning := predictor.warning()):
        say(warning)
    return done


def characters(row: Row) -> int:
    """How long a row is."""
    return sum(map(len, row.texts))


def evaluate(
    folder: str | Path,
    data: str | Path,
    *,
    output: str | Path | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Scores:
    """Measures of a fine-tuned folder on labelled rows; as JSON in ``output`` if given.

    Raises ``InputError`` with the line for an answer that the model cannot give.
    """
    columns = Columns(text_column, second_column, label_column)
    predictor = Predictor(folder, columns=columns, device=device, precision=precision)
    task = predictor.task
    rows = task.read(data)
    task.check(rows, data, f"the model {folder}")
    decided: list[Any] = []
    for block in blocks(rows, size=characters):
        decided += predictor(block)
        if progress is not None:
            progress(len(decided))
    scores = task.score(rows, decided)
    if say is not None:
        for line in filter(None, (predictor.warning(), *scores.warnings)):
            say(line)
    if output is not None:
        write_json(output, scores.as_json())
    return scores
