"""The files that a graph is written to, and how each is run without ownbert.

B texts, S longest text, C choices.
"""

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.errors import InputError
from ownbert.exporting.padded import PaddedModel
from ownbert.inference.engines import KINDS, Engine

# Bytes of weights from which on they stand beside an ONNX file: one file holds 2 GiB at most.
_LARGEST_ONNX = 3 << 29
_BATCH, _CHOICES, _LENGTH = "batch", "choices", "length"
# What writes ONNX says about itself: a logger, and how its lines are hidden.
_LOGGERS = ("torch.onnx", "torch.onnx._internal.exporter._registration", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
        file: its name.
        folder: of a sentence model, the folder in which sentence-transformers looks for it.
        packages: that write and run it.
        extra: of ownbert, with these packages.
        write: writes it to a path.
        open: the engine of a written file.
        load: lines of Python that a model card shows, with {path}.
    """

    file: str
    folder: str
    packages: tuple[str, ...]
    extra: str
    write: Callable[[PaddedModel, Path], None]
    open: Callable[[Path], Engine]
    load: str

    def require(self, name: str) -> None:
        """Raises ``InputError`` where a package is missing."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise InputError(
                    f"--to {name} needs {package}, which is missing: "
                    f"pip install 'ownbert[{self.extra}]'"
                )


def trace(graph: PaddedModel) -> tuple[Any, tuple[str, ...]]:
    """The graph as a program of torch.export, and the names of its outputs.

    Any B, C and S may be given to it, by the names of ``graph.input_names``.
    """
    shape = (2, 3, 5) if graph.choices else (2, 5)
    # Of their own each, or the tracer takes them for one.
    given = {name: torch.ones(shape, dtype=torch.long) for name in graph.input_names}
    names = (_BATCH, _CHOICES, _LENGTH) if graph.choices else (_BATCH, _LENGTH)
    axes = {i: torch.export.Dim(name) for i, name in enumerate(names)}
    shapes = dict.fromkeys(graph.input_names, axes)
    with torch.no_grad(), _quiet():
        program = torch.export.export(graph, (), kwargs=given, dynamic_shapes=shapes)
        for node in program.graph.nodes:  # They name files of this machine.
            node.meta.pop("stack_trace", None)
        return program, tuple(graph(**given))


def write_torch(graph: PaddedModel, path: Path) -> None:
    """Write a program of torch.export, which needs torch alone."""
    program, _ = trace(graph)
    buffer = io.BytesIO()  # torch itself ends the process where a disk is full
    with _quiet():
        torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def write_onnx(graph: PaddedModel, path: Path) -> None:
    """Write an ONNX file, with named inputs, outputs and axes."""
    program, outputs = trace(graph)
    with torch.no_grad(), _quiet():
        made = torch.onnx.export(
            program, dynamo=True, verbose=False, output_names=list(outputs), optimize=True
        )
        assert made is not None
        _name_axes(made.model, graph, outputs)
        for node in made.model.graph:
            node.metadata_props.clear()  # of use to the exporter alone
        size = sum(p.numel() * p.element_size() for p in graph.parameters())
        made.save(str(path), external_data=size > _LARGEST_ONNX)


def _name_axes(model: Any, graph: PaddedModel, outputs: tuple[str, ...]) -> None:
    """Give the axes of inputs and outputs names that people read, in place of the tracer's."""
    names = (_BATCH, _CHOICES, _LENGTH) if graph.choices else (_BATCH, _LENGTH)
    first = next(iter(model.graph.inputs))
    known = dict(zip(map(_axis, first.shape), names, strict=True))
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None:
            for i, size in enumerate(value.shape):
                if _axis(size) in known:
                    value.shape[i] = known[_axis(size)]


def _axis(size: Any) -> str:
    """The name of an axis; of a fixed one the number."""
    return str(getattr(size, "value", size))


def write_openvino(graph: PaddedModel, path: Path) -> None:
    """Write OpenVINO's files, .xml and .bin, by way of ONNX; weights stay in float32."""
    import openvino

    onnx = path.with_name(f"{path.stem}.onnx")
    write_onnx(graph, onnx)
    try:
        # OpenVINO's converter does the same, and sends statistics of its use.
        model = openvino.Core().read_model(onnx)
        openvino.save_model(model, path, compress_to_fp16=False)
    finally:
        for file in (onnx, onnx.with_name(f"{onnx.name}.data")):
            file.unlink(missing_ok=True)


def open_torch(path: Path) -> Engine:
    """The engine of a file of ``write_torch``."""
    with _quiet():
        run = torch.export.load(path).module()

    @torch.no_grad()
    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found: dict[str, Tensor] = run(**{n: torch.from_numpy(x) for n, x in inputs.items()})
        return {name: x.numpy() for name, x in found.items()}

    return engine


@contextmanager
def _quiet() -> Iterator[None]:
    """What tracers say of themselves is not for users."""
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


_ONNX_PACKAGES = ("onnx", "onnxscript")
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
