"""The model card of an exported file: its content, accuracy and usage."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ownbert.checkpoint import Description, load_tokenizer
from ownbert.exporting.formats import FORMATS
from ownbert.exporting.padded import PaddedModel
from ownbert.exporting.parity import Parity
from ownbert.language import translated
from ownbert.run.model_card import hub_base, save_card, table
from ownbert.text.folder.tokenizer_folder import has_tokenizer

_LIBRARIES = {"onnx": "onnx", "openvino": "openvino", "torch": "pytorch"}
_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def write_export_card(
    new: Path,
    *,
    name: str,
    source: Path,
    to: str,
    file: str,
    description: Description,
    graph: PaddedModel,
    parity: Parity,
    tolerance: float,
    notes: Sequence[str],
) -> None:
    """Write README.md into the folder ``new``, which is moved to one called ``name`` afterwards;
    ``notes`` are steps that the file does not include."""
    config, family = description.config, description.family.model_type
    labels = description.labels if {*graph.kinds} & {"classification", "tokens"} else ()
    values = {
        "family": family,
        "config": config,
        "source": name_of(source),
        "to": to,
        "labels": labels,
        "notes": notes,
        "tensors": table(("", "name", "type", "shape"), _tensors(graph, parity)),
        "parity": parity,
        "tolerance": tolerance,
        "differences": table(
            ("output", "largest difference", "lowest cosine", "numbers"), _rows(parity)
        ),
        "tokenizer": load_tokenizer(description) if has_tokenizer(source) else None,
        "graph": graph,
        "fields": _FIELDS,
        "load": FORMATS[to].load.format(path=f"{name}/{file}"),
        "file": file,
    }
    save_card(new, {"library_name": _LIBRARIES[to]}, __file__, values, name=name, base=source)


def name_of(source: Path) -> str:
    """The hub name of a model, if it has one, or the name of its folder."""
    return hub_base(str(source)) or source.resolve().name


def _tensors(graph: PaddedModel, parity: Parity) -> Iterator[tuple[str, ...]]:
    texts = "batch, choices" if graph.choices else "batch"
    for name in graph.input_names:
        yield translated("input"), name, "int64", f"({texts}, length)"
    for name in parity.outputs:
        axes = f"{texts}, length" if graph.per_token(name) else texts
        yield translated("output"), name, "float32", f"({axes}, ...)"


def _rows(parity: Parity) -> Iterator[tuple[str, ...]]:
    for name, one in parity.outputs.items():
        cosine = f"{one.least_cosine:.8f}"
        yield name, f"{one.largest_difference:.2e}", cosine, f"{one.values:,}"
