"""docs/families.md: its tables are true, and the family of its example works."""

import re
from pathlib import Path
from typing import Any

import pytest

from ownbert.families import FAMILIES
from support.parity_models import their_model, there_and_back

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["families.md", "families.zh-CN.md"]
COLUMNS = [
    "Model",
    "ForPreTraining",
    "ForMaskedLM",
    "causal LM",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
]
# In the columns of the others.
NAMES = {
    "XLNetLMHeadModel": "ForMaskedLM",
    "XLNetForQuestionAnsweringSimple": "ForQuestionAnswering",  # beside one of that name
}


def example(page: str) -> Any:
    """The family that the page's module makes."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    module = next(block for block in blocks if "DATA2VEC_TEXT" in block)
    names: dict[str, Any] = {}
    exec(compile(module, page, "exec"), names)
    return names["DATA2VEC_TEXT"]


FAMILY = example("families.md")


@pytest.mark.parametrize("architecture", FAMILY.architectures)
def test_the_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str):
    monkeypatch.setitem(FAMILIES, FAMILY.model_type, FAMILY)
    there_and_back(their_model(FAMILY.model_type, architecture), tmp_path)


def test_the_example_is_the_same_in_both_languages():
    first, second = (example(page) for page in PAGES)
    assert (first.weight_map, first.architectures) == (second.weight_map, second.architectures)
    assert first.defaults == second.defaults


@pytest.mark.parametrize("page", PAGES)
def test_the_table_of_architectures(page: str):
    rows = []
    for model_type, family in FAMILIES.items():
        start = re.sub("(Encoder)?Model$", "", next(iter(family.architectures)))
        there = {
            "causal LM"
            if head.decoder
            else NAMES.get(name, name.removeprefix(start).removeprefix("Encoder"))
            for name, head in family.architectures.items()
        }
        assert there <= set(COLUMNS)
        marks = " | ".join("✓" if column in there else "–" for column in COLUMNS)
        rows.append(f"| `{model_type}` | {start} | {marks} |")
    text = (DOCS / page).read_text(encoding="utf-8")
    assert "\n".join(rows) in text
    assert [line for line in text.splitlines() if line.startswith("| `") and "✓" in line] == rows
