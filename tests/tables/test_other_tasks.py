"""Tables for other commands than fit are recognised by their columns and what is in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ownbert.exceptions import InputError
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import table_of
from ownbert.tables.other_tasks import refuse_other_tasks

EXAMPLES = Path(__file__).parents[2] / "examples/tasks"
CONTEXTS = {"question": ["who?", "where?"], "context": ["Bruno in Cork", "Hugo in Porto"]}
ENDINGS = {"ending0": ["a", "b"], "ending1": ["c", "d"], "label": ["1", "0"]}
WORDS = {"tokens": [["a", "b"], ["c"]]}

OTHERS: Sequence[tuple[str, Mapping[str, Any], str | None]] = (
    ("answer", CONTEXTS | {"answer": ["Bruno", "Porto"]}, None),
    ("answer", CONTEXTS | {"answers": [{"text": "Bruno", "answer_start": 0}] * 2}, "answers"),
    ("answer", {"version": ["1.1"], "data": [[{"paragraphs": []}]]}, None),
    ("choose", {"prompt": ["one", "two"]} | ENDINGS, None),
    ("choose", {"text": ["one", "two"]} | ENDINGS, "label"),
    (
        "choose",
        {"question": ["1+1", "2+2"], "optionA": ["2", "3"], "optionB": ["1", "4"]}
        | {"answer": ["a", "B"]},
        "answer",
    ),
    ("choose", {"prompt": ["one"], "choices": [["a", "b", "c"]], "label": ["c"]}, None),
    ("tag", WORDS | {"tags": [["O", "B-X"], ["O"]]}, None),
    ("tag", WORDS | {"ner_tags": [[0, 1], [0]]}, "ner_tags"),
)


@pytest.mark.parametrize(("task", "columns", "label"), OTHERS)
def test_the_message_names_the_command(task: str, columns: Mapping[str, Any], label: str | None):
    with pytest.raises(InputError, match=rf"rows: the columns .*: ownbert finetune {task}; to use"):
        refuse_other_tasks(table_of(columns, name="rows"), ColumnNames(label=label))


@pytest.mark.parametrize("task", ["answer", "choose"])
def test_the_examples_are_recognised(task: str):
    with pytest.raises(InputError, match=f": ownbert finetune {task}; to use fit all the same"):
        refuse_other_tasks(EXAMPLES / f"{task}.train.jsonl", ColumnNames(text="prompt"))


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        (CONTEXTS | {"answer": ["yes", "no"]}, None),
        (CONTEXTS | {"answer": ["Bruno", "Porto"], "topic": ["a", "b"]}, "topic"),
        (CONTEXTS | {"answer": ["Bruno", "Porto"], "label": ["a", "b"]}, None),
        ({"prompt": ["one", "two"], "choices": [["a", "b"]] * 2, "label": ["x", "y"]}, None),
        ({"prompt": ["one", "two"], "options": ["a", "b"], "label": ["0", "1"]}, None),
        ({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": ["0", "1"]}, None),
        (WORDS | {"tags": [["x"], ["y"]]}, None),
        ({"tokens": ["a b", "c"], "tags": ["x y", "z"]}, None),
        ({"text": [], "label": []}, None),
    ],
)
def test_other_tables_are_left_to_fit(columns: Mapping[str, Any], label: str | None):
    refuse_other_tasks(table_of(columns, name="rows"), ColumnNames(label=label))
