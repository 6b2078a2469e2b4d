"""``quantize``: a trained folder with 8-bit block matrices, for faster inference."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ownbert.batches.batch import pack
from ownbert.checkpoint import Description, load, require_float
from ownbert.checkpoint.quantized import write_quantized
from ownbert.checkpoint.weights import FORMS, QUANTIZED, read_weights
from ownbert.exceptions import InputError
from ownbert.exporting.export import Say, copy_beside, describe_network
from ownbert.exporting.export_card import name_of
from ownbert.exporting.parity import Sequences, batches, sequences_of
from ownbert.exporting.quantized_parity import QuantizedParity, compare_models, halves
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.json_files import write_json
from ownbert.hub import model_folder
from ownbert.inference.blend import network_note
from ownbert.inference.engines import say_each
from ownbert.inference.finished_files import MODULES, network_files
from ownbert.language import translated
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.nn.packed.int8 import NONE, PAIRS, products_here, quantizable, smoothing
from ownbert.nn.packed.prepack import prepack
from ownbert.run.model_card import save_card, table
from ownbert.run.new_folder import complete_folder, refuse_taken
from ownbert.tasks.embedding_config import POOLINGS, read_embedding_config
from ownbert.text.folder.tokenizer_folder import TOKENIZER_FILES

REPORT = "quantization.json"
# Share of the activations' outliers that is moved to the weights (Xiao et al. 2023, section 5.1).
STRENGTH = 0.5
# Heads of tasks, whose predictions users see; and the minimum cosine of vectors without a warning.
_ANSWERS = ("classification", "tokens", "span", "choice")
_NEAR = 0.99


@in_float32
def quantize(
    folder: str | Path,
    output: str | Path,
    *,
    data: str | Path | None = None,
    text_column: str | None = None,
    overwrite: bool = False,
    say: Say | None = None,
) -> QuantizedParity:
    """Write a copy of a model folder whose block matrices are quantized to 8 bits.

    ``predict``, ``embed``, ``evaluate``, ``serve`` and the Python classes open it like any other
    folder; it cannot be trained, and Transformers cannot read it. Weights have a scale per output
    channel; activations are quantized dynamically, with a scale and a minimum per token. Embeddings
    and heads remain floats.

    Args:
        folder: folder of a text encoder with any head. It is not changed.
        output: a new or empty folder.
        data: file with rows of the folder's task, read as by ``predict``, or of texts; the first
            256 are used, every other one for calibration, the rest for comparing the models. By
            default texts included in this package.
        text_column: column of the text in tables.
        overwrite: replace files of the same names in ``output``.
        say: called with notes.

    Returns:
        The results of the comparison.

    Raises:
        InputError: the model cannot be quantized, or the output exists; nothing is written.

    Source: Xiao et al. 2023 (SmoothQuant).
    """
    source, target = model_folder(folder), Path(output)
    with writing(target):
        refuse_taken(target, source, data, overwrite=overwrite)
        names = [REPORT, QUANTIZED, *map(str, network_files(source, weights=False))]
        refuse_foreign(target, [*names, *TOKENIZER_FILES])
        if any((target / name).is_file() for name in FORMS):
            raise InputError("{target} contains float weights; choose another folder", target)
        description = describe_network(source)
        require_float(description.values, source)
        if description.config.positions.segments:
            raise InputError("{source} is an xlnet model, which cannot be quantized", source)
        if description.config.image is not None:
            raise InputError("{source} reads images; only models of texts can be quantized", source)
        sentences = (source / MODULES).is_file()
        heads = () if sentences else None
        model = load(description, heads=heads)
        given = sequences_of(description, model, data=data, text_column=text_column)
        say_each(filter(None, (given.warning,)), say)
        if say is not None and products_here() == NONE:
            say(
                f"note: {target} will be smaller but no faster on this processor, which does not "
                "multiply 8-bit numbers faster than floats"
            )
        if say is not None and (note := network_note(source)) is not None:
            say(f"note: {note}")
        measured, compared = halves(given)
        smooth = _smooth(model, measured)
        tensors, _ = read_weights(source)
        with complete_folder(target) as new:
            copy_beside(source, new, description)
            done = write_quantized(new, description, tensors, model.encoder, smooth, STRENGTH)
            if not done:
                raise InputError("{source} has no matrices that can be quantized", source)
            parity = compare_models(
                prepack(model),
                prepack(load(new, heads=heads)),
                compared,
                pooling=_pooling(source),
                problem=description.values.get("problem_type"),
            )
            parity.products = products_here()
            parity.bytes_before = sum(tensor.nbytes for tensor in tensors.values())
            parity.bytes_after = (new / QUANTIZED).stat().st_size
            write_json(new / REPORT, asdict(parity))
            name = Path(os.path.realpath(target)).name
            write_quantize_card(
                new, name=name, source=source, description=description, found=parity
            )
        far = [o.describe() for k, o in parity.heads.items() if k in _ANSWERS and not o.near]
        if parity.least_cosine < _NEAR:
            far.insert(0, f"lowest cosine {parity.least_cosine:.4f}")
        if say is not None and far:
            say(
                f"warning: {target} is not close to the float model ({far[0]}); compare both with "
                "ownbert evaluate"
            )
        return parity


def _pooling(source: Path) -> str:
    pooling = read_embedding_config(source).pooling
    return pooling if pooling in POOLINGS else "mean"


@torch.inference_mode()
def _smooth(model: Model, given: Sequences) -> Mapping[str, Tensor]:
    """Smoothing factors (D) of the inputs of each layer, by its name in the encoder."""
    layers = list(quantizable(model.encoder))
    largest = {name: torch.zeros(layer.in_features) for name, layer, _ in layers}

    def measure(name: str):
        def hook(layer, inputs):
            seen = inputs[0].detach().abs().flatten(0, -2).amax(0)
            largest[name] = torch.maximum(largest[name], seen)

        return hook

    hooks = [layer.register_forward_pre_hook(measure(name)) for name, layer, _ in layers]
    for examples in batches(given.examples, model.config):
        model.encoder(pack(examples))
    for hook in hooks:
        hook.remove()
    return {
        name: smoothing(largest[name], layer.weight, STRENGTH)
        if smoothed
        else torch.ones(layer.in_features)
        for name, layer, smoothed in layers
    }


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
