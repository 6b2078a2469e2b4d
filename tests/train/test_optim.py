"""Optimisers by name: their groups, LAMB by hand, and states that resume bit for bit."""

import copy
import io
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ownbert import InputError
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.train.optimizers import (
    Lamb,
    check_groups,
    decay_groups,
    describe_groups,
    make_optimizer,
)
from ownbert.train.training_settings import OPTIMIZERS, Optim

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
