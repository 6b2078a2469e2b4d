"""Learn from held-out rows of a folder what it does not know. N rows, C labels."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import model_checksums, weights_checksums, weights_form
from ownbert.errors import InputError
from ownbert.files import inside, read_yaml
from ownbert.hub import model_folder
from ownbert.inference.abstaining.held_out import HeldOut
from ownbert.inference.abstaining.scope import Scope
from ownbert.inference.embedding.embedder import Embedder
from ownbert.inference.embedding.embedding_outputs import of_length_one
from ownbert.inference.frozen_probe import ENCODER, embed_rows
from ownbert.inference.opened import Opened, read_labelled_rows
from ownbert.inference.opened_blend import all_raws
from ownbert.run.file_names import BLEND, HELD_OUT, HELD_OUT_NETWORK, RECIPE
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row
from ownbert.views.linear_files import PROBE

Say = Callable[[str], None]
# Texts whose vectors are kept at most: of each label, and of all.
_MOST_OF_LABEL, _MOST_TEXTS = 200, 20_000
# The network of ``fit`` that has not learnt labels.
_FROZEN = f"members/{PROBE}/{ENCODER}"


class _Network(NamedTuple):
    """A network that makes vectors.

    Args:
        name: its folder, relative to that of the models where it is inside.
        folder: the same as a path.
        blind: whether it has not learnt the labels.
    """

    name: str
    folder: Path
    blind: bool


def held_out_of(
    opened: Opened,
    calibrate: Any = None,
    say: Say | None = None,
    options: OutputOptions = PLAIN_OUTPUT,
) -> HeldOut:
    """What is known of the held-out rows of a folder.

    Args:
        opened: the folder.
        calibrate: labelled rows, a file or rows in memory, that the models have not learnt from;
            what they teach is saved in the folder. By default what the folder keeps, or for one of
            ``finetune`` the dev file that its recipe names.
        say: called with what was learnt from.
        options: what the rows must suffice for.

    Raises:
        InputError: there are no such rows, too few, or they cannot be used.
    """
    task, folder = opened.task, opened.folder
    alone = opened.compute.network and (folder / BLEND).exists()
    path = folder / (HELD_OUT_NETWORK if alone else HELD_OUT)
    task.refuse_output_options(OutputOptions(coverage=0.9))
    found = None if calibrate is not None else HeldOut.load(path, task.labels, models_of(opened))
    if found is not None:
        return found
    data = _recipe(folder).get("data")
    data = data if isinstance(data, dict) else {}
    if calibrate is None:
        dev = data.get("dev")
        if not isinstance(dev, str) or not Path(dev).is_file():
            if alone:
                raise InputError(
                    f"{folder} keeps no held-out rows of its network alone; give labelled rows "
                    "that it was not trained on: --calibrate FILE"
                )
            raise InputError(
                f"{folder} keeps no held-out rows; give labelled rows that it was not trained on: "
                "--calibrate FILE"
            )
        calibrate = dev
    rows = read_labelled_rows(task, calibrate, folder)
    named = calibrate if isinstance(calibrate, str | os.PathLike) else "memory"
    train, more = data.get("train"), []
    if isinstance(train, str) and Path(train).is_file():
        rest = task.read(train)
        more = [r for r in rest if isinstance(r.target, str) and r.target in task.labels]
        _refuse_learnt(rows, more, named, train)
    probabilities = all_raws(opened, rows)
    source = f"{len(rows):,} rows of {named}"
    found = learn(opened, rows, probabilities, more, source=source)
    if options.coverage is not None:
        found.least_probability(options.coverage)
    if options.unknown is not None:
        found.threshold(options.unknown)
    try:
        found.save(path)
    except (OSError, InputError):  # of a cache that is read alone: it is learnt again
        return found
    if say is not None:
        say(f"calibrated on {found.source}; saved {path}")
    return found


def _refuse_learnt(rows: Sequence[Row], train: Sequence[Row], named: Any, path: str) -> None:
    """Raise ``InputError`` if most of the rows are those that the models have learnt from."""
    known = {row.texts for row in train}
    count = sum(row.texts in known for row in rows)
    if 2 * count > len(rows):
        raise InputError(
            f"{count:,} of the {len(rows):,} rows of {named} are in {path}, which the model was "
            "trained on; calibrate with other rows"
        )


def learn(
    opened: Opened,
    rows: Sequence[Row],
    probabilities: np.ndarray,
    more: Sequence[Row] = (),
    *,
    source: str,
    vectors: np.ndarray | bool = True,
) -> HeldOut:
    """Learn from held-out rows.

    Args:
        opened: the folder of the models.
        rows: that the models have not learnt from.
        probabilities: (N, C) of these.
        more: other rows with the same labels, which they may have learnt from.
        source: what the rows are, for the user.
        vectors: (rows and more, D) of the network before it learnt the labels; False: of none, so
            that texts are told by the highest probability.
    """
    task: Any = opened.task
    targets = np.asarray([task.target(row) for row in rows])
    missing = np.sort(1 - probabilities[np.arange(len(rows)), targets])
    about: dict[str, Any] = {
        "labels": tuple(task.labels),
        "source": source,
        "models": models_of(opened),
        "missing": missing,
    }
    network = None if vectors is False else _network(opened)
    if network is None or (isinstance(vectors, np.ndarray) and not network.blind):
        return HeldOut(scores=np.sort(1 - probabilities.max(1)), **about)
    known = [*rows, *more] if network.blind else rows
    labels = np.asarray([task.target(row) for row in known])
    once = {row.texts: i for i, row in reversed(list(enumerate(known)))}
    chosen = np.sort(list(once.values()))
    chosen = chosen[_some(labels[chosen])]
    if isinstance(vectors, np.ndarray):
        found = vectors[chosen]
    else:
        embedder = Embedder(network.folder, device=opened.compute.device)
        found = embed_rows(embedder, [known[i].texts for i in chosen])
    found = of_length_one(found)
    scope, scores = Scope.fit(found, labels[chosen], len(task.labels), blind=network.blind)
    return HeldOut(
        scores=np.sort(scores),
        scope=scope,
        encoder=network.name,
        encoder_weights=weights_checksums(network.folder),
        **about,
    )


def models_of(opened: Opened) -> list[Any]:
    """The checksums of the files that the probabilities of a folder depend on."""
    return [
        [os.path.relpath(member, opened.folder), name, found]
        for member in opened.members
        for name, found in model_checksums(member)
        if name.endswith((".safetensors", ".bin")) or name == BLEND
    ]


def embedder_of(opened: Opened, held_out: HeldOut) -> Embedder | None:
    """The network whose vectors the scope of a folder is about.

    Raises:
        InputError: it is not there any more, or is another one.
    """
    if held_out.encoder is None:
        return None
    folder = opened.folder / held_out.encoder
    if not folder.is_dir() or weights_checksums(folder) != held_out.encoder_weights:
        raise InputError(
            f"{folder}, whose vectors tell texts of no label, is not there or has other weights; "
            "calibrate again: --calibrate FILE"
        )
    return Embedder(folder, device=opened.compute.device)


def _network(opened: Opened) -> _Network | None:
    """What makes vectors: the network before it learnt the labels where it is at hand, else the
    folder's own; None for images and folders without a network."""
    folder = opened.folder
    if opened.task.reads_arrays:
        return None
    if (folder / _FROZEN / CONFIG).is_file():
        return _Network(_FROZEN, inside(folder, _FROZEN, folder), blind=True)
    base = _recipe(folder).get("model")  # of fit; finetune has settings there
    base = base.get("folder") if isinstance(base, dict) else base
    if isinstance(base, str) and base:
        own = model_folder(base)
        if (own / CONFIG).is_file() and weights_form(own) is not None:
            return _Network(str(own.resolve()), own, blind=True)
    if (folder / CONFIG).is_file() and weights_form(folder) is not None:
        return _Network(".", folder, blind=False)
    return None


def _recipe(folder: Path) -> dict[str, Any]:
    found = read_yaml(folder / RECIPE) if (folder / RECIPE).is_file() else None
    return found if isinstance(found, dict) else {}


def _some(labels: np.ndarray) -> np.ndarray:
    """Indices of rows whose vectors are kept, ascending."""
    order = np.random.default_rng(0).permutation(len(labels))
    seen = np.zeros(labels.max() + 1, dtype=int)
    chosen = []
    for row in order:
        if seen[labels[row]] < _MOST_OF_LABEL and len(chosen) < _MOST_TEXTS:
            seen[labels[row]] += 1
            chosen.append(row)
    return np.sort(np.asarray(chosen))
