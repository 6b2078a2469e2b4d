"""The same fine-tuning with Transformers' Trainer, for benchmarks/tasks.py: takes a recipe and
files and writes an ordinary folder, which OwnBERT then evaluates like its own."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer, Trainer, TrainingArguments
from transformers.data import data_collator as collators

from ownbert.tables.columns import ColumnNames
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_class

_CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "choose": "AutoModelForMultipleChoice",
}


class Peer:
    """A model and its examples, ready for ``Trainer``. OwnBERT's readers read the rows."""

    def __init__(self, recipe: FinetuneRecipe, model: Path, seed: int) -> None:
        transformers.set_seed(seed)
        data = recipe.data
        columns = ColumnNames(data.text_column, data.second_column, data.label_column)
        self.recipe, self.seed = recipe, seed
        self.task: Task = task_class(recipe.task.name)(recipe.task, columns)
        rows = self.task.read(data.train)
        self.task.learn(rows, data.train)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        make = {"tag": self._tags, "answer": self._windows, "choose": self._choices}
        self.examples = make.get(self.task.name, self._sentences)(rows)
        kind = getattr(transformers, _CLASSES[self.task.name])
        self.model = kind.from_pretrained(model, **self._labels())

    def _labels(self) -> dict[str, Any]:
        if self.task.name in ("answer", "choose"):
            return {}
        labels = {"id2label": dict(enumerate(self.task.labels))}
        if self.task.name == "regress":
            labels["problem_type"] = "regression"
        return labels

    def _sentences(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        given = {"truncation": True, "max_length": self.recipe.data.max_length}
        numbers = {label: i for i, label in enumerate(self.task.labels)}
        regress = self.task.name == "regress"
        return [
            {
                **self.tokenizer(*row.texts, **given),
                "labels": list(row.target) if regress else numbers[row.target],
            }
            for row in rows
        ]

    def _choices(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        given = {"truncation": True, "max_length": self.recipe.data.max_length}
        return [
            {
                **self.tokenizer(
                    [row.texts[0]] * (len(row.texts) - 1), list(row.texts[1:]), **given
                ),
                "labels": row.target,
            }
            for row in rows
        ]

    def _tags(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        numbers = {label: i for i, label in enumerate(self.task.labels)}
        examples = []
        for row in rows:
            found = self.tokenizer(
                list(row.texts),
                is_split_into_words=True,
                truncation=True,
                max_length=self.recipe.data.max_length,
            )
            places, seen = found.word_ids(), set()
            labels = []
            for place in places:
                first = place is not None and place not in seen
                labels.append(numbers[row.target[place]] if first else -100)
                seen.add(place)
            examples.append({**found, "labels": labels})
        return examples

    def _windows(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        examples = []
        for row in rows:
            question, context = row.texts
            found = self.tokenizer(
                question,
                context,
                truncation="only_second",
                max_length=self.recipe.data.max_length,
                stride=self.recipe.task.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            answer = row.target[0] if row.target else None
            for i, offsets in enumerate(found["offset_mapping"]):
                inside = found.sequence_ids(i)
                spans = {o: t for t, o in enumerate(offsets) if inside[t] == 1}
                start = end = 0
                if answer is not None:
                    first, last = answer[1], answer[1] + len(answer[0])
                    starts = [t for o, t in spans.items() if o[0] <= first < o[1]]
                    ends = [t for o, t in spans.items() if o[0] < last <= o[1]]
                    if starts and ends:
                        start, end = starts[0], ends[0]
                names = ("input_ids", "token_type_ids", "attention_mask")
                example = {name: found[name][i] for name in names}
                examples.append({**example, "start_positions": start, "end_positions": end})
        return examples

    def trainer(self, output: Path, *, bfloat16: bool, max_steps: int = -1) -> Trainer:
        """A Trainer with the recipe's settings, padding to the longest example of a batch."""
        recipe = self.recipe
        kinds = {
            "tag": collators.DataCollatorForTokenClassification,
            "choose": collators.DataCollatorForMultipleChoice,
        }
        arguments = TrainingArguments(
            str(output),
            per_device_train_batch_size=recipe.data.batch_size or 16,
            num_train_epochs=recipe.run.epochs or 3,
            max_steps=max_steps,
            learning_rate=recipe.optim.learning_rate or 0.0,
            warmup_ratio=recipe.optim.warmup,
            weight_decay=recipe.optim.weight_decay,
            adam_epsilon=recipe.optim.eps,
            max_grad_norm=recipe.optim.clip,
            bf16=bfloat16,
            use_cpu=True,
            seed=self.seed,
            report_to=[],
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
        )
        return Trainer(
            self.model,
            arguments,
            train_dataset=self.examples,  # pyright: ignore[reportArgumentType]
            processing_class=self.tokenizer,
            data_collator=kinds.get(self.task.name, collators.DataCollatorWithPadding)(
                self.tokenizer
            ),
        )

    def save(self, folder: Path) -> None:
        """Save an ordinary folder that predicts for the same task."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        path = folder / "config.json"
        values = json.loads(path.read_text())
        values["ownbert_task"] = {
            "name": self.task.name,
            "settings": self.recipe.task.changed(),
            "max_length": self.recipe.data.max_length,
        }
        if self.task.name == "answer":
            # Without a threshold, the model would never predict "no answer".
            values["ownbert_task"]["threshold"] = self.task.threshold  # pyright: ignore
        path.write_text(json.dumps(values))


class Clock(transformers.TrainerCallback):
    """Records the seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **keywords: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **keywords: Any) -> None:
        self.seconds.append(time.perf_counter() - self.began)
