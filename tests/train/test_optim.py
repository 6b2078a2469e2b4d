"""Optimisers by name: their groups, LAMB by hand, and states that resume bit for bit."""

import copy
import io
import math
import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ownbert import InputError
from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.nn.model import Model
from ownbert.objectives.learner import Learner
from ownbert.tasks.row_objectives import SingleLabelObjective
from ownbert.train.optimizers import (
    Lamb,
    RowAdagrad,
    check_groups,
    decay_groups,
    describe_groups,
    make_optimizer,
)
from ownbert.train.step import step
from ownbert.train.training_settings import OPTIMIZERS, SCHEDULES, Optim, rate_factor
from support.floats import assert_close
from support.tiny import CONFIG

# Peak rates that suit the small problem below; 0.02 for the others.
RATES = {"adadelta": 3.0, "rprop": 0.01, "asgd": 0.05, "sgd": 0.05, "adagrad": 0.1, "muon": 0.05}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def loss_of(model: nn.Module) -> Tensor:
    ids = torch.arange(7)
    return nn.functional.cross_entropy(model(ids), ids % 3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss_of(model).item()


def bert(**changes: Any) -> Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    values = {"vocab_size": 11, "intermediate_size": 12, "max_position_embeddings": 6, **sizes}
    return Model(EncoderConfig(**{**values, **changes}), ["mlm", "nsp"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_learns_and_goes_on_bit_for_bit(name: str):
    optim = Optim(name=name, learning_rate=RATES.get(name, 0.02))
    model = small_model()
    before = loss_of(model).item()
    optimizer = make_optimizer(model, optim)
    train(model, optimizer, 20)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    after = train(model, optimizer, 15)
    assert after < 0.6 * before

    resumed = small_model()
    other = make_optimizer(resumed, optim)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    train(resumed, other, 15)
    for one, two in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_rate_of_the_groups_is_the_one_that_counts(name: str):
    model = small_model()
    optimizer = make_optimizer(model, Optim(name=name, learning_rate=0.1))
    before = copy.deepcopy(model.state_dict())
    for group in optimizer.param_groups:
        assert group["lr"] == 0.1
        group["lr"] = 0.0
    train(model, optimizer, 1)
    # Rprop keeps its own step sizes from the second step on; the first is the rate given.
    assert name == "rprop" or all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_adamw_is_torch_s_with_our_settings():
    optim = Optim(learning_rate=0.01, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.3)
    ours, theirs = small_model(), small_model()
    plain = [*(p for n, p in theirs.named_parameters() if n.endswith("bias") or n == "2.weight")]
    rest = [p for p in theirs.parameters() if not any(p is q for q in plain)]
    groups = [{"params": rest}, {"params": plain, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.3)
    train(ours, make_optimizer(ours, optim), 5)
    train(theirs, reference, 5)
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_step_of_lamb_by_hand():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = Lamb([weight], lr=0.1, betas=(0.9, 0.99), eps=0.0, weight_decay=0.1)
    weight.grad = torch.tensor([0.5, -2.0])
    optimizer.step()
    # Bias-corrected Adam at step 1 is the sign; with decay (1.3, -0.6), of length sqrt(2.05).
    ratio = 5 / 2.05**0.5
    expected = torch.tensor([3 - 0.1 * ratio * 1.3, 4 + 0.1 * ratio * 0.6])
    torch.testing.assert_close(weight.detach(), expected)

    start, length = weight.detach().clone(), weight.detach().norm()
    weight.grad = torch.tensor([1.0, 1.0])
    optimizer.step()
    first = torch.tensor([0.9 * 0.05 + 0.1, 0.9 * -0.2 + 0.1]) / (1 - 0.9**2)
    second = torch.tensor([0.99 * 0.0025 + 0.01, 0.99 * 0.04 + 0.01]) / (1 - 0.99**2)
    direction = first / second.sqrt() + 0.1 * start
    expected = start - 0.1 * length / direction.norm() * direction
    torch.testing.assert_close(weight.detach(), expected)


def test_lamb_without_a_ratio_is_adam_and_zeros_start_to_move():
    torch.manual_seed(0)
    gradients = [torch.randn(4) for _ in range(3)]
    ours, theirs = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    lamb = Lamb([ours], lr=0.1, eps=1e-6, weight_decay=0.0, adapt=False)
    adam = torch.optim.Adam([theirs], lr=0.1, eps=1e-6)
    for gradient in gradients:
        for parameter, optimizer in ((ours, lamb), (theirs, adam)):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)

    zeros = nn.Parameter(torch.zeros(3))
    zeros.grad = torch.tensor([1.0, -2.0, 0.0])
    Lamb([zeros], lr=0.1, eps=0.1, weight_decay=0.01).step()
    torch.testing.assert_close(zeros.detach(), torch.tensor([-0.1 / 1.1, 0.1 * 2 / 2.1, 0.0]))


def test_lamb_adapts_matrices_and_spares_biases_and_norms():
    groups = make_optimizer(bert(), Optim(name="lamb")).param_groups
    assert [(g["adapt"], g["weight_decay"]) for g in groups] == [(True, 0.01), (False, 0.0)]


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_frozen_parameters_are_in_the_groups_and_move_once_they_are_trained(name: str):
    model = small_model()
    last = model.get_submodule("3")
    last.requires_grad_(False)
    optimizer = make_optimizer(model, Optim(name=name, learning_rate=0.02))
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    before = copy.deepcopy(last.state_dict())
    train(model, optimizer, 2)
    assert all(torch.equal(before[n], t) for n, t in last.state_dict().items())
    last.requires_grad_(True)
    train(model, optimizer, 1)
    assert not any(torch.equal(before[n], t) for n, t in last.state_dict().items())


def test_decay_is_for_all_but_biases_and_norms_and_a_shared_table_counts_once():
    model = bert()
    plain = {n for n, _ in model.named_parameters() if n.endswith("bias") or "norm" in n}
    names = {id(p): n for n, p in model.named_parameters()}
    decayed, spared = decay_groups(model, 0.05)
    assert {names[id(p)] for p in spared["params"]} == plain
    assert {names[id(p)] for p in decayed["params"]} == set(names.values()) - plain
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.05, 0.0)

    numbers = sum(p.numel() for p in model.parameters())  # the tied table once
    without = sum(p.numel() for p in spared["params"])
    said = describe_groups(make_optimizer(model, Optim()))
    assert said == f"{numbers - without:,} parameters with decay, {without:,} without"


def test_vectors_that_are_no_bias_decay_and_recurrent_biases_do_not():
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.ones(4))
            self.layer = nn.GRU(4, 4)

    decayed, spared = decay_groups(Pool(), 0.1)
    assert [p.numel() for p in decayed["params"]] == [4, 48, 48]
    assert [p.numel() for p in spared["params"]] == [12, 12]


def test_a_parameter_without_a_group_or_with_two_is_named():
    model = small_model()
    groups = decay_groups(model, 0.1)
    lost = groups[0]["params"].pop()
    with pytest.raises(ValueError, match=r"in no group of the optimiser: 3\.weight"):
        check_groups(model, groups)
    lost.requires_grad_(False)
    check_groups(model, groups)
    groups[0]["params"].append(groups[1]["params"][0])
    with pytest.raises(ValueError, match=r"in several groups: 1\.bias"):
        check_groups(model, groups)


def test_muon_takes_hidden_matrices_and_leaves_tables_and_outputs_to_adamw():
    model = bert()
    names = {id(p): n for n, p in model.named_parameters()}
    groups = make_optimizer(model, Optim(name="muon", learning_rate=0.01)).param_groups
    muon = {names[id(p)] for g in groups if "ns_steps" in g for p in g["params"]}
    assert muon == {
        n
        for n, p in model.named_parameters()
        if p.ndim == 2 and "embeddings" not in n and "heads" not in n
    }
    assert len(muon) == 2 * 4 + 1  # qkv, output, up and down of two layers, and the pooler
    assert sum(len(g["params"]) for g in groups) == len(names)


def test_mistakes_are_one_line():
    with pytest.raises(
        InputError, match=r"optim\.name is 'adamx'; it must be one of adamw, lamb, adadelta"
    ):
        Optim(name="adamx")
    for values, message in (
        ({"momentum": 1.0}, r"optim\.momentum is 1\.0; it must be in \[0, 1\)"),
        ({"betas": (0.9,)}, r"optim\.betas is \[0\.9\]; it must be two numbers"),
        ({"betas": (0.9, 1.0)}, r"optim\.betas is \[0\.9, 1\]"),
        ({"eps": 0.0}, r"optim\.eps is 0\.0; it must be more than 0"),
        ({"weight_decay": -1.0}, r"optim\.weight_decay is -1\.0"),
    ):
        with pytest.raises(InputError, match=message):
            Optim(**values)


def test_every_optimizer_of_torch_is_known_but_two():
    theirs = {
        name.lower()
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert theirs - set(OPTIMIZERS) == {"optimizer", "lbfgs", "sparseadam"}


def _sharded(rank: int, port: int) -> None:
    """In each of two processes: what FSDP spreads learns as what is whole."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole_only = {"adafactor", "muon", "rprop"}
    for name in sorted({*OPTIMIZERS} - whole_only):
        whole, spread = small_model(), small_model()
        fully_shard(spread, mesh=mesh)
        optim = Optim(name=name, learning_rate=0.02)
        for model in (whole, spread):
            train(model, make_optimizer(model, optim), 3)
        spread.reshard()  # type: ignore[operator]
        for one, two in zip(whole.parameters(), spread.parameters(), strict=True):
            torch.testing.assert_close(one, two.full_tensor())  # type: ignore[attr-defined]
        groups = make_optimizer(spread, optim).param_groups
        assert [len(g["params"]) for g in groups] == [3, 4]
    for name in whole_only:
        with pytest.raises(InputError, match=f"{name} cannot be used with sharded parameters"):
            make_optimizer(spread, Optim(name=name))
    dist.destroy_process_group()


def test_parameters_that_are_spread_over_processes():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Forked: two new interpreters would take longer than the rest of this file.
    torch.multiprocessing.start_processes(_sharded, (port,), nprocs=2, start_method="fork")


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

    for done in (1, 1000, 4000, 4001, 50_000, 100_000):
        assert rate_factor(optim, done / steps) == pytest.approx(noam(done) / noam(warmup_steps))
        # By steps, however long the run is.
        for progress in (0.0, 0.3, 1.0):
            by_steps = rate_factor(
                Optim(schedule="noam", warmup_steps=warmup_steps), progress, done
            )
            assert by_steps == pytest.approx(noam(done) / noam(warmup_steps))


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
