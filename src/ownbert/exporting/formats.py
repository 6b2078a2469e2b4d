"""File formats of exported graphs, engines to run them, and the model card of an exported file.

B texts, S longest text, C choices.
"""

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.checkpoint import Description, load_tokenizer
from ownbert.exceptions import InputError
from ownbert.exporting.padded import PaddedModel
from ownbert.exporting.parity import Parity
from ownbert.inference.engines import KINDS, Engine
from ownbert.language import translated
from ownbert.language.messages import Option
from ownbert.run.model_card import hub_base, save_card, table
from ownbert.text.tokenizer_folder import has_tokenizer

# Size of the weights, in bytes, from which ONNX stores them in a separate file; a file is limited
# to 2 GiB.
_LARGEST_ONNX = 3 << 29
_BATCH, _CHOICES, _LENGTH = "batch", "choices", "length"
# Loggers of the ONNX exporter.
_LOGGERS = ("torch.onnx", "torch.onnx._internal.exporter._registration", "onnxscript", "onnx_ir")
_ONNX_PACKAGES = ("onnx", "onnxscript")
_LIBRARIES = {"onnx": "onnx", "openvino": "openvino", "torch": "pytorch"}
_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


@dataclass(frozen=True)
class Format:
    """A file format.

    Args:
        file: file name.
        folder: folder in which sentence-transformers looks for the file of a sentence model.
        packages: packages for writing and running it.
        extra: extra of ownbert with these packages.
        write: writes the file.
        open: opens a written file as an engine.
        load: lines of Python for the model card, with {path}.
    """

    file: str
    folder: str
    packages: tuple[str, ...]
    extra: str
    write: Callable[[PaddedModel, Path], None]
    open: Callable[[Path], Engine]
    load: str

    def require(self, name: str) -> None:
        """Raise ``InputError`` if a package is missing."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise InputError(
                    "{to} needs {package}, which is missing: pip install 'ownbert[{extra}]'",
                    Option("--to", name),
                    package,
                    self.extra,
                )


def trace(graph: PaddedModel) -> tuple[Any, tuple[str, ...]]:
    """Trace the graph as a program of torch.export; return it with the names of its outputs.

    B, C and S are dynamic; inputs are named by ``graph.input_names``.
    """
    shape = (2, 3, 5) if graph.choices else (2, 5)
    # Separate tensors, otherwise the tracer identifies them.
    given = {name: torch.ones(shape, dtype=torch.long) for name in graph.input_names}
    names = (_BATCH, _CHOICES, _LENGTH) if graph.choices else (_BATCH, _LENGTH)
    axes = {i: torch.export.Dim(name) for i, name in enumerate(names)}
    shapes = dict.fromkeys(graph.input_names, axes)
    with torch.no_grad(), _quiet():
        program = torch.export.export(graph, (), kwargs=given, dynamic_shapes=shapes)
        for node in program.graph.nodes:  # They contain local file names.
            node.meta.pop("stack_trace", None)
        return program, tuple(graph(**given))


def write_torch(graph: PaddedModel, path: Path) -> None:
    """Write a program of torch.export, which only needs torch."""
    program, _ = trace(graph)
    buffer = io.BytesIO()  # torch aborts the process if the disk is full
    with _quiet():
        torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def write_onnx(graph: PaddedModel, path: Path) -> None:
    """Write an ONNX file with named inputs, outputs and axes."""
    program, outputs = trace(graph)
    with torch.no_grad(), _quiet():
        onnx_program = torch.onnx.export(
            program, dynamo=True, verbose=False, output_names=list(outputs), optimize=True
        )
        assert onnx_program is not None
        _name_axes(onnx_program.model, graph, outputs)
        for node in onnx_program.model.graph:
            node.metadata_props.clear()  # only useful to the exporter
        size = sum(p.numel() * p.element_size() for p in graph.parameters())
        onnx_program.save(str(path), external_data=size > _LARGEST_ONNX)


def _name_axes(model: Any, graph: PaddedModel, outputs: tuple[str, ...]) -> None:
    """Replace the tracer's names of input and output axes by readable ones."""
    names = (_BATCH, _CHOICES, _LENGTH) if graph.choices else (_BATCH, _LENGTH)
    first = next(iter(model.graph.inputs))
    known = dict(zip(map(_axis, first.shape), names, strict=True))
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None:
            for i, size in enumerate(value.shape):
                if _axis(size) in known:
                    value.shape[i] = known[_axis(size)]


def _axis(size: Any) -> str:
    """The name of an axis; the size if it is fixed."""
    return str(getattr(size, "value", size))


def write_openvino(graph: PaddedModel, path: Path) -> None:
    """Write OpenVINO's files, .xml and .bin, via ONNX, with float32 weights."""
    import openvino

    onnx = path.with_name(f"{path.stem}.onnx")
    write_onnx(graph, onnx)
    try:
        # Equivalent to OpenVINO's converter, which sends telemetry.
        model = openvino.Core().read_model(onnx)
        openvino.save_model(model, path, compress_to_fp16=False)
    finally:
        for file in (onnx, onnx.with_name(f"{onnx.name}.data")):
            file.unlink(missing_ok=True)


def open_torch(path: Path) -> Engine:
    """Open a file written by ``write_torch``."""
    with _quiet():
        run = torch.export.load(path).module()

    @torch.no_grad()
    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs: dict[str, Tensor] = run(**{n: torch.from_numpy(x) for n, x in inputs.items()})
        return {name: x.numpy() for name, x in outputs.items()}

    return engine


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of the tracers."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


FORMATS = {
    "onnx": Format(
        KINDS["onnx"].file,
        KINDS["onnx"].folder,
        (*_ONNX_PACKAGES, "onnxruntime"),
        "onnx",
        write_onnx,
        KINDS["onnx"].open,
        "import onnxruntime\n\n"
        'session = onnxruntime.InferenceSession("{path}")\n'
        "outputs = session.run(None, inputs)",
    ),
    "openvino": Format(
        KINDS["openvino"].file,
        KINDS["openvino"].folder,
        (*_ONNX_PACKAGES, "openvino"),
        "openvino",
        write_openvino,
        KINDS["openvino"].open,
        "import openvino\n\n"
        'model = openvino.Core().compile_model("{path}", "CPU")\n'
        "outputs = model(inputs)",
    ),
    "torch": Format(
        "model.pt2",
        "",
        (),
        "",
        write_torch,
        open_torch,
        "import torch\n\n"
        'model = torch.export.load("{path}").module()\n'
        "outputs = model(**{{name: torch.from_numpy(x) for name, x in inputs.items()}})",
    ),
}


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
    labels = description.labels if any(s.labelled for s in description.specs) else ()
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
