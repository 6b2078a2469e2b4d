"""The panels of curves.png: what is drawn under which title."""

import pytest

from ownbert.train.curves import _panels

pytestmark = pytest.mark.usefixtures("plots")

PRETRAINING = [
    {"step": 1, "mlm_loss": 5.0, "mlm_accuracy": 0.1, "nsp_loss": 0.7, "nsp_accuracy": 0.5}
    | {"loss": 5.1, "learning_rate": 1e-3, "grad_norm": 2.0},
    {"step": 2, "evaluation": True, "loss": 4.9, "unigram_loss": 6.0, "uniform_loss": 9.0}
    | {"mlm_loss": 4.8, "mlm_accuracy": 0.2, "nsp_loss": 0.6, "nsp_accuracy": 0.6},
]
TRANSLATION = [
    {"step": 1, "loss": 5.0, "translation_loss": 5.0, "translation_accuracy": 0.1}
    | {"learning_rate": 1e-3, "grad_norm": 2.0},
    {"step": 2, "evaluation": True, "loss": 4.0, "translation_loss": 4.0}
    | {"translation_accuracy": 0.2},
]


def titles(rows: list[dict[str, float]]) -> dict[str, list[str]]:
    """What the legend of each panel names."""
    from matplotlib.figure import Figure

    found = {}
    for draw in _panels(rows):
        axis = Figure().subplots()
        draw(axis)
        legend = axis.get_legend()
        found[axis.get_title()] = [t.get_text() for t in legend.get_texts()] if legend else []
    return found


def test_each_panel_has_its_own_title():
    found = titles(PRETRAINING)
    both = ["masked words", "next sentence"]
    assert found["loss"] == ["masked words"]
    assert found["accuracy"] == both
    assert found["loss of the other tasks"] == ["next sentence"]
    assert "learning rate and gradient" in found


def test_one_task_has_one_loss():
    found = titles(TRANSLATION)
    assert sorted(found) == ["accuracy", "learning rate and gradient", "loss"]
