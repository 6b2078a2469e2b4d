"""The learning rate over a run, schedule by schedule."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert import InputError
from ownbert.train.training_settings import SCHEDULES, Optim, rate_factor

SHARES = st.floats(0, 1)
# All but that which goes by steps.
BY_SHARES = tuple(name for name in SCHEDULES if name != "noam")
WAVE = math.sqrt(0.5) / 2


def points(schedule: str, at: list[float], **shares: float) -> list[float]:
    return [rate_factor(Optim(schedule=schedule, **shares), progress) for progress in at]


@pytest.mark.parametrize(
    ("schedule", "at", "expected"),
    [
        ("linear", [0.4, 0.6, 0.8, 1], [0.75, 0.5, 0.25, 0]),
        (
            "cosine",
            [0.4, 0.6, 0.8, 1],
            [0.5 + WAVE, 0.5, 0.5 - WAVE, 0],
        ),
        ("constant", [0.4, 0.6, 0.8, 1], [1, 1, 1, 1]),
        ("wsd", [0.4, 0.5, 0.75, 0.9, 1], [1, 1, 0.5, 0.2, 0]),
        ("inverse_sqrt", [0.4, 0.8, 1], [math.sqrt(0.5), 0.5, math.sqrt(0.2)]),
    ],
)
def test_each_schedule_rises_in_a_line_and_then_falls_in_its_way(schedule, at, expected):
    shares = {"warmup": 0.2, "decay": 0.5}
    assert points(schedule, [0, 0.05, 0.1, 0.2], **shares) == pytest.approx([0, 0.25, 0.5, 1])
    assert points(schedule, at, **shares) == pytest.approx(expected)


def test_the_inverse_square_root_is_the_transformer_s():
    warmup_steps, steps, width = 4000, 100_000, 512
    optim = Optim(schedule="inverse_sqrt", warmup=warmup_steps / steps)

    def noam(step: int) -> float:
        return width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

    for step in (1, 1000, 4000, 4001, 50_000, 100_000):
        assert rate_factor(optim, step / steps) == pytest.approx(noam(step) / noam(warmup_steps))
        # By steps, however long the run is.
        for progress in (0.0, 0.3, 1.0):
            by_steps = rate_factor(
                Optim(schedule="noam", warmup_steps=warmup_steps), progress, step
            )
            assert by_steps == pytest.approx(noam(step) / noam(warmup_steps))


@settings(max_examples=200)
@given(st.sampled_from(BY_SHARES), SHARES, SHARES, SHARES)
def test_whatever_the_shares_it_stays_within_0_and_1(schedule, warmup, decay, progress):
    optim = Optim(schedule=schedule, warmup=warmup, decay=decay)
    assert 0 <= rate_factor(optim, progress) <= 1


@settings(max_examples=100)
@given(st.sampled_from(BY_SHARES), st.floats(0, 0.9), SHARES)
def test_it_never_rises_again_after_the_warm_up(schedule, warmup, decay):
    optim = Optim(schedule=schedule, warmup=warmup, decay=decay)
    later = [rate_factor(optim, warmup + (1 - warmup) * i / 20) for i in range(20)]
    later.append(rate_factor(optim, 1.0))
    assert later[0] == pytest.approx(1)
    assert all(b <= a + 1e-12 for a, b in pairwise(later))
    if schedule in ("linear", "cosine") or (schedule == "wsd" and decay):
        assert later[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("schedule", BY_SHARES)
def test_without_a_warm_up_it_starts_at_the_peak(schedule: str):
    assert rate_factor(Optim(schedule=schedule, warmup=0), 0) == 1


def test_a_schedule_that_is_not_known_is_named():
    with pytest.raises(
        InputError, match=r"optim\.schedule is 'polynomial'; it must be one of linear, cosine"
    ):
        Optim(schedule="polynomial")
