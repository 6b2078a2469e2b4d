"""Device, precision and engine of inference, and the engines of files written by ``ownbert
export``.

An exported folder is used with the engine that it was exported for. An ordinary model folder may
contain exported files in the places of sentence-transformers (``onnx/model.onnx``,
``openvino/openvino_model.xml``); a checksum verifies that they match the weights. This module does
not need torch.
"""

import importlib.util
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import Description
from ownbert.checkpoint.description import ANSWERS, VECTORS, agrees, claims
from ownbert.checkpoint.model_files import weights_checksums, weights_form
from ownbert.checks import anything, dict_of, known, maybe, record, text, whole
from ownbert.exceptions import InputError, in_short
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json
from ownbert.language.messages import Message, Option
from ownbert.train.device import pick_device, pick_precision

PARITY = "parity.json"
# Runs an exported file: maps input arrays by name to output arrays by name.
Engine = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
_CHECKSUM = record({"bytes": whole(0, 1 << 62), "crc32": whole(0, 1 << 32)})
_PARITY = record(
    {
        "to": text,
        "file": text,
        "sizes": dict_of(whole(0, 1 << 62), most=10),
        "weights": maybe(dict_of(_CHECKSUM, most=100_000)),
        "outputs": maybe(dict_of(anything, most=20)),
    },
    required=("to", "file"),
)
TORCH, AUTO = "torch", "auto"
ENGINES = (AUTO, TORCH, "onnx", "openvino")
# Devices and precisions that permit an exported file.
_CPU, _FLOAT32 = ("auto", "cpu"), ("float32", "auto")
# Called with the number of rows so far; called with a note or warning.
Progress = Callable[[int], None]
Say = Callable[[str], None]
_NOTE = "bfloat16, which the model card allows; use --precision float32 for exact digits"


class MissingOutput(InputError):
    """A file lacks the required outputs: it was exported from a model with another head."""


@dataclass(frozen=True)
class EngineKind:
    """An engine for exported files.

    Args:
        package: Python package of the engine.
        folder, file: folder of the file, relative to the model folder, and its name.
        data: companion data files; the second name is the one used by other programs.
        open: opens a file.
    """

    package: str
    folder: str
    file: str
    data: tuple[str, ...]
    open: Callable[[Path], Engine]

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def open_onnx(path: Path) -> Engine:
    """Open an ONNX file with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads := _threads():
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = session.run(names, dict(inputs))
        return {name: np.asarray(x) for name, x in zip(names, outputs, strict=True)}

    return engine


@cache
def _openvino() -> Any:
    """OpenVINO's core, one per process: its plug-in replaces the stack of signal handlers, and
    restores the previous one when it is freed. If several are not freed in reverse order, the next
    signal, such as Ctrl-C, ends the process by a segmentation fault."""
    import openvino

    return openvino.Core()


def open_openvino(path: Path) -> Engine:
    """Open an OpenVINO model in float32 on every processor."""
    # On some processors OpenVINO defaults to bfloat16.
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads := _threads():
        options["INFERENCE_NUM_THREADS"] = threads
    compiled = _openvino().compile_model(path, "CPU", options)
    names = [output.get_any_name() for output in compiled.outputs]
    request, turn = compiled.create_infer_request(), threading.Lock()

    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with turn:  # The next call overwrites these outputs.
            outputs = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
            return {name: np.array(outputs[i]) for i, name in enumerate(names)}

    return engine


def _threads() -> int | None:
    """The number of threads from the environment, read as torch does."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and 1 <= int(given) <= 1024 else None


# Fastest for a single query first.
KINDS = {
    "openvino": EngineKind(
        "openvino", "openvino", "openvino_model.xml", ("openvino_model.bin",), open_openvino
    ),
    "onnx": EngineKind(
        "onnxruntime", "onnx", "model.onnx", ("model.onnx.data", "model.onnx_data"), open_onnx
    ),
}


@dataclass(frozen=True)
class ExportedFile:
    """A file written by ``ownbert export``, in a ``folder`` with parity.json and, for tags
    decoded jointly, crf.json."""

    engine: str
    path: Path
    folder: Path

    def open(self) -> Engine:
        """Open the file with its engine."""
        _require_engine(self.engine)
        try:
            return KINDS[self.engine].open(self.path)
        except Exception as error:
            raise InputError(
                "{path} cannot be opened with {engine}: {first_line}; write it again: ownbert "
                "export",
                self.path,
                self.engine,
                first_line(error),
            ) from None


def first_line(error: Exception) -> str:
    """The first line of an engine's error, which may be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return in_short(lines[-1] if lines else type(error).__name__)


@dataclass(frozen=True)
class Choice:
    """The engines chosen for a folder.

    Args:
        exported: exported file; None to use torch only.
        packed: whether torch is used: for everything, or for more than a few short texts.
        note: the choice made by ``auto``, and the reason.
    """

    exported: ExportedFile | None = None
    packed: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """The names of the engines."""
        if self.exported is None:
            return TORCH
        both = Message("{first} and {second}", self.exported.engine, TORCH)
        return both if self.packed else self.exported.engine


@dataclass(frozen=True)
class Compute:
    """How a folder's models are run.

    Args:
        device: auto, cpu or cuda.
        precision: float32, bfloat16 or auto; None: the folder decides (``settled``). In float32 a
            prediction does not depend on the other rows of the batch.
        engine: torch, onnx, openvino or auto (``choose_engine``).
        network: use only the network of a ``fit`` folder.
        packed: whether torch runs copies of the models with packed matrices, which are faster but
            have no gradients.
        note: note for the user if the folder has decided the precision.
    """

    device: str = "auto"
    precision: str | None = "float32"
    engine: str | None = None
    network: bool = False
    packed: bool = True
    note: str = ""

    def settled(
        self, networks: Sequence[Description], what: Collection[str] = (ANSWERS, VECTORS)
    ) -> "Compute":
        """A copy with a precision; the same object if it already has one.

        The precision is bfloat16 on a CPU with native bfloat16 multiplication if all networks of
        the blend or ensemble were found to agree with float32 in ``what``, and float32 otherwise.
        """
        if self.precision is not None:
            return self
        if (
            self.engine in (None, TORCH)
            and networks
            # The cheapest check first: exported files are run without torch.
            and all(claims(each.values, what) for each in networks)
            and pick_device(self.device).type == "cpu"
            and pick_precision(AUTO, "cpu") == "bfloat16"
            and all(agrees(each, what) for each in networks)
        ):
            return replace(self, precision="bfloat16", note=Message("note: {line!t}", _NOTE))
        return replace(self, precision="float32")


def choose_engine(
    description: Description, compute: Compute, outputs: Sequence[str] = ()
) -> Choice:
    """Choose the engine for a model folder.

    Args:
        description: a model folder or a folder written by ``ownbert export``.
        compute: its engine is one of ``ENGINES``; by default torch, or the engine of an exported
            folder. With auto, single queries use the fastest installed engine that has a file
            there, and everything else uses torch. Exported files run on the CPU in float32 only.
        outputs: outputs that the file must have.

    Raises:
        MissingOutput: the file was exported from a model with another head.
        InputError: the engine cannot be used, or its file is missing, damaged or has other weights.
    """
    folder, engine = description.folder, compute.engine
    assert folder is not None
    maybe(known(*ENGINES))("engine", engine)
    if weights_form(folder) is None and (folder / PARITY).is_file():
        exported = _exported_file(folder, read_json(folder / PARITY, check=_PARITY), outputs)
        if engine not in (None, AUTO, exported.engine):
            raise InputError(
                "{folder} was exported to {engine} and has no file for {engine2}; omit "
                "{--engine}, or name the folder of the model",
                folder,
                exported.engine,
                engine,
            )
    elif engine in (None, TORCH):
        return Choice()
    elif engine == AUTO:
        return _automatic(folder, description, compute, outputs)
    else:
        exported = _engine_file(folder, description, engine, outputs)
    own = exported.engine
    if compute.device not in _CPU:
        device = Option("--device", compute.device)
        raise InputError("the engine {own} computes on the CPU; omit {device}", own, device)
    if compute.precision not in _FLOAT32:
        precision = Option("--precision", compute.precision)
        raise InputError("the engine {own} computes in float32; omit {precision}", own, precision)
    return Choice(
        exported, packed=False, note=Message("engine: {own}", own) if engine == AUTO else ""
    )


def _require_engine(engine: str) -> None:
    """Raise ``InputError`` if the package of an engine is missing."""
    if not KINDS[engine].installed:
        raise InputError(
            "the engine {engine} needs {package}, which is missing: pip install "
            "'ownbert[{engine}]'",
            engine,
            KINDS[engine].package,
        )


def _exported_file(
    folder: Path, described: Mapping[str, Any], outputs: Sequence[str]
) -> ExportedFile:
    """The file that the parity.json of a folder describes; its outputs and size are checked."""
    if (engine := described["to"]) not in KINDS:
        raise InputError(
            "{folder} was exported to {engine}, which ownbert does not read; name the folder of "
            "the model, or export it to onnx or openvino",
            folder,
            in_short(engine),
        )
    path = inside(folder, described["file"], folder / PARITY)
    if not path.is_file():
        raise InputError("no such file: {path}, which {folder} names", path, folder / PARITY)
    for name, size in (described.get("sizes") or {}).items():
        part = inside(path.parent, name, folder / PARITY)
        if not part.is_file() or part.stat().st_size != size:
            actual_size = part.stat().st_size if part.is_file() else 0
            raise InputError(
                "{part} is damaged: it has {actual_size:,} bytes, but was written with {size:,}",
                part,
                actual_size,
                size,
            )
    known = described.get("outputs") or outputs
    if missing := [name for name in outputs if name not in known]:
        raise missing_output(path, missing[0], known)
    return ExportedFile(engine, path, folder)


def missing_output(path: Path, name: str, known: Iterable[str]) -> MissingOutput:
    """The error for a file that lacks the required output."""
    return MissingOutput(
        Message(
            "{path} has no output {name}, only {options}; it belongs to a model with another head",
            path,
            name,
            ", ".join(known),
        )
    )


def _engine_file(
    folder: Path, description: Description, engine: str, outputs: Sequence[str]
) -> ExportedFile:
    """The file for an engine in an ordinary model folder."""
    if description.config.image is not None:
        raise InputError(
            "{folder} reads images, which only torch supports; omit {--engine}", folder
        )
    if description.decoder is not None:
        raise InputError(
            "{folder} predicts with its decoder, which only torch supports; omit {--engine}", folder
        )
    if any(spec.segments is not None for spec in description.specs):
        raise InputError(
            "{folder} reads long documents in segments, which only torch supports; omit {--engine}",
            folder,
        )
    kind = KINDS[engine]
    _require_engine(engine)
    path = folder / kind.folder
    command = f"ownbert export {folder} --to {engine} -o {path}"
    if not (path / kind.file).is_file():
        raise InputError(
            "{folder} has no {kind_folder}/{file}; create it: {command}",
            folder,
            kind.folder,
            kind.file,
            command,
        )
    if not (path / PARITY).is_file():
        raise InputError(
            "{path} was not written by ownbert export, so it may not match these weights; "
            "replace it: {command} {--overwrite}",
            path / kind.file,
            command,
        )
    described = read_json(path / PARITY, check=_PARITY)
    if described["to"] != engine or described.get("weights") != weights_checksums(folder):
        raise InputError(
            "{path} does not match the weights in {folder}; export it again: {command} "
            "{--overwrite}",
            path / kind.file,
            folder,
            command,
        )
    return _exported_file(path, described, outputs)


def _automatic(
    folder: Path, description: Description, compute: Compute, outputs: Sequence[str]
) -> Choice:
    """The fastest engine for single queries, and torch for everything else."""
    if compute.device not in _CPU or compute.precision not in _FLOAT32:
        return Choice(note="engine: torch, for this device and precision")
    note = "engine: torch, as neither onnxruntime nor openvino is installed"
    for engine in (name for name, kind in KINDS.items() if kind.installed):
        try:
            exported = _engine_file(folder, description, engine, outputs)
        except InputError as error:
            note = Message("engine: torch; {problems}", error)
        else:
            note = Message("engine: {engine} for single queries, torch for more", engine)
            return Choice(exported, packed=True, note=note)
    return Choice(note=note)


def say_each(lines: Iterable[str], say: Say | None) -> None:
    """Pass notes and warnings to the user's function, if there is one."""
    if say is not None:
        for line in lines:
            say(line)


FLOAT32, AS_FOLDER = Compute(), Compute(precision=None)
