"""Several batches before one update: converted once, rows added in place, the same results."""

import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ownbert.batches.batch import Example, pack
from ownbert.batches.sampled_softmax import Candidates, CandidateSampler
from ownbert.config.encoder import EncoderConfig
from ownbert.nn import accumulation
from ownbert.nn import layers as kernel
from ownbert.nn.accumulation import candidate_rows, converted, one_update
from ownbert.nn.layers import Linear, onednn_has_linear
from ownbert.nn.model import Model
from ownbert.objectives import MaskedLM
from ownbert.objectives.learner import Learner

WORDS = 50


def test_weights_converted_once_are_the_same():
    if not onednn_has_linear(torch.bfloat16):
        pytest.skip("needs bfloat16 in oneDNN")
    layer = Linear(32, 48)

    def two_batches_then_a_change() -> list[Tensor]:
        torch.manual_seed(1)
        nn.init.normal_(layer.weight)
        layer.zero_grad()
        outs = []
        for _ in range(2):  # updates
            with one_update() if once else nullcontext():
                for rows in (20, 33):
                    with torch.autocast("cpu", torch.bfloat16):
                        outs.append(layer(torch.randn(rows, 32)))
                    outs[-1].float().square().sum().backward()
            with torch.no_grad():
                layer.weight -= 0.1 * layer.weight.grad
        return [*outs, layer.weight.grad, layer.bias.grad]

    once = True
    found = two_batches_then_a_change()
    once = False
    assert all(map(torch.equal, found, two_batches_then_a_change()))
    assert accumulation._update.get() is None


def test_a_weight_is_converted_once(monkeypatch: pytest.MonkeyPatch):
    if not onednn_has_linear(torch.bfloat16):
        pytest.skip("needs bfloat16 in oneDNN")
    layer, places = Linear(32, 48), set()
    whole = kernel.multiply

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        places.add(weight.data_ptr())
        return whole(x, weight, bias)

    monkeypatch.setattr(kernel, "multiply", watched)
    with one_update(), torch.autocast("cpu", torch.bfloat16):
        kept = [layer(torch.randn(20, 32)) for _ in range(3)]
    assert len(kept) == 3
    assert len(places) == 1


def test_updates_of_two_threads_are_apart():
    """The second begins within the first and ends after it: what it leaves must not be seen."""
    weight, change = nn.Parameter(torch.zeros(4, 4)), torch.ones(4, 4)
    inside, left = threading.Event(), threading.Event()

    def other() -> None:
        with one_update():
            inside.set()
            assert left.wait(60)

    with one_update():
        assert torch.equal(converted(weight, torch.bfloat16), torch.zeros(4, 4).bfloat16())
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(60)
    left.set()
    thread.join()
    with torch.no_grad():
        weight += change
    assert torch.equal(converted(weight, torch.bfloat16), change.bfloat16())


def test_rows_of_a_table_are_selected_once():
    table = torch.randn(WORDS, 3, requires_grad=True)
    candidates = Candidates(torch.tensor([1, 4, 4]), torch.zeros(3))
    rows = candidate_rows(table, candidates)
    assert torch.equal(rows, table[candidates.ids])
    assert candidate_rows(table, candidates) is rows
    assert candidate_rows(torch.zeros(WORDS, 1), candidates).shape == (3, 1)


class Watch(TorchDispatchMode):
    """Counts the tensors of a size that are made, by ``zeros`` and the like."""

    def __init__(self, size: torch.Size) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        made = "zeros" in func.name() and found.shape == self.size
        self.count += made
        return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_of_rows_are_added_where_they_lie(precision: str):
    config = EncoderConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Model(config, ["mlm"])
    sampler = CandidateSampler(torch.full((WORDS,), 1 / WORDS), draws=5)
    learner = Learner(model, [MaskedLM()], sampler=sampler)
    table = model.encoder.embeddings.word.weight

    def three_batches() -> tuple[list[Tensor], int]:
        rng, at = np.random.default_rng(0), np.array([1, 3])
        torch.manual_seed(1)
        model.zero_grad()
        with Watch(table.shape) as watch:
            for _ in range(3):
                ids = [rng.integers(0, WORDS, n) for n in (5, 9)]
                batch = pack([Example(i, np.zeros_like(i), at, i[at]) for i in ids])
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                    loss = learner(batch)["mlm"].total
                loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None], watch.count

    plain, several = three_batches()
    with one_update(adds=False):
        kept, as_many = three_batches()
    with one_update():
        added, one = three_batches()
    assert (several, as_many, one) == (3, 3, 1)
    assert all(map(torch.equal, kept, plain))
    assert all(map(torch.equal, added, plain))


def test_what_is_no_leaf_has_its_gradient_from_autograd():
    table = torch.randn(WORDS, 3, requires_grad=True)
    candidates = Candidates(torch.tensor([1, 4]), torch.zeros(2))
    with one_update():
        candidate_rows(2 * table, candidates).sum().backward()
    assert table.grad is not None
    assert table.grad.sum() == 2 * 2 * 3
