"""The panels of curves.png: what is drawn under which title."""

from typing import Any

import pytest

from ownbert.train.training_curves import _panels, _plain

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
    both = ["masked words 0.200", "next sentence 0.600"]
    assert found["loss"] == ["masked words 4.800"]
    assert found["accuracy"] == both
    assert found["loss of the other tasks"] == ["next sentence 0.600"]
    assert "learning rate and gradient" in found


def loss_panel(rows: list[dict[str, float]]) -> Any:
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    _panels(rows)[0](axis)
    return axis


@pytest.mark.parametrize(("uniform", "drawn"), [(9.0, False), (6.2, True)])
def test_a_baseline_far_above_is_named_and_does_not_squash_the_curves(uniform: float, drawn: bool):
    axis = loss_panel([*PRETRAINING, PRETRAINING[1] | {"uniform_loss": uniform}])
    assert axis.get_ylim()[1] < 6.6
    labels = [text.get_text() for text in axis.texts]
    if drawn:
        assert labels == ["unigram 6.00", "uniform 6.20"]
    else:
        assert labels == ["unigram 6.00; uniform 9.00 is above"]


def test_a_single_evaluation_has_its_value_in_the_legend():
    rows = [{"step": 5, "evaluation": True, "loss": 0.5, "macro_f1": 0.75, "accuracy": 0.8}]
    assert titles(rows)["metrics"] == ["macro-F1 0.750", "accuracy 0.800"]
    assert "loss 0.500" in titles(rows)["loss"]


def test_unanswerable_questions_are_not_the_accuracy_of_answers():
    trained = {"step": 1, "answer_loss": 3.0, "answer_accuracy": 0.1}
    held_out = {"step": 1, "evaluation": True, "f1": 0.3, "no_answer_accuracy": 0.9}
    metrics = titles([_plain(trained), _plain(held_out)])["metrics"]
    assert metrics == ["accuracy", "F1 0.300", "accuracy of no answer 0.900"]


def test_one_task_has_one_loss():
    found = titles(TRANSLATION)
    assert sorted(found) == ["accuracy", "learning rate and gradient", "loss"]
