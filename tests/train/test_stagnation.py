"""Whether a run learns anything: the word of warning, and that healthy runs get none."""

from typing import Any

import pytest

from ownbert.train.loop import ENOUGH_STEPS, ENOUGH_TOKENS, diagnose_stagnation


def run(
    *gaps: float, tokens: int = 200_000, steps: int = 100, rate: float = 1e-3, warm: int = 0
) -> list[dict[str, Any]]:
    """Evaluations ``gaps`` below a unigram loss of 7, after ``tokens`` and ``steps`` each."""
    rows: list[dict[str, Any]] = []
    for number, gap in enumerate(gaps, start=1):
        now = rate * (number / warm if number < warm else 1)
        row = {"step": number * steps, "tokens": number * tokens, "learning_rate": now}
        rows.append({**row, "loss": 7 - gap, "mlm_loss": 7 - gap})
        rows.append(
            {"step": number * steps, "evaluation": True, "mlm_loss": 7 - gap}
            | {"unigram_loss": 7.0, "uniform_loss": 9.0}
        )
    return rows


def test_a_run_at_the_unigram_level_is_told_with_the_settings_to_try():
    said = diagnose_stagnation(run(0, 0.01, 0.02, -0.01, 0.03))
    assert said is not None
    first, second = said.split("\n")
    assert first == (
        "not learning: after 1,000,000 tokens the model has learnt only word frequencies "
        "(held-out MLM loss 6.97, unigram baseline 7.00)"
    )
    for name in ("--learning-rate, now 0.001", "--batch-tokens", "duplicates", "--mask-rate"):
        assert name in second
    assert "too high or too low" in second


@pytest.mark.parametrize("loss", [9.5, float("nan")])
def test_a_run_that_went_wrong_is_told_that_its_rate_is_too_high(loss: float):
    rows = run(*[0.0] * 5)
    rows[-1]["mlm_loss"] = loss
    said = diagnose_stagnation(rows)
    assert said is not None
    assert "is worse than word frequencies" in said
    assert "a learning rate that is too high (--learning-rate" in said


def test_no_word_before_enough_tokens_and_steps():
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS - 1, steps=ENOUGH_STEPS)) is None
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS, steps=ENOUGH_STEPS - 1)) is None
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS, steps=ENOUGH_STEPS)) is not None
    assert diagnose_stagnation([]) is None
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS, steps=ENOUGH_STEPS)[:1]) is None


def test_the_warm_up_of_a_long_run_is_waited_for_unless_it_goes_wrong():
    assert diagnose_stagnation(run(*[0.0] * 10, warm=20)) is None
    assert diagnose_stagnation(run(*[0.0] * 30, warm=20)) is not None
    assert diagnose_stagnation(run(*[-0.5] * 10, warm=20)) is not None


def test_the_last_evaluation_counts():
    assert diagnose_stagnation(run(*[0.0] * 9, 0.5)) is None
    assert diagnose_stagnation(run(0.5, *[0.0] * 9)) is not None


@pytest.mark.parametrize("gap", [0.15, 0.5, 3.0])
def test_a_run_that_learns_gets_no_word(gap: float):
    assert diagnose_stagnation(run(*[gap] * 10)) is None


def test_runs_without_masked_words_get_no_word():
    rows = [
        {"step": 500, "tokens": 5_000_000, "loss": 1.0, "clm_loss": 1.0},
        {"step": 500, "evaluation": True, "loss": 1.0, "accuracy": 0.1},
    ]
    assert diagnose_stagnation(rows) is None
    # Nor does a phase without them, after one with them.
    assert diagnose_stagnation(run(*[0.0] * 9) + rows) is None
