"""Benchmarks end within their minutes, and leave out what the processor only emulates."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

from ownbert.train import device

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("rounds")


def numbers(rounds: Any, *arguments: str, seconds: float, **options: Any) -> list[int]:
    """The rounds of a benchmark each of which takes so long on a clock of our own."""
    parser = argparse.ArgumentParser()
    rounds.add_rounds(parser, 10)
    clock = [rounds.BEGAN]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds.time, "monotonic", lambda: clock[0])
        found = []
        for number in rounds.rounds_of(parser.parse_args(arguments), **options):
            found.append(number)
            clock[0] += seconds
    return found


def test_as_many_rounds_as_fit(rounds: Any):
    assert numbers(rounds, seconds=50) == [0, 1, 2, 3]
    assert numbers(rounds, seconds=50, share=0.5) == [0, 1]
    assert numbers(rounds, seconds=1) == [*range(10)]
    assert numbers(rounds, "--minutes", "0.1", seconds=50) == [0]
    assert numbers(rounds, "--minutes", "0.1", seconds=50, warm_up=True) == [-1, 0]
    assert numbers(rounds, "--rounds", "6", seconds=500) == [*range(6)]


@pytest.mark.parametrize("native", [True, False])
def test_only_precisions_that_the_processor_multiplies(
    rounds: Any, native: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(device, "cpu_multiplies_bfloat16", lambda: native)
    assert rounds.native_precisions() == ["float32", "bfloat16"][: 1 + native]
    assert ("bfloat16 is skipped" in capsys.readouterr().out) != native
