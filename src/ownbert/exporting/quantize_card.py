"""The model card of a quantized folder: what it is, how near to the float model, and its use."""

from collections.abc import Iterator
from pathlib import Path

from ownbert.checkpoint import Description
from ownbert.exporting.export_card import name_of
from ownbert.exporting.quantized_parity import QuantizedParity
from ownbert.language import translated
from ownbert.nn.packed.int8 import NONE, PAIRS
from ownbert.run.model_card import cell, code, hub_base, labels_in_short, save_card, table


def write_quantize_card(
    new: Path, *, name: str, source: Path, description: Description, found: QuantizedParity
) -> None:
    """Write README.md.

    Args:
        new: the folder, before it is moved.
        name: of the folder after that.
        source: the folder of the float model.
        description: of that model.
        found: what the comparison has found.
    """
    config, family = description.config, description.family.model_type
    labelled = {spec.kind for spec in description.specs} & {"classification", "tokens"}
    sizes = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    blocks = [
        f"A model of the family {family} ({sizes}) in 8 bits, made from {cell(name_of(source))} "
        "(`ownbert quantize`).",
        *([f"Labels: {labels_in_short(description.labels)}."] if labelled else []),
        "The matrices of the blocks are int8, with a scale for each output channel; activations "
        "are rounded to 8 bits for each token. On processors with AVX2 and without VNNI weights "
        "are rounded to fewer values. Embeddings, norms and heads are as they were. It cannot be "
        "trained, and only ownbert reads it.",
        "## Parity",
        f"Compared with the float model on {found.texts:,} texts of {found.tokens:,} tokens "
        f"together ({cell(found.source)}).",
        *_processor(found),
        table(("", "float", "int8"), _rows(found)),
        *_answers(found),
        "## Use",
        code("sh", f"ownbert predict {name} new.csv\nownbert embed {name} new.csv -o vectors.npy"),
    ]
    front = {"library_name": "ownbert"}
    if base := hub_base(str(source)):
        front["base_model"] = base
    save_card(new, front, blocks, name=name)


def _rows(found: QuantizedParity) -> Iterator[tuple[str, ...]]:
    before, after = (f"{size / 1e6:,.1f} MB" for size in (found.bytes_before, found.bytes_after))
    yield translated("weights"), before, after
    yield translated("least cosine"), "1", f"{found.least_cosine:.4f}"
    yield translated("mean cosine"), "1", f"{found.mean_cosine:.4f}"


def _processor(found: QuantizedParity) -> Iterator[str]:
    if found.products == PAIRS:
        yield "The processor of this comparison has no VNNI: weights were rounded more coarsely."
    elif found.products == NONE:
        yield (
            "The processor of this comparison does not multiply 8-bit numbers faster than floats: "
            "the model computes in floats there, no faster than the float model."
        )


def _answers(found: QuantizedParity) -> Iterator[str]:
    if not found.heads:
        return
    rows = []
    for kind, one in found.heads.items():
        equal = "" if one.equal is None else f"{one.equal / max(1, one.answers):.1%}"
        rows.append((kind, f"{one.largest_change:.2g}", equal, f"{one.answers:,}"))
    yield table(("head", "largest change", "equal answers", "answers"), rows)
