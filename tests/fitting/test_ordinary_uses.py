"""Ordinary uses, each in a small size from the rows to the served folder.

Every value of a column of ``TABLE`` meets every value of the other columns in at least one run,
where the two can be combined.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import ownbert
from support.fit_files import write_table

TABLE: Mapping[str, Sequence[str]] = {
    "command": ("fit", "fit, network", "finetune"),
    "task": ("two", "three", "rare", "several labels", "numbers", "pairs"),
    "source": (
        *("csv", "tsv", "jsonl", "parquet"),
        *("frame", "texts and labels", "dicts", "dataset", "columns", "arrow"),
    ),
    "option": (
        *("none", "dev", "test", "unlabelled", "add"),
        *("columns", "metric", "labels per class", "resume", "threshold"),
    ),
    "text": ("word", "short", "long", "empty", "blank", "ids", "chinese"),
}
ROWS, TEST_ROWS = 36, 12
FILES = ("csv", "tsv", "jsonl", "parquet")
Use = dict[str, str]
Columns = dict[str, list[Any]]


def possible(use: Use) -> bool:
    """Whether values can be combined; columns that are not chosen yet are missing."""
    command, task, option = use.get("command"), use.get("task"), use.get("option")
    if command == "finetune" and option in ("test", "unlabelled", "add", "metric"):
        return False
    if task == "pairs" and command not in (None, "finetune"):
        return False
    if option == "labels per class" and task in ("several labels", "numbers"):
        return False
    if option == "threshold" and task in ("three", "rare", "numbers"):
        return False
    if task == "pairs" and option in ("test", "unlabelled", "add", "metric"):
        return False
    return not (option == "columns" and use.get("source") == "texts and labels")


def gain(use: Use, missing: Sequence[Use]) -> int:
    """How many missing pairs a use has; networks of ``fit`` take longest, so few are fitted."""
    covered = sum(pair.items() <= use.items() for pair in missing)
    return covered - 3 * (use.get("command") == "fit, network")


def pairwise() -> Iterator[Use]:
    """Few uses in which every possible pair of values occurs."""
    pairs = [
        {a: x, b: y}
        for a, b in itertools.combinations(TABLE, 2)
        for x, y in itertools.product(TABLE[a], TABLE[b])
    ]
    missing = [pair for pair in pairs if possible(pair)]
    rng = random.Random(0)
    while missing:
        use = dict(missing[0])
        for name in rng.sample([*TABLE], len(TABLE)):
            if name in use:
                continue
            values = [v for v in TABLE[name] if possible(use | {name: v})]
            use[name] = max(
                rng.sample(values, len(values)),
                key=lambda v: gain(use | {name: v}, missing),
            )
        missing = [pair for pair in missing if not pair.items() <= use.items()]
        yield {name: use[name] for name in TABLE}


USES = [*pairwise()]
# The others are slow.
QUICK = [next(use for use in USES if use["command"] == name) for name in ("fit", "finetune")]


def texts_of(kind: str, labels: Sequence[int]) -> list[str]:
    """Texts whose words depend on a label, with a number for each text."""
    rng, texts = random.Random(len(labels)), []
    for index, label in enumerate(labels):
        words = [f"{'abc'[label % 3]}{rng.randint(0, 9)}x" for _ in range(8)]
        if kind == "ids":
            words = [str(100 * (label + 1) + rng.randint(0, 20)) for _ in range(8)]
        text = " ".join(words * (40 if kind == "long" else 1))
        if kind == "word":
            text = words[0]
        elif kind == "chinese":
            own = ("红花开了", "绿树成荫", "蓝天白云")[label % 3]
            text = "".join(rng.choices(own, k=8)) + "。"
        elif kind in ("empty", "blank") and index % 7 == 3:
            text = "" if kind == "empty" else "  "
        texts.append(text)
    return texts


def columns_of(use: Use, rows: int) -> Columns:
    numbers = [i % 3 for i in range(rows)]
    labels: list[Any] = [("red", "green", "blue")[n] for n in numbers]
    if use["task"] in ("two", "pairs"):
        numbers = [i % 2 for i in range(rows)]
        labels = [("no", "yes")[n] for n in numbers]
    elif use["task"] == "rare":
        numbers = [2 if i in (0, 5) else i % 2 for i in range(rows)]
        labels = [("usual", "often", "rare")[n] for n in numbers]
    elif use["task"] == "several labels":
        labels = [[] if i % 6 == 5 else [labels[i], *["odd"] * (i % 2)] for i in range(rows)]
        if use["source"] in ("csv", "tsv"):
            labels = [";".join(one) for one in labels]
    elif use["task"] == "numbers":
        labels = [n + (i % 10) / 10 for i, n in enumerate(numbers)]
    names = ("Verlauf", "Sparte") if use["option"] == "columns" else ("text", "label")
    columns = {names[0]: texts_of(use["text"], numbers)}
    if use["task"] == "pairs":
        columns["text_pair"] = texts_of(use["text"], numbers)
    return columns | {names[1]: labels}


class Dataset:
    """What ``datasets.Dataset`` is to the library: names of columns, and rows."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.column_names, self.features = columns, [*columns], {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: slice) -> Columns:
        return {name: values[rows] for name, values in self.columns.items()}

    def select(self, rows: range) -> "Dataset":
        return Dataset({k: [v[row] for row in rows] for k, v in self.columns.items()})

    def select_columns(self, names: list[str]) -> "Dataset":
        return Dataset({name: self.columns[name] for name in names})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))


def source_of(columns: Columns, kind: str, path: Path) -> Any:
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind in FILES:
        return write_table(columns, path.with_suffix(f".{kind}"))
    memory: Mapping[str, Callable[[], Any]] = {
        "frame": lambda: pytest.importorskip("pandas").DataFrame(columns),
        "texts and labels": lambda: _texts_and_labels(columns),
        "dicts": lambda: records,
        "dataset": lambda: Dataset(columns),
        "columns": lambda: columns,
        "arrow": lambda: pa.table(columns),
    }
    return memory[kind]()


def _texts_and_labels(columns: Columns) -> tuple[list[Any], list[Any]]:
    *texts, labels = columns.values()
    return (texts[0] if len(texts) == 1 else [*zip(*texts, strict=True)]), labels


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose vocabulary has the words of all kinds of text."""
    folder = tmp_path_factory.mktemp("network")
    lines = [text for kind in TABLE["text"] for text in texts_of(kind, [*range(3)] * 30)]
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    ownbert.learn_vocabulary(folder / "corpus.txt", folder / "vocab", vocab_size=400)
    ownbert.prepare(folder / "corpus.txt", folder / "tokens", tokenizer=folder / "vocab")
    settings = {"objectives": "mlm,nsp", "max_steps": 10, "max_length": 48}
    ownbert.pretrain(folder / "tokens", folder / "bert", quiet=True, **settings)
    return folder / "bert"


METRICS = {"several labels": "subset_accuracy", "numbers": "mae"}


def train(use: Use, network: Path, folder: Path) -> Path:
    """Fit or fine-tune on the rows, and return the folder."""

    def rows(name: str, count: int) -> Any:
        return source_of(columns_of(use, count), use["source"], folder / name)

    out, option = folder / "out", use["option"]
    options: dict[str, Any] = {"output": out, "quiet": True}
    if option in ("dev", "test", "add"):
        options[option] = rows(option, TEST_ROWS)
    elif option == "unlabelled":
        options["unlabelled"] = texts_of(use["text"], [*range(12)])
    elif option == "columns":
        options |= {"text_column": "Verlauf", "label_column": "Sparte"}
        options |= {"second_column": "text_pair"} if use["task"] == "pairs" else {}
    elif option == "metric":
        options["metric"] = METRICS.get(use["task"], "accuracy")
    elif option == "threshold":
        name = "odd" if use["task"] == "several labels" else "yes"
        options["threshold"] = f"{name}={0.3 if use['command'] == 'finetune' else 'recall:0.8'}"
    elif option == "labels per class":
        options["labels_per_class"] = 5
    if use["command"] == "finetune":
        task = {"several labels": "multilabel", "numbers": "regress"}.get(use["task"], "classify")
        options |= {"task": task, "model": network, "max_steps": 4, "train": rows("train", ROWS)}
        run: Callable[..., Any] = ownbert.finetune
    else:
        options |= {"train": rows("train", ROWS), "minutes": 0.1}
        if use["command"] == "fit, network":
            options |= {"minutes": 10, "model": network, "seeds": 1}
        run = ownbert.fit
    run(**options)
    if option == "resume":
        run(**options, resume=True)
    return out


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(
            use, id=" ".join(use.values()), marks=[] if use in QUICK else [pytest.mark.slow]
        )
        for use in USES
    ],
)
def test_rows_become_a_folder_that_predicts(use: Use, network: Path, tmp_path: Path):
    out = train(use, network, tmp_path)
    columns = columns_of(use, TEST_ROWS)
    test = source_of(columns, use["source"], tmp_path / "test_rows")
    *texts, _ = columns.values()
    # Predictions.
    predictor = ownbert.Predictor(out)
    found = predictor.predict(texts[0] if len(texts) == 1 else [*zip(*texts, strict=True)])
    assert len(found) == TEST_ROWS
    if use["source"] in FILES:
        ownbert.predict(out, test, tmp_path / "predictions.jsonl")
        lines = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == TEST_ROWS
    # Scores.
    scores = predictor.evaluate(test)
    assert all(math.isfinite(v) for v in scores.values.values() if isinstance(v, float))
    # Explanations: one for each text with words.
    full = next(i for i, text in enumerate(texts[0]) if text.strip())
    row = texts[0][full] if len(texts) == 1 else tuple(text[full] for text in texts)
    assert ownbert.explain(out, [row])
    # The root folder in Transformers.
    if (out / "model.safetensors").exists():
        _load_in_transformers(out, [text[full] for text in texts])
    else:
        assert use["command"] == "fit"


def _load_in_transformers(folder: Path, texts: Sequence[str]) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**tokenizer(*texts, return_tensors="pt", truncation=True)).logits
    assert logits.shape == (1, model.config.num_labels)
    assert bool(logits.isfinite().all())


def test_every_possible_pair_of_values_occurs():
    seen = {pair for use in USES for pair in itertools.combinations(use.items(), 2)}
    for a, b in itertools.combinations(TABLE, 2):
        for x, y in itertools.product(TABLE[a], TABLE[b]):
            if possible({a: x, b: y}):
                assert ((a, x), (b, y)) in seen, f"{a} {x} with {b} {y}"
