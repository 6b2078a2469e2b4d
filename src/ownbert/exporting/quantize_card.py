"""The model card of a quantized folder: its content, accuracy and usage."""

from collections.abc import Iterator
from pathlib import Path

from ownbert.checkpoint import Description
from ownbert.exporting.export_card import name_of
from ownbert.exporting.quantized_parity import QuantizedParity
from ownbert.language import translated
from ownbert.nn.packed.int8 import NONE, PAIRS
from ownbert.run.model_card import save_card, table


def write_quantize_card(
    new: Path, *, name: str, source: Path, description: Description, found: QuantizedParity
) -> None:
    """Write README.md into the folder ``new``, which is moved to one called ``name`` afterwards."""
    config, family = description.config, description.family.model_type
    labelled = {spec.kind for spec in description.specs} & {"classification", "tokens"}
    values = {
        "family": family,
        "config": config,
        "source": name_of(source),
        "labels": description.labels if labelled else (),
        "found": found,
        "PAIRS": PAIRS,
        "NONE": NONE,
        "parity": table(("", "float", "int8"), _rows(found)),
        "answers": _answers(found),
    }
    save_card(new, {"library_name": "ownbert"}, __file__, values, name=name, base=source)


def _rows(found: QuantizedParity) -> Iterator[tuple[str, ...]]:
    before, after = (f"{size / 1e6:,.1f} MB" for size in (found.bytes_before, found.bytes_after))
    yield translated("weights"), before, after
    yield translated("lowest cosine"), "1", f"{found.least_cosine:.4f}"
    yield translated("mean cosine"), "1", f"{found.mean_cosine:.4f}"


def _answers(found: QuantizedParity) -> str:
    if not found.heads:
        return ""
    rows = []
    for kind, one in found.heads.items():
        rows.append((kind, f"{one.largest_change:.2g}", translated(one.describe() or "")))
    return table(("head", "largest change", "predictions"), rows)
