"""The model card of an exported file: what it is, how near to the model, and how it is run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ownbert.checkpoint import Description, load_tokenizer
from ownbert.exporting.formats import FORMATS
from ownbert.exporting.padded import PaddedModel
from ownbert.exporting.parity import Parity
from ownbert.language import translated
from ownbert.run.model_card import cell, code, hub_base, labels_in_short, save_card, table
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import has_tokenizer

_LIBRARIES = {"onnx": "onnx", "openvino": "openvino", "torch": "pytorch"}
_TOKENIZE = """\
import numpy as np
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("{folder}/tokenizer.json")
tokenizer.enable_padding(pad_id={pad_id}, pad_token={pad_token!r}){truncation}
encoded = tokenizer.encode_batch({texts})
inputs = {{
{inputs}}}"""
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
    """Write README.md.

    Args:
        new: the folder, before it is moved.
        name: of the folder after that.
        source: the folder of the model.
        to: one of ``FORMATS``.
        file: the exported one, below the folder.
        description: of the model.
        graph: what was exported.
        parity: what the comparison has found.
        tolerance: of the comparison.
        notes: what the file leaves to the program that runs it.
    """
    config, family = description.config, description.family.model_type
    labels = description.labels if {*graph.kinds} & {"classification", "tokens"} else ()
    sizes = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    blocks = [
        f"A model of the family {family} ({sizes}) as a file for programs without ownbert, made "
        f"from {cell(name_of(source))} (`ownbert export --to {to}`).",
        *([f"Labels: {labels_in_short(labels)}."] if labels else []),
        *(f"note: {note}" for note in notes),
        "## Inputs and outputs",
        table(("", "name", "type", "shape"), _tensors(graph, parity)),
        "## Parity",
        f"Compared with the model itself on {parity.texts:,} texts of {parity.tokens:,} tokens "
        f"together ({cell(parity.source)}), padded in batches of different shapes. An output that "
        f"differs by more than {tolerance:g} would not have been written.",
        table(("output", "largest difference", "least cosine", "numbers"), _rows(parity)),
        "## Use",
        *_usage(source, name, to, file, description, graph),
    ]
    front = {"library_name": _LIBRARIES[to]}
    if base := hub_base(str(source)):
        front["base_model"] = base
    save_card(new, front, blocks, name=name)


def name_of(source: Path) -> str:
    """The name of a model on the hub, if it has one, else that of its folder."""
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


def _usage(
    source: Path, name: str, to: str, file: str, description: Description, graph: PaddedModel
) -> Iterator[str]:
    run = FORMATS[to].load.format(path=f"{name}/{file}")
    if has_tokenizer(source):
        tokenizer = load_tokenizer(description)
        longest = description.config.max_length
        yield code("python", f"{_tokenize(tokenizer, name, longest, graph)}\n\n{run}")
    else:
        yield code("python", run)
    if file.startswith(("onnx/", "openvino/")):
        yield "In sentence-transformers:"
        yield code(
            "python",
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("{name}", backend="{to}")\n'
            'print(model.encode(["a text", "another"]).shape)',
        )


def _tokenize(tokenizer: Tokenizer, name: str, longest: int | None, graph: PaddedModel) -> str:
    texts, end = '["a text", "another, longer one"]', ""
    if graph.choices:
        texts, end = '[("a question", "one choice"), ("a question", "another")]', "[None]"
    lines = (
        f'    "{one}": np.array([e.{_FIELDS[one]} for e in encoded], dtype=np.int64){end},\n'
        for one in graph.input_names
    )
    return _TOKENIZE.format(
        folder=name,
        pad_id=tokenizer.pad_id,
        pad_token=tokenizer.special["pad_token"],
        truncation="" if longest is None else f"\ntokenizer.enable_truncation({longest})",
        texts=texts,
        inputs="".join(lines),
    )
