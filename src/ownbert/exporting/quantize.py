"""``quantize``: a trained folder with 8-bit block matrices, for faster inference, and its
comparison with the float model: vectors and predictions for the same texts.

B texts, T tokens, D hidden, C classes.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ownbert.batches.batch import Batch, pack
from ownbert.batches.example import Example
from ownbert.checkpoint import Description, load, require_float
from ownbert.checkpoint.weights import FORMS, QUANTIZED, read_weights, write_quantized
from ownbert.exceptions import InputError
from ownbert.exporting.export import Say, copy_beside, describe_network, name_of
from ownbert.exporting.parity import batches, sequences_of
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.json_files import write_json
from ownbert.hub import model_folder
from ownbert.inference.blend import network_note
from ownbert.inference.engines import say_each
from ownbert.inference.finished_files import MODULES, network_files
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.nn.output_heads import POOLINGS as POOLING_LAYERS
from ownbert.nn.prepack import EXACT, NONE, PAIRS, prepack, products_here, quantizable, smoothing
from ownbert.run.model_card import save_card, table
from ownbert.run.run_folder import complete_folder, refuse_taken
from ownbert.tasks.embedding_config import POOLINGS, read_embedding_config
from ownbert.text.tokenizer_folder import TOKENIZER_FILES

REPORT = "quantization.json"
# Share of the activations' outliers that is moved to the weights (Xiao et al. 2023, section 5.1).
STRENGTH = 0.5
# Heads of tasks, whose predictions users see; and the minimum cosine of vectors without a warning.
_ANSWERS = ("classification", "tokens", "span", "choice")
_NEAR = 0.99
# Bounds of predictions that are as good as the same.
_MOST_ERROR, _LEAST_EQUAL = 0.1, 0.95
_MANY = "multi_label_classification"


@dataclass
class PredictionParity:
    """The deviation of a head's predictions.

    Args:
        largest_change: maximum change of a probability; for regression, of a value.
        equal: number of equal predictions, of ``answers``; None for regression.
        error: for regression, root mean square of the changes relative to the standard deviation of
            the values; None otherwise, and for fewer than two values.
    """

    largest_change: float = 0.0
    equal: int | None = 0
    answers: int = 0
    error: float | None = None

    @property
    def near(self) -> bool:
        """Whether the predictions are as good as the same."""
        if self.error is not None:
            return self.error <= _MOST_ERROR
        return self.equal is None or self.equal >= _LEAST_EQUAL * self.answers - 1

    def describe(self) -> str | None:
        """How much the predictions change, in words; None if unknown."""
        if self.error is not None:
            return Message("values change by {error:.1%} of their standard deviation", self.error)
        if self.equal is None:
            return None
        return Message(
            "{equal:,} of {answers:,} predictions are the same", self.equal, self.answers
        )


@dataclass
class QuantizedParity:
    """The results of a comparison: cosines of the two vectors of a text, deviations by name of the
    head, sizes of the weights, and the kind of 8-bit products on this processor
    (``products_here``)."""

    texts: int = 0
    tokens: int = 0
    source: str = ""
    least_cosine: float = 1.0
    mean_cosine: float = 0.0
    heads: dict[str, PredictionParity] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    products: str = EXACT


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
                Message(
                    "note: {target} will be smaller but no faster on this processor, which does "
                    "not multiply 8-bit numbers faster than floats",
                    target,
                ),
            )
        if say is not None and (note := network_note(source)) is not None:
            say(Message("note: {line!t}", note))
        # Every other text is for calibration; a single text is for both.
        measured, compared = given.examples[::2], given.examples[1::2] or given.examples
        smooth = _smooth(model, measured)
        tensors, _ = read_weights(source)
        with complete_folder(target) as new:
            copy_beside(source, new, description)
            done = write_quantized(new, description, tensors, model.encoder, smooth, STRENGTH)
            if not done:
                raise InputError("{source} has no matrices that can be quantized", source)
            pooling = read_embedding_config(source).pooling
            parity = compare_models(
                prepack(model),
                prepack(load(new, heads=heads)),
                compared,
                pooling=pooling if pooling in POOLINGS else "mean",
                problem=description.values.get("problem_type"),
            )
            parity.source, parity.products = given.source, products_here()
            parity.bytes_before = sum(tensor.nbytes for tensor in tensors.values())
            parity.bytes_after = (new / QUANTIZED).stat().st_size
            write_json(new / REPORT, asdict(parity))
            name = Path(os.path.realpath(target)).name
            _write_card(new, name, source, description, parity)
        far = [o.describe() for k, o in parity.heads.items() if k in _ANSWERS and not o.near]
        if parity.least_cosine < _NEAR:
            far.insert(0, Message("lowest cosine {least_cosine:.4f}", parity.least_cosine))
        if say is not None and far:
            say(
                Message(
                    "warning: {target} is not close to the float model ({far}); compare both with "
                    "ownbert evaluate",
                    target,
                    far[0],
                ),
            )
        return parity


@torch.inference_mode()
def _smooth(model: Model, examples: Sequence[Example]) -> Mapping[str, Tensor]:
    """Smoothing factors (D) of the inputs of each layer, by its name in the encoder."""
    layers = list(quantizable(model.encoder))
    largest = {name: torch.zeros(layer.in_features) for name, layer, _ in layers}

    def measure(name: str):
        def hook(layer, inputs):
            seen = inputs[0].detach().abs().flatten(0, -2).amax(0)
            largest[name] = torch.maximum(largest[name], seen)

        return hook

    hooks = [layer.register_forward_pre_hook(measure(name)) for name, layer, _ in layers]
    for batch in batches(examples, model.config):
        model.encoder(pack(batch))
    for hook in hooks:
        hook.remove()
    return {
        name: smoothing(largest[name], layer.weight, STRENGTH)
        if smoothed
        else torch.ones(layer.in_features)
        for name, layer, smoothed in layers
    }


def _write_card(
    new: Path, name: str, source: Path, description: Description, found: QuantizedParity
) -> None:
    """Write README.md into the folder ``new``, which is moved to one called ``name`` afterwards."""
    labelled = any(spec.labelled for spec in description.specs)
    before, after = (f"{size / 1e6:,.1f} MB" for size in (found.bytes_before, found.bytes_after))
    compared = (
        (translated("weights"), before, after),
        (translated("lowest cosine"), "1", f"{found.least_cosine:.4f}"),
        (translated("mean cosine"), "1", f"{found.mean_cosine:.4f}"),
    )
    heads = [
        (kind, f"{head.largest_change:.2g}", translated(head.describe() or ""))
        for kind, head in found.heads.items()
    ]
    values = {
        "family": description.family.model_type,
        "config": description.config,
        "source": name_of(source),
        "labels": description.labels if labelled else (),
        "found": found,
        "PAIRS": PAIRS,
        "NONE": NONE,
        "parity": table(("", "float", "int8"), compared),
        "answers": table(("head", "largest change", "predictions"), heads) if heads else "",
    }
    save_card(new, {"library_name": "ownbert"}, __file__, values, name=name, base=source)


@torch.inference_mode()
def compare_models(
    model: Model,
    quantized: Model,
    sequences: Sequence[Example],
    *,
    pooling: str,
    problem: str | None,
) -> QuantizedParity:
    """Run both models on the same packed batches; ``problem`` is Transformers' ``problem_type``."""
    comparison, total, count = QuantizedParity(), 0.0, 0
    pool = POOLING_LAYERS[pooling](model.config)
    values: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for examples in batches(sequences, model.config):
        batch = pack(examples)
        both = [one(batch) for one in (model, quantized)]
        vectors = [pool(out.hidden.float(), batch.layout) for out in both]  # (B, D)
        cosines = torch.cosine_similarity(*vectors, dim=1)
        comparison.least_cosine = min(comparison.least_cosine, float(cosines.min()))
        total, count = total + float(cosines.sum()), count + len(cosines)
        for kind in model.heads:
            parity = comparison.heads.setdefault(kind, PredictionParity())
            answers = [_answers_of(kind, out.logits[kind], batch, problem) for out in both]
            _add(parity, *answers)
            if parity.equal is None:
                values.setdefault(kind, []).append((answers[0][0], answers[1][0]))
        comparison.texts += len(examples)
        comparison.tokens += sum(batch.layout.lengths)
    comparison.mean_cosine = total / count
    for kind, pairs in values.items():
        before, after = (torch.cat(each) for each in zip(*pairs, strict=True))
        spread = float(before.std(0, correction=0).mean())
        if spread > 0:
            comparison.heads[kind].error = float((after - before).square().mean().sqrt()) / spread
    return comparison


def _answers_of(
    kind: str, logits: Tensor, batch: Batch, problem: str | None
) -> tuple[Tensor, Tensor | None]:
    """Probabilities, and the predictions derived from them."""
    logits = logits.float()
    if kind == "span":  # start and end in each text
        parts = [part.softmax(0) for part in logits.split(batch.layout.lengths)]
        return torch.cat(parts), torch.stack([part.argmax(0) for part in parts])
    if kind == "choice":
        logits = logits.view(batch.answers, -1)
    elif kind == "classification" and (problem == "regression" or logits.shape[-1] == 1):
        return logits, None
    elif kind == "discriminator" or (kind, problem) == ("classification", _MANY):
        chances = logits.sigmoid()
        return chances, chances > 0.5
    chances = logits.softmax(-1)
    return chances, chances.argmax(-1)


def _add(
    own: PredictionParity, one: tuple[Tensor, Tensor | None], other: tuple[Tensor, Tensor | None]
) -> None:
    change = float((one[0] - other[0]).abs().max()) if one[0].numel() else 0.0
    own.largest_change = max(own.largest_change, change)
    answers, others = one[1], other[1]
    if answers is None or others is None:
        own.equal = None
        own.answers += len(one[0])
        return
    same = (answers == others).flatten(1).all(1) if answers.ndim > 1 else answers == others
    own.equal = (own.equal or 0) + int(same.sum())
    own.answers += len(same)
