"""The network of a ``fit`` folder, which Transformers loads: one of the candidates, calibrated.

If it predicts alone, its weights are stored only there. C labels or values.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from ownbert.fitting.comparison import Comparison, best_network
from ownbert.fitting.decisions import deciding
from ownbert.fitting.networks import calibrate_network, copy_network
from ownbert.inference.blend import ROOT, Blend, BlendMember, OwnNetwork, blend_of
from ownbert.tasks.task import Task


def save_network(compared: Comparison, folder: Path) -> OwnNetwork | None:
    """Save the best network in the folder of the run, calibrated; None if there is none."""
    best = best_network(compared)
    if best is None:
        return None
    copy_network(folder / best.folders[0], folder)
    judged, fitted = compared.adjusted(best), compared.by_itself(best)
    task, factor = deciding(judged.task, fitted.decision), float(fitted.weights[0])
    calibrate_network(folder, task, factor, fitted.offsets)
    rows = same = None
    if task.discrete:
        rows, own = len(judged), judged.predictions
        used = compared.used[2].predictions[:rows]
        same = sum(one == other for one, other in zip(used, own, strict=True))
    return OwnNetwork(best.name, rows, same, factor, tuple(map(float, fitted.offsets)))


def network_alone(folder: Path) -> str | None:
    """The name of the network that predicts alone, if its weights are stored twice."""
    blend = Blend.read(folder)
    return blend.members[0].name if blend.is_network and not blend.is_root else None


def only_network(folder: Path) -> Blend:
    """The blend of a folder whose network predicts alone, with this network, whose last layer has
    the weight and the offsets."""
    blend = Blend.read(folder)
    (member,) = blend.members
    own = BlendMember(member.name, member.kind, (ROOT,), 1.0)
    return replace(blend, members=(own,), offsets=(0.0,) * len(blend.offsets))


def restore_network(folder: Path, task: Task, name: str) -> list[str]:
    """Copy the folder's network back to the folder of its candidate, without its calibration, so
    that a resumed run can compare and replace it.

    Returns:
        The folder relative to that of the run; empty if the run has another network.
    """
    blend = blend_of(folder)
    if blend is None or blend.network is None or blend.network.name != name:
        return []
    network, path = blend.network, folder / "members" / name
    shutil.rmtree(path, ignore_errors=True)
    copy_network(folder, path)
    calibrate_network(path, task, 1 / network.factor, -np.asarray(network.offsets) / network.factor)
    return [f"members/{name}"]
