"""Rounds of a benchmark: as many as were asked for, or as many as fit into its minutes."""

import argparse
import sys
import time
from collections.abc import Iterator

BEGAN = time.monotonic()


def add_rounds(parser: argparse.ArgumentParser, most: int, minutes: float = 4.0) -> None:
    """The options --rounds and --minutes.

    Args:
        parser: gets them.
        most: rounds without either.
        minutes: by default.
    """
    parser.set_defaults(most=most)
    parser.add_argument("--rounds", type=int, help=f"by default up to {most}, within --minutes")
    parser.add_argument("--minutes", type=float, default=minutes, help="of wall-clock time, in all")


def rounds_of(
    given: argparse.Namespace, share: float = 1.0, *, warm_up: bool = False
) -> Iterator[int]:
    """The numbers of the rounds, from 0; there is at least one.

    Args:
        given: has the options of ``add_rounds``.
        share: of the minutes, counted from the start of the program, after which these rounds end.
        warm_up: whether one that does not count comes first, as -1.
    """
    most = given.rounds or given.most
    end = float("inf") if given.rounds else BEGAN + 60 * given.minutes * share
    for number in range(-1 if warm_up else 0, most):
        began = time.monotonic()
        yield number
        now = time.monotonic()
        if 0 <= number < most - 1 and now + (now - began) > end:
            print(f"  {number + 1} of {most} rounds fit into --minutes", file=sys.stderr)
            return


def native_precisions(device: str = "cpu") -> list[str]:
    """float32, and bfloat16 unless this processor only emulates it, which is said."""
    from ownbert.train.device import pick_precision

    if pick_precision("auto", device) == "bfloat16":
        return ["float32", "bfloat16"]
    print("bfloat16 is skipped: this processor does not multiply it; --precisions takes it anyway")
    return ["float32"]
