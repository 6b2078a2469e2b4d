"""Without dropout the first loss of pretraining is that of Transformers, and so is the gradient.

The weights, sequences and masked places are those of ``benchmarks/pretrain_step.py``.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.floats import assert_close

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from pretrain_ways import BLOCK, OwnBERT, Transformers, make_both, make_text

SEQUENCES = 4


@pytest.fixture(scope="module")
def both() -> tuple[OwnBERT, Transformers]:
    return make_both("tiny", 0.0, torch.device("cpu"))


@pytest.mark.parametrize("blocks", [False, True], ids=["mixed lengths", "full blocks"])
def test_the_first_loss_to_four_decimals(both: tuple[OwnBERT, Transformers], blocks: bool):
    rng = np.random.default_rng(0)
    lengths = np.full(SEQUENCES, BLOCK) if blocks else rng.integers(16, BLOCK + 1, SEQUENCES)
    text = make_text(rng, lengths)
    ours, theirs = both
    one = ours.loss(ours.batch(text, torch.float32), torch.float32)
    other = theirs.loss(theirs.batch(text, torch.float32), torch.float32)
    assert_close(one, other)  # of ten: to four decimals
    assert 9 < float(one.detach()) < 12  # of 30,522 words
    norms = []
    for way, loss in ((ours, one), (theirs, other)):
        way.model.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in way.model.parameters()])))
        way.model.zero_grad()
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_bfloat16_is_near(both: tuple[OwnBERT, Transformers]):
    rng = np.random.default_rng(1)
    text = make_text(rng, rng.integers(16, BLOCK + 1, SEQUENCES))
    ours = both[0]
    with torch.no_grad():
        exact, rough = (
            float(ours.loss(ours.batch(text, dtype), dtype))
            for dtype in (torch.float32, torch.bfloat16)
        )
    assert rough == pytest.approx(exact, abs=0.02)
