"""Saves held-out predictions in a ``fit`` folder, for predictions with a reject option."""

from pathlib import Path

import numpy as np

from ownbert.fitting.candidates import PROBE_VECTORS
from ownbert.fitting.comparison import Comparison
from ownbert.inference.abstaining.calibrate import learn
from ownbert.inference.compute import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.run.file_names import HELD_OUT
from ownbert.views.blending import from_scores


def keep_held_out(compared: Comparison, folder: Path, device: str, *, embed: bool = False) -> None:
    """Write held_out.npz into a finished folder if the task is single-label.

    Args:
        compared: the candidates with their logits.
        folder: folder of the models, with the probe's vectors if there are any.
        device: device of the models.
        embed: compute missing vectors, which takes time.
    """
    rows = compared.rows
    if rows.task.name != "classify":
        return
    held = rows.held_out
    others = np.setdiff1d(np.arange(len(rows.rows)), held)
    path = folder / "work" / PROBE_VECTORS
    vectors = np.load(path, allow_pickle=False) if path.exists() else None
    if vectors is not None and len(vectors) == len(rows.rows):
        vectors = vectors[np.concatenate([held, others])].astype(np.float32)
    else:
        vectors = embed
    learn(
        open_folder(folder, Compute(device)),
        [rows.rows[i] for i in held],
        from_scores(rows.task.name, compared.used[2]),
        [rows.rows[i] for i in others],
        source=rows.source,
        vectors=vectors,
    ).save(folder / HELD_OUT)
