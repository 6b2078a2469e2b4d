"""``export``: writes a trained folder as a single file for other programs, with companion files.

B texts, S longest text, C choices.
"""

import importlib.util
import io
import logging
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ownbert
from ownbert.checkpoint import CONFIG, Description, describe, load, load_tokenizer, require_float
from ownbert.checkpoint.model_files import weights_checksums, without_agreement
from ownbert.checks import between, known
from ownbert.exceptions import InputError, in_short
from ownbert.exporting.padded import PaddedModel
from ownbert.exporting.parity import Parity, compare, sequences_of
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.json_files import write_json
from ownbert.files.writing import make_folder
from ownbert.hub import model_folder
from ownbert.inference.blend import network_note
from ownbert.inference.engines import KINDS, PARITY, Engine, EngineKind, Say, say_each
from ownbert.inference.exported_network import CRF
from ownbert.inference.finished_files import MODULES, copy_files, network_files, require_inside
from ownbert.inference.opened import list_members
from ownbert.language import translated
from ownbert.language.messages import Message, Option
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.nn.output_heads import ClassificationHead, TokenHead
from ownbert.run.model_card import hub_base, save_card, table
from ownbert.run.run_folder import complete_folder, refuse_taken
from ownbert.text.tokenizer_folder import TOKENIZER, TOKENIZER_FILES, has_tokenizer

# Size of the weights, in bytes, from which ONNX stores them in a separate file; a file is limited
# to 2 GiB.
_LARGEST_ONNX = 3 << 29
# Loggers of the ONNX exporter.
_LOGGERS = ("torch.onnx", "torch.onnx._internal.exporter._registration", "onnxscript", "onnx_ir")
_LIBRARIES = {"onnx": "onnx", "openvino": "openvino", "torch": "pytorch"}
_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


@dataclass(frozen=True)
class Format:
    """A file format.

    Args:
        engine: runs the file; its folder is the one in which sentence-transformers looks for the
            file of a sentence model.
        write: writes the file.
        load: lines of Python for the model card, with {path}.
        packages: packages for writing the file.
    """

    engine: EngineKind
    write: Callable[[PaddedModel, Path], None]
    load: str
    packages: tuple[str, ...] = ("onnx", "onnxscript")

    def require(self, name: str) -> None:
        """Raise ``InputError`` if a package is missing."""
        for package in (*self.packages, self.engine.package):
            if importlib.util.find_spec(package) is None:
                raise InputError(
                    "{to} needs {package}, which is missing: pip install 'ownbert[{extra}]'",
                    Option("--to", name),
                    package,
                    name,
                )


def _axes(graph: PaddedModel) -> tuple[str, ...]:
    """The names of the axes of inputs."""
    return ("batch", "choices", "length") if graph.choices else ("batch", "length")


def _trace(graph: PaddedModel) -> tuple[Any, tuple[str, ...]]:
    """Trace the graph as a program of torch.export; return it with the names of its outputs.

    B, C and S are dynamic.
    """
    shape = (2, 3, 5) if graph.choices else (2, 5)
    # Separate tensors, otherwise the tracer identifies them.
    given = {name: torch.ones(shape, dtype=torch.long) for name in graph.input_names}
    axes = {i: torch.export.Dim(name) for i, name in enumerate(_axes(graph))}
    shapes = dict.fromkeys(graph.input_names, axes)
    with torch.no_grad(), _quiet():
        program = torch.export.export(graph, (), kwargs=given, dynamic_shapes=shapes)
        for node in program.graph.nodes:  # They contain local file names.
            node.meta.pop("stack_trace", None)
        return program, tuple(graph(**given))


def _size(size: Any) -> str:
    """The name of an axis; the size if it is fixed."""
    return str(getattr(size, "value", size))


def write_torch(graph: PaddedModel, path: Path) -> None:
    """Write a program of torch.export."""
    program, _ = _trace(graph)
    buffer = io.BytesIO()  # torch aborts the process if the disk is full
    with _quiet():
        torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def write_onnx(graph: PaddedModel, path: Path) -> None:
    """Write an ONNX file with named inputs, outputs and axes."""
    program, outputs = _trace(graph)
    with torch.no_grad(), _quiet():
        onnx_program = torch.onnx.export(
            program, dynamo=True, verbose=False, output_names=list(outputs), optimize=True
        )
        assert onnx_program is not None
        # Readable names instead of the tracer's.
        inputs, values = onnx_program.model.graph.inputs, onnx_program.model.graph.outputs
        names = dict(zip(map(_size, inputs[0].shape or ()), _axes(graph), strict=True))
        for shape in (value.shape for value in (*inputs, *values) if value.shape is not None):
            for i, size in enumerate(shape):
                shape[i] = names.get(_size(size), size)
        for node in onnx_program.model.graph:
            node.metadata_props.clear()  # only useful to the exporter
        size = sum(p.numel() * p.element_size() for p in graph.parameters())
        onnx_program.save(str(path), external_data=size > _LARGEST_ONNX)


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
        KINDS["onnx"],
        write_onnx,
        "import onnxruntime\n\n"
        'session = onnxruntime.InferenceSession("{path}")\n'
        "outputs = session.run(None, inputs)",
    ),
    "openvino": Format(
        KINDS["openvino"],
        write_openvino,
        "import openvino\n\n"
        'model = openvino.Core().compile_model("{path}", "CPU")\n'
        "outputs = model(inputs)",
    ),
    "torch": Format(
        EngineKind("torch", "", "model.pt2", (), open_torch),
        write_torch,
        "import torch\n\n"
        'model = torch.export.load("{path}").module()\n'
        "outputs = model(**{{name: torch.from_numpy(x) for name, x in inputs.items()}})",
        packages=(),
    ),
}


@in_float32
def export(
    folder: str | Path,
    output: str | Path,
    to: str = "onnx",
    *,
    data: str | Path | None = None,
    text_column: str | None = None,
    tolerance: float = 1e-3,
    overwrite: bool = False,
    say: Say | None = None,
) -> Parity:
    """Export a model folder to a file for other programs, after comparing it with the model.

    The graph takes padded ``input_ids``, ``attention_mask`` and, for models with segments,
    ``token_type_ids``: int64 of any shape (texts, length), or (questions, choices, length) for
    multiple choice. Outputs are ``last_hidden_state``, ``logits``, or ``start_logits`` and
    ``end_logits``, as in Transformers' own ONNX files. The folder also gets config.json, the
    tokenizer, a model card and parity.json; for sentence models the files of sentence-transformers.

    Args:
        folder: folder of a text encoder with any head.
        output: a new or empty folder. With ``onnx`` or ``openvino`` inside the model folder,
            where ``--engine`` looks, only the file and parity.json are written.
        to: onnx, openvino or torch (a program of ``torch.export``).
        data: file for the comparison with rows of the folder's task, read as by ``predict``, or
            of texts; the first 256 are used. By default texts included in this package.
        text_column: column of the text in tables.
        tolerance: maximum absolute difference between outputs of file and model.
        overwrite: replace files of the same names in ``output``.
        say: called with notes.

    Returns:
        The results of the comparison.

    Raises:
        InputError: the model cannot be exported, a package is missing, the output exists, or the
            file exceeds the tolerance; nothing is written.

    Source: ONNX (onnx.ai), OpenVINO (docs.openvino.ai), torch.export (docs.pytorch.org).
    """
    known(*FORMATS)("--to", to)
    between(0, 1, "(]")("tolerance", tolerance)
    kind, source, target = FORMATS[to], model_folder(folder), Path(output)
    kind.require(to)
    engine = kind.engine
    with writing(target):
        looked_in = os.path.realpath(source / engine.folder)  # by engines; torch has no folder
        beside = engine.folder != "" and looked_in == os.path.realpath(target)
        options = {"overwrite": overwrite, "to": to, "beside": beside}
        refuse_taken(target, source, data, looked_in=engine.folder or None, **options)
        names = [PARITY, CRF, engine.file, *engine.data]
        if not beside:
            names += [*map(str, network_files(source, weights=False)), *TOKENIZER_FILES]
            names.append(engine.folder)
        refuse_foreign(target, names)
        description, sentences = describe_network(source), (source / MODULES).is_file()
        require_float(description.values, folder)
        model = load(description, heads=() if sentences else None)
        notes = list(notes_of(source, model))
        say_each((Message("note: {line!t}", note) for note in notes), say)
        if to == "openvino" and any(getattr(head, "ngrams", None) for head in model.heads.values()):
            raise InputError(
                "{folder} reads hashed n-grams, whose 64-bit integers OpenVINO does not "
                "support; use {--to onnx} or torch",
                folder,
            )
        graph = PaddedModel(model)
        compared = sequences_of(description, model, data=data, text_column=text_column)
        say_each(filter(None, (compared.warning,)), say)
        with complete_folder(target) as new:
            path = new / (engine.folder if sentences and not beside else "") / engine.file
            make_folder(path.parent)
            with _export_errors(source, to):
                kind.write(graph, path)
                parity = compare(model, graph, engine.open(path), compared)
            require_near(parity, tolerance, target)
            if not beside:
                copy_beside(source, new, description)
            for head in model.heads.values():
                if isinstance(head, TokenHead) and head.crf is not None:
                    weights = {n: p.detach().tolist() for n, p in head.crf.named_parameters()}
                    write_json(new / CRF, weights)
            file = path.relative_to(new).as_posix()
            report = {"to": to, "file": file, "tolerance": tolerance}
            write_json(new / PARITY, _report(parity, source, path, kind) | report)
            if not beside:
                name = Path(os.path.realpath(target)).name
                values = {**report, "notes": notes, "name": name}
                write_export_card(new, source, description, graph, parity, values)
        return parity


def describe_network(source: Path) -> Description:
    """Describe a folder with a single network, whose files are inside of it."""
    members = list_members(source)
    if len(members) > 1:
        raise InputError(
            "{source} contains {count} models, whose predictions are averaged; use one of them: "
            "{members}",
            source,
            len(members),
            members[0],
        )
    require_inside(source, network_files(source, weights=False))
    return describe(source)


def notes_of(source: Path, model: Model) -> Iterator[str]:
    """Yield notes on steps that the exported file does not include."""
    if (note := network_note(source)) is not None:
        yield note
    for head in model.heads.values():
        if isinstance(head, TokenHead) and head.crf is not None:
            yield (
                Message(
                    "the tags of a text are decoded jointly; the logits score each token "
                    "separately, and {crf} has the transition scores of tags",
                    CRF,
                )
            )
        if isinstance(head, ClassificationHead) and head.segments is not None:
            yield (
                "the model reads a long document in segments; the file reads one segment, so "
                "longer documents must be truncated"
            )


@contextmanager
def _export_errors(source: Path, to: str) -> Iterator[None]:
    """Convert the various errors of exporters and engines to ``InputError``."""
    try:
        yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            "{source} cannot be exported to {to}: {reason}", source, to, in_short(reason)
        ) from error


def require_near(parity: Parity, tolerance: float, target: Path) -> None:
    """Raise ``InputError`` if an output differs from the model's by more than ``tolerance``."""
    for name, one in parity.outputs.items():
        if not one.largest_difference <= tolerance:
            raise InputError(
                "{target} is not written: {name} of the exported file differs from the model's "
                "by up to {largest_difference:.2g}, more than {tolerance}",
                target,
                name,
                one.largest_difference,
                Option("--tolerance", tolerance),
            )


def copy_beside(source: Path, new: Path, description: Description) -> None:
    """Copy config, tokenizer and files of sentence-transformers, without weights."""
    copy_files(source, new, network_files(source, weights=False))
    # A model's agreement in bfloat16 does not apply to its exported file.
    if (values := without_agreement(description.values)) != description.values:
        write_json(new / CONFIG, values)
    if has_tokenizer(source) and not (new / TOKENIZER).exists():
        load_tokenizer(description).save(new)


def _report(parity: Parity, source: Path, path: Path, kind: Format) -> dict[str, Any]:
    """parity.json: identity of file and weights, and results of the comparison."""
    parts = sorted(path.parent.glob(f"{path.stem}*"))
    packages = (*kind.packages, kind.engine.package)
    return {
        "model": name_of(source),
        "sizes": {part.name: part.stat().st_size for part in parts},
        "weights": weights_checksums(source),
        "largest_difference": parity.largest_difference,
        "least_cosine": parity.least_cosine,
        **asdict(parity),
        "versions": {
            "ownbert": ownbert.__version__,
            "torch": torch.__version__,
            **{name: version(name) for name in packages if name != "torch"},
            "python": platform.python_version(),
        },
    }


def name_of(source: Path) -> str:
    """The hub name of a model, if it has one, or the name of its folder."""
    return hub_base(str(source)) or source.resolve().name


def write_export_card(
    new: Path,
    source: Path,
    description: Description,
    graph: PaddedModel,
    parity: Parity,
    values: Mapping[str, Any],
) -> None:
    """Write README.md into the folder ``new``, which is renamed to ``values["name"]`` afterwards;
    ``values["notes"]`` are steps that the file does not include."""
    texts = "batch, choices" if graph.choices else "batch"
    tensors = [(translated("input"), n, "int64", f"({texts}, length)") for n in graph.input_names]
    differences = []
    for output, found in parity.outputs.items():
        axes = f"{texts}, length" if graph.per_token(output) else texts
        tensors.append((translated("output"), output, "float32", f"({axes}, ...)"))
        cosine, difference = f"{found.least_cosine:.8f}", f"{found.largest_difference:.2e}"
        differences.append((output, difference, cosine, f"{found.values:,}"))
    to, name, file = (values[key] for key in ("to", "name", "file"))
    values = {
        **values,
        "family": description.family.model_type,
        "config": description.config,
        "source": name_of(source),
        "labels": description.labels if any(s.labelled for s in description.specs) else (),
        "tensors": table(("", "name", "type", "shape"), tensors),
        "parity": parity,
        "differences": table(
            ("output", "largest difference", "lowest cosine", "numbers"), differences
        ),
        "tokenizer": load_tokenizer(description) if has_tokenizer(source) else None,
        "graph": graph,
        "fields": _FIELDS,
        "load": FORMATS[to].load.format(path=f"{name}/{file}"),
    }
    save_card(new, {"library_name": _LIBRARIES[to]}, __file__, values, name=name, base=source)
