"""``export``: writes a trained folder as a single file for other programs, with companion files."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import ownbert
from ownbert.checkpoint import CONFIG, Description, describe, load, load_tokenizer, require_float
from ownbert.checkpoint.model_files import weights_checksums, without_agreement
from ownbert.checks import between, known
from ownbert.exceptions import InputError, in_short
from ownbert.exporting.formats import FORMATS, Format, name_of, write_export_card
from ownbert.exporting.padded import PaddedModel
from ownbert.exporting.parity import Parity, compare, sequences_of
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.json_files import write_json
from ownbert.files.writing import make_folder
from ownbert.hub import model_folder
from ownbert.inference.blend import network_note
from ownbert.inference.engines import KINDS, PARITY, Say, say_each
from ownbert.inference.exported_network import CRF
from ownbert.inference.finished_files import MODULES, copy_files, network_files, require_inside
from ownbert.inference.opened import list_members
from ownbert.language.messages import Option
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.nn.output_heads import ClassificationHead, TokenHead
from ownbert.run.run_folder import complete_folder, refuse_taken
from ownbert.text.tokenizer_folder import TOKENIZER, TOKENIZER_FILES, has_tokenizer


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
    with writing(target):
        looked_in = os.path.realpath(source / kind.folder)  # by engines; torch has no folder
        beside = kind.folder != "" and looked_in == os.path.realpath(target)
        options = {"overwrite": overwrite, "to": to, "beside": beside}
        refuse_taken(target, source, data, looked_in=kind.folder or None, **options)
        refuse_foreign(target, _output_names(source, kind, beside=beside))
        description, sentences = describe_network(source), (source / MODULES).is_file()
        require_float(description.values, folder)
        model = load(description, heads=() if sentences else None)
        notes = list(notes_of(source, model))
        say_each((f"note: {note}" for note in notes), say)
        if to == "openvino" and any(_ngrams(head) for head in model.heads.values()):
            raise InputError(
                "{folder} reads hashed n-grams, whose 64-bit integers OpenVINO does not "
                "support; use {--to onnx} or torch",
                folder,
            )
        graph = PaddedModel(model)
        given = sequences_of(description, model, data=data, text_column=text_column)
        say_each(filter(None, (given.warning,)), say)
        with complete_folder(target) as new:
            path = new / (kind.folder if sentences and not beside else "") / kind.file
            make_folder(path.parent)
            with _export_errors(source, to):
                kind.write(graph, path)
                parity = compare(model, graph, kind.open(path), given)
            require_near(parity, tolerance, target)
            if not beside:
                copy_beside(source, new, description)
            for head in model.heads.values():
                if isinstance(head, TokenHead) and head.crf is not None:
                    weights = {n: p.detach().tolist() for n, p in head.crf.named_parameters()}
                    write_json(new / CRF, weights)
            file = path.relative_to(new).as_posix()
            write_json(new / PARITY, _report(parity, source, to, path, file, kind, tolerance))
            if beside:
                return parity
            write_export_card(
                new,
                name=Path(os.path.realpath(target)).name,
                source=source,
                to=to,
                file=file,
                description=description,
                graph=graph,
                parity=parity,
                tolerance=tolerance,
                notes=notes,
            )
        return parity


def _output_names(source: Path, kind: Format, *, beside: bool) -> list[str]:
    """The names of the files written by an export."""
    data = KINDS[kind.folder].data if kind.folder else ()
    names = [PARITY, CRF, kind.file, *data]
    if beside:
        return names
    return [*names, *map(str, network_files(source, weights=False)), *TOKENIZER_FILES, kind.folder]


def describe_network(source: Path) -> Description:
    """Describe a folder with a single network.

    Raises:
        InputError: there are several networks, or none, or files to copy are outside of the folder.
    """
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
                "the tags of a text are decoded jointly; the logits score each token separately, "
                f"and {CRF} has the transition scores of tags"
            )
        if isinstance(head, ClassificationHead) and head.segments is not None:
            yield (
                "the model reads a long document in segments; the file reads one segment, so "
                "longer documents must be truncated"
            )


def _ngrams(head: Any) -> bool:
    return isinstance(head, ClassificationHead) and head.ngrams is not None


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


def _report(
    parity: Parity, source: Path, to: str, path: Path, file: str, kind: Format, tolerance: float
) -> dict[str, Any]:
    """parity.json: identity of file and weights, and results of the comparison."""
    parts = path.parent.glob(f"{path.stem}*")
    packages = {name: version(name) for name in kind.packages}
    versions = {"ownbert": ownbert.__version__, "torch": torch.__version__, **packages}
    return {
        "model": name_of(source),
        "to": to,
        "file": file,
        "sizes": {part.name: part.stat().st_size for part in sorted(parts)},
        "weights": weights_checksums(source),
        "tolerance": tolerance,
        "largest_difference": parity.largest_difference,
        "least_cosine": parity.least_cosine,
        **asdict(parity),
        "versions": {**versions, "python": platform.python_version()},
    }
