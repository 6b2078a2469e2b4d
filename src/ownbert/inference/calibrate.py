"""Calibrates the detection of out-of-scope texts on held-out rows. N rows, C labels."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import weights_checksums, weights_form
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_yaml
from ownbert.hub import model_folder
from ownbert.inference.blend import blend_of
from ownbert.inference.embedder import Embedder
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Say, say_each
from ownbert.inference.held_out import HeldOut, Scope
from ownbert.inference.opened import Opened, read_labelled_rows
from ownbert.inference.opened_blend import all_raws, embed_rows
from ownbert.language.messages import Message
from ownbert.run.file_names import BLEND, ENCODER, HELD_OUT, HELD_OUT_NETWORK, RECIPE
from ownbert.tasks.classification import weighted
from ownbert.tasks.related_rows import row_key
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row
from ownbert.views import PROBE

# Maximum number of texts whose vectors are kept: per label, and in total.
_MOST_OF_LABEL, _MOST_TEXTS = 200, 10_000
_LEAST_ERROR = 1e-9
# The network in a ``fit`` folder that was not trained on labels.
_FROZEN = f"members/{PROBE}/{ENCODER}"


def held_out_of(
    opened: Opened,
    calibrate: Any = None,
    say: Say | None = None,
    options: OutputOptions = PLAIN_OUTPUT,
) -> HeldOut:
    """Return the calibration data from held-out rows of a folder.

    Args:
        calibrate: labelled rows, a file or rows in memory, that the models were not trained on; the
            calibration is saved in the folder. By default the folder's own calibration or, for
            ``finetune`` folders, the dev file named in the recipe.
        say: called with a description of the rows used.
        options: requested outputs, for which the rows must suffice.

    Raises:
        InputError: there are no such rows, too few, or they cannot be used.
    """
    if calibrate is None and opened.held_out is not None:
        return opened.held_out
    task, folder = opened.task, opened.folder
    blend = blend_of(folder) if opened.compute.network else None
    alone = blend is not None and not blend.is_root
    path = folder / (HELD_OUT_NETWORK if alone else HELD_OUT)
    task.refuse_output_options(OutputOptions(coverage=0.9))
    found = None if calibrate is not None else HeldOut.load(path, task.labels, models_of(opened))
    if found is not None:
        opened.held_out = found
        return found
    data = _recipe(folder).get("data")
    data = data if isinstance(data, dict) else {}
    if calibrate is None:
        calibrate = data.get("dev")
        if not isinstance(calibrate, str) or not Path(calibrate).is_file():
            if alone:
                raise InputError(
                    "{folder} has no held-out predictions of the network alone; give labelled rows "
                    "that it was not trained on: {--calibrate} FILE",
                    folder,
                )
            raise InputError(
                "{folder} has no held-out rows; give labelled rows that it was not trained on: "
                "{--calibrate} FILE",
                folder,
            )
    rows = read_labelled_rows(task, calibrate, folder)
    named = calibrate if isinstance(calibrate, str | os.PathLike) else "memory"
    train, more = data.get("train"), []
    if isinstance(train, str) and Path(train).is_file():
        rest = task.read(train)
        learnt = {row_key(row) for row in rest}
        count = sum(row_key(row) in learnt for row in rows)
        if 2 * count > len(rows):
            raise InputError(
                "{count:,} of the {count2:,} rows of {named} are in {path}, which the model was "
                "trained on; calibrate with other rows",
                count,
                len(rows),
                named,
                train,
            )
        more = [r for r in rest if isinstance(r.target, str) and r.target in task.labels]
    probabilities = all_raws(opened, rows)
    source = Message("{count:,} rows of {named}", len(rows), named)
    found = learn(opened, rows, probabilities, more, source=source)
    if options.coverage is not None:
        found.margins(options.coverage)
    if options.unknown is not None:
        found.threshold(options.unknown)
    opened.held_out = found
    with contextlib.suppress(OSError, InputError):  # a read-only folder: calibrate again next time
        found.save(path)
        say_each((Message("note: calibrated on {source}; saved {path}", found.source, path),), say)
    return found


def learn(
    opened: Opened,
    rows: Sequence[Row],
    probabilities: np.ndarray,
    more: Sequence[Row] = (),
    *,
    source: str,
    vectors: np.ndarray | bool = True,
    gains: np.ndarray | None = None,
) -> HeldOut:
    """Calibrate on N held-out ``rows`` with predicted ``probabilities`` (N, C), or numbers.

    Args:
        more: other rows with the same labels, possibly training rows.
        source: description of the rows for the user.
        vectors: (rows and more, D) vectors of the network before it was trained on the labels;
            False: use no vectors, only the highest probability.
        gains: (2, N) change of the log-odds of ``sorted_errors`` from these models to those that
            are used.
    """
    task: Any = opened.task
    if not task.counts_labels or task.label_sets:
        missing = np.sort(errors_of(task, probabilities, rows), axis=0)
        labels, known = tuple(task.labels), {}
        if task.label_sets:
            truth = np.stack([task.target(row) for row in rows]) > 0
            known = {"probabilities": probabilities, "truth": truth}
        return HeldOut(labels, source, models_of(opened), missing, np.zeros(1), **known)
    targets = np.asarray([task.target(row) for row in rows])
    missing, doubt = errors = sorted_errors(probabilities, targets, task.decision)
    if gains is not None:
        missing, doubt = np.sort(expit(logit(errors) + gains))
    settings: dict[str, Any] = {
        "labels": tuple(task.labels),
        "source": source,
        "models": models_of(opened),
        "missing": missing,
    }
    if len(task.labels) == 2:  # for thresholds
        settings |= {"probabilities": probabilities, "truth": np.eye(2, dtype=bool)[targets]}
    network = None if vectors is False else _network(opened)
    if network is None or (isinstance(vectors, np.ndarray) and not network[1]):
        return HeldOut(scores=doubt, decision=task.decision, **settings)
    name, blind = network
    folder, known = opened.folder / name, [*rows, *more] if blind else rows
    labels = np.asarray([task.target(row) for row in known])
    once = {row.texts: i for i, row in reversed(list(enumerate(known)))}
    chosen = np.sort(list(once.values()))
    # The vector of a pair of texts is four times as long.
    chosen = chosen[_sample_rows(labels[chosen], _MOST_TEXTS // len(known[0].texts) ** 2)]
    if isinstance(vectors, np.ndarray):
        found = vectors[chosen]
    else:
        embedder = Embedder(folder, device=opened.compute.device)
        found = embed_rows(embedder, [known[i].texts for i in chosen])
    found = of_length_one(found)
    scope, scores = Scope.fit(found, labels[chosen], len(task.labels), blind=blind)
    return HeldOut(
        scores=np.sort(scores),
        scope=scope,
        encoder=name,
        encoder_weights=weights_checksums(folder),
        **settings,
    )


def errors_of(task: Any, outputs: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
    """What a set of labels or an interval has to allow for to contain what is right.

    Returns:
        For several labels (N) 1 minus the probability of the least probable right label, 0 without
        labels (Cauchois, Gupta and Duchi 2021, "Knowing what You Know"); for numbers (N, C)
        absolute errors.
    """
    if not task.label_sets:
        return np.abs(outputs - np.asarray([row.target for row in rows]))
    truth = np.stack([task.target(row) for row in rows])
    return ((1 - outputs) * truth).max(1)


def sorted_errors(
    probabilities: np.ndarray, targets: np.ndarray, decision: Sequence[float] | np.ndarray | None
) -> np.ndarray:
    """1 minus the probability of the right label, and 1 minus the highest one as weighted by the
    decision (C), (2, N), ascending and never 0 or 1."""
    right = probabilities[np.arange(len(targets)), targets]
    errors = np.sort(1 - np.stack([right, weighted(probabilities, decision).max(1)]))
    return errors.clip(_LEAST_ERROR, 1 - _LEAST_ERROR)


def models_of(opened: Opened) -> list[Any]:
    """The checksums of all files that a folder's probabilities depend on."""
    return [
        [*each]
        for each in opened.checksums
        if each[1].endswith((".safetensors", ".bin")) or each[1] == BLEND
    ]


def _network(opened: Opened) -> tuple[str, bool] | None:
    """The folder of the network for vectors, relative to the model folder if inside it, and whether
    the network was not trained on labels: the one before that training if it is available, else the
    folder's own; None for images and folders without a network."""
    folder = opened.folder
    if opened.task.reads_arrays:
        return None
    if (folder / _FROZEN / CONFIG).is_file():
        inside(folder, _FROZEN, folder)
        return _FROZEN, True
    base = _recipe(folder).get("model")  # for fit a folder, for finetune a mapping of settings
    base = base.get("folder") if isinstance(base, dict) else base
    if isinstance(base, str) and base:
        base_folder = model_folder(base)
        if (base_folder / CONFIG).is_file() and weights_form(base_folder) is not None:
            return str(base_folder.resolve()), True
    if (folder / CONFIG).is_file() and weights_form(folder) is not None:
        return ".", False
    return None


def _recipe(folder: Path) -> dict[str, Any]:
    values = read_yaml(folder / RECIPE) if (folder / RECIPE).is_file() else None
    return values if isinstance(values, dict) else {}


def _sample_rows(labels: np.ndarray, most: int) -> np.ndarray:
    """Sorted indices of the rows whose vectors are kept, at most ``most``."""
    order = np.random.default_rng(0).permutation(len(labels))
    seen = np.zeros(labels.max() + 1, dtype=int)
    chosen = []
    for row in order:
        if seen[labels[row]] < _MOST_OF_LABEL and len(chosen) < most:
            seen[labels[row]] += 1
            chosen.append(row)
    return np.sort(np.asarray(chosen))
