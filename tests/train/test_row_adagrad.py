"""Tables of which a step touches few rows: their optimiser, beside that of the other weights."""

import numpy as np
import pytest
import torch
from torch import nn

from ownbert.batches.batch import Example, pack
from ownbert.config.head_spec import HeadSpec
from ownbert.nn.model import Model
from ownbert.objectives.learner import Learner
from ownbert.tasks.row_objectives import SingleLabelObjective
from ownbert.train.optimizers import RowAdagrad, describe_groups, make_optimizer
from ownbert.train.step import step
from ownbert.train.training_settings import Optim
from support.floats import assert_close
from support.tiny import CONFIG

IDS = (torch.tensor([[1, 2], [2, 2]]), torch.tensor([[2, 3]]), torch.tensor([[0, 1], [3, 2]]))


def table() -> nn.EmbeddingBag:
    torch.manual_seed(0)
    return nn.EmbeddingBag(6, 4, mode="sum", sparse=True)


def test_a_row_is_divided_by_the_size_of_its_gradients():
    """By hand, on the dense table."""
    one, goal = table(), torch.ones(4)
    optimizer = RowAdagrad(one.parameters(), lr=0.05)
    weights = one.weight.detach().double().numpy().copy()
    start, sums = weights.copy(), np.zeros((6, 1))
    for ids in IDS:
        (one(ids) - goal).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gradient = np.zeros_like(weights)
        for bag in ids.tolist():
            for row in bag:
                gradient[row] += 2 * (weights[bag].sum(0) - 1)
        sums += (gradient**2).mean(1, keepdims=True)
        weights -= 0.05 * gradient / np.maximum(np.sqrt(sums), 1e-10)
    assert_close(one.weight, weights)
    assert (weights != start).any(1).tolist() == [True] * 4 + [False] * 2


def model_and_batch():
    torch.manual_seed(0)
    model = Model(CONFIG, [HeadSpec("classification", ngrams=40)], labels=["x", "y"])
    texts = [[2, 5, 6, 7, 3], [2, 6, 7, 3]]
    arrays = [np.asarray(text, dtype=np.int64) for text in texts]
    return model, pack([Example(a, a * 0, label=i) for i, a in enumerate(arrays)])


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon", "sgd"])
def test_a_table_has_a_rate_of_its_own_beside_any_optimiser(name: str):
    model, batch = model_and_batch()
    learner = Learner(model, [SingleLabelObjective()])
    optim = Optim(name=name, learning_rate=1e-3)
    optimizer = make_optimizer(learner, optim)
    weights = model.heads["classification"].ngrams.table.weight
    own = next(g for g in optimizer.param_groups if any(p is weights for p in g["params"]))
    assert (len(own["params"]), own["scale"], own["weight_decay"]) == (1, 100.0, 0.0)
    counted = sum(len(g["params"]) for g in optimizer.param_groups)
    assert counted == len(list(model.parameters()))
    assert f"{weights.numel():,}" not in describe_groups(optimizer)  # among those without decay
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(2):
        stats = step(
            learner,
            optimizer,
            [batch],
            {"classification": 2},
            objectives=learner.objectives,
            optim=optim,
            rate=1e-3,
            precision="float32",
        )
        assert float(stats.norm) > 0
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert {"heads.classification.ngrams.table.weight", "heads.classification.dense.weight"} <= (
        changed
    )
    assert own["lr"] == pytest.approx(0.1)
    assert {k: v.shape for k, v in optimizer.state[weights].items()} == {"sum": (40, 1)}


class Keep(torch.optim.Optimizer):
    """Keeps the gradients that it is given."""

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.found = [p.grad.to_dense().flatten() for p in parameters if p.grad is not None]


def test_rows_are_clipped_with_the_rest():
    """The norm is that of all gradients, equal rows added up, and all are scaled by it."""
    norms, sizes = [], []
    for clip in (1e6, 1e-3):
        model, batch = model_and_batch()
        learner = Learner(model, [SingleLabelObjective()])
        keep = Keep(list(learner.parameters()), {})
        stats = step(
            learner,
            keep,
            [batch, batch],
            {"classification": 4},
            objectives=learner.objectives,
            optim=Optim(clip=clip),
            rate=1.0,
            precision="float32",
        )
        norms.append(float(stats.norm))
        sizes.append(float(torch.cat(keep.found).norm()))
    assert norms[0] == pytest.approx(sizes[0], rel=1e-5)
    assert sizes[1] == pytest.approx(1e-3, rel=1e-2)
