"""Selects by name the files of a finished folder that are needed to use it.

``push``, ``export``, ``quantize``, ``save`` and ``fit`` copy only these files, because a folder may
also contain texts, training states, and a user's own files.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ownbert.checkpoint.model_files import CONFIG, INDEX, QUANTIZED, weights_form
from ownbert.checks import anything, list_of, maybe, record, text
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json
from ownbert.files.writing import atomic_path
from ownbert.inference.engines import KINDS, PARITY
from ownbert.inference.exported_network import CRF
from ownbert.run.file_names import BLEND, CARD, CONFUSION, ENCODER, ENSEMBLE, SOURCE, TRAINING_ROWS
from ownbert.tasks.kinds import task_files
from ownbert.text.tokenizer_folder import TOKENIZER_FILES
from ownbert.train.log import CURVES
from ownbert.views import LINEAR, PROBE

MODULES = "modules.json"
# Reports of ``ownbert fit``, which quote some of the texts, and counts of their words.
REPORTS = ("report.html", "report.json", "report.txt", TRAINING_ROWS)
# Files of a network other than its weights.
BESIDE_WEIGHTS = (*(CONFIG, "generation_config.json", *TOKENIZER_FILES, *task_files()),)
_LINEAR_ENDS = ("json", "safetensors")
_PROGRAM = "model.pt2"  # written by torch.export
_LISTED_MODULES = list_of(record({"path": maybe(text)}), most=100)
_MEMBERS = record({"members": maybe(list_of(anything, most=1000))})


def network_files(folder: Path, *, weights: bool = True) -> Iterator[Path]:
    """Yield a network's files, relative to ``folder``: config, weights, tokenizer,
    sentence-transformers modules."""
    yield from _existing(folder, BESIDE_WEIGHTS)
    yield from _existing(folder, [f"{SOURCE}/{name}" for name in TOKENIZER_FILES])
    if weights:
        yield from _weights(folder)
    for module in _modules(folder):
        yield from _existing(folder, [module / name for name in BESIDE_WEIGHTS])
        if weights:
            yield from (module / name for name in _weights(folder / module))


def finished_files(folder: Path) -> list[Path]:
    """All files that Transformers, sentence-transformers, an engine or ``predict`` needs, and
    the card with its pictures; sorted, relative to ``folder``."""
    files = {*network_files(folder), *_exported(folder)}
    files |= {*_existing(folder, (BLEND, ENSEMBLE, CARD, CURVES, CONFUSION))}
    for member in _members(folder):
        path = folder / member
        used = {*network_files(path), *_exported(path), *_linear(path)}
        used |= {ENCODER / name for name in network_files(path / ENCODER)}
        files |= {Path(os.path.normpath(member / name)) for name in used}
    return sorted(files)


def require_inside(folder: Path, names: Iterable[Path], *, cached: bool = True) -> list[Path]:
    """Check that files, named relative to a folder, are inside and not links that point outside;
    return the names.

    In the Hugging Face cache (``cached``), files are links to blobs.
    """
    real, names = Path(os.path.realpath(folder)), list(names)
    places = [real]
    if cached and real.parent.name == "snapshots":
        places.append(real.parent.parent / "blobs")
    for name in names:
        path = Path(os.path.realpath(folder / name))
        if not any(place in path.parents for place in places):
            raise InputError(
                "{folder} is a link to a file outside the folder, which would be copied; put "
                "the file itself there",
                folder / name,
            )
    return names


def copy_files(folder: Path, target: Path, names: Iterable[Path]) -> None:
    """Copy files of ``folder`` into ``target``, each completely or not at all; nothing if a link
    points outside the folder."""
    for name in require_inside(folder, names):
        with atomic_path(target / name) as new:
            shutil.copyfile(folder / name, new)


def _existing(folder: Path, names: Iterable[str | Path]) -> Iterator[Path]:
    return (Path(name) for name in names if (folder / name).is_file())


def _weights(folder: Path) -> Iterator[Path]:
    """The weight files that are loaded if there are several formats."""
    yield from _existing(folder, (QUANTIZED, CRF))
    form = weights_form(folder)
    if form is None:
        return
    yield Path(form.name)
    if form.suffix == ".json":
        names = sorted(set(read_json(form, check=INDEX)["weight_map"].values()))
        parts = [n for n in names if Path(n).name == n and n.endswith((".safetensors", ".bin"))]
        yield from _existing(folder, parts)


def _modules(folder: Path) -> Iterator[Path]:
    """The folders of sentence-transformers modules."""
    listed = read_json(folder / MODULES, list, missing=[], check=_LISTED_MODULES)
    for module in listed:
        if path := module.get("path"):
            inside(folder, path, folder / MODULES)
            yield Path(path)


def _exported(folder: Path) -> Iterator[Path]:
    """Files written by ``ownbert export``, in their own folder or beside the weights."""
    yield from _existing(folder, (PARITY, CRF, _PROGRAM))
    for kind in KINDS.values():
        files = [kind.file, *kind.data]
        inside_folder = [f"{kind.folder}/{name}" for name in (PARITY, CRF, *files)]
        yield from _existing(folder, [*files, *inside_folder])


def _members(folder: Path) -> Iterator[Path]:
    """The member folders of a blend or an ensemble."""
    for name in (BLEND, ENSEMBLE):
        source = folder / name
        for member in read_json(source, missing={}, check=_MEMBERS).get("members") or []:
            entry = member if isinstance(member, dict) else {}
            for path in [*(entry.get("folders") or []), entry.get("folder")]:
                if isinstance(path, str):
                    inside(folder, path, source)
                    yield Path(path)


def _linear(folder: Path) -> Iterator[Path]:
    """The files of a linear model, and those of the model whose view it shares."""
    yield from _existing(folder, [f"{n}.{end}" for n in (LINEAR, PROBE) for end in _LINEAR_ENDS])
    settings = read_json(folder / f"{LINEAR}.json", missing={})
    view = settings.get("view")
    if settings.get("beside") and isinstance(view, str) and Path(view).name == view:
        other = Path("../..", view)  # same path as in LinearView.load
        yield from _existing(folder, [other / f"{LINEAR}.{end}" for end in _LINEAR_ENDS])
