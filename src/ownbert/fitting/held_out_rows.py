"""What a folder of ``fit`` keeps of its held-out rows, for answers that may be refused."""

from pathlib import Path

from ownbert.fitting.candidates import Comparison
from ownbert.inference.abstaining.calibrate import learn
from ownbert.inference.compute import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.views.blending import from_scores


def keep_held_out(compared: Comparison, folder: Path, device: str, *, vectors: bool) -> None:
    """Write held_out.npz into a finished folder, if its rows have one label each.

    Args:
        compared: the candidates with their scores.
        folder: of the models.
        device: that the vectors are computed on.
        vectors: whether unknown texts are told by their vectors too, which takes time.
    """
    rows = compared.rows
    if rows.task.name != "classify":
        return
    held = set(rows.held_out.tolist())
    learn(
        open_folder(folder, Compute(device)),
        [rows.rows[i] for i in rows.held_out],
        from_scores(rows.task.name, compared.used[2]),
        [row for i, row in enumerate(rows.rows) if i not in held],
        source=rows.source,
        unseen=len(rows.folds[0][1]),
        vectors=vectors,
    ).save(folder)
