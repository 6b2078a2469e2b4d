"""Losses against plain torch, and steps that do not depend on how they are cut."""

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ownbert.config import EncoderConfig
from ownbert.data.batch import Example, pack
from ownbert.data.loader import Loader
from ownbert.nn.model import Model
from ownbert.objectives import Classification, MaskedLM, NextSentence, Objective
from ownbert.train.display import Display
from ownbert.train.loop import Job, _step
from ownbert.train.optim import make_optimizer
from ownbert.train.recipe import Optim, Run
from ownbert.train.state import TrainState

OBJECTIVES: list[Objective] = [MaskedLM(weight=0.7), NextSentence(weight=1.5)]


def example(rng: np.random.Generator, length: int, masked: int) -> Example:
    ids = rng.integers(5, 40, length)
    positions = np.sort(rng.choice(length, masked, replace=False))
    types = (np.arange(length) > length // 2).astype(int)
    label = int(rng.integers(2))
    return Example(ids, types, positions, rng.integers(5, 40, masked), label, int(rng.integers(3)))


def examples() -> list[Example]:
    rng = np.random.default_rng(0)
    return [example(rng, n, m) for n, m in [(9, 1), (20, 7), (5, 2), (12, 0), (30, 11), (1, 1)]]


@pytest.mark.parametrize("objective", [MaskedLM(), NextSentence(), Classification()])
def test_loss_and_accuracy_are_those_of_torch(objective: Objective):
    batch = pack(examples())
    targets = {"mlm": batch.masked_ids, "nsp": batch.next_sentence, "classification": batch.labels}
    target = targets[objective.head]
    assert target is not None
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(target), 40 if objective.head == "mlm" else 3, generator=generator)
    logits[torch.arange(0, len(target), 2), target[::2]] = 9.0
    logits.requires_grad_()
    loss = objective(logits, batch)
    assert loss.count == objective.count(batch) == len(target)
    assert int(loss.correct) == int((logits.argmax(-1) == target).sum())
    assert 0 < int(loss.correct) < len(target)
    torch.testing.assert_close(loss.total / loss.count, F.cross_entropy(logits, target))
    (grad,) = torch.autograd.grad(loss.total, logits)
    expected = logits.softmax(-1).detach() - F.one_hot(target, logits.shape[1])
    torch.testing.assert_close(grad, expected)


def test_loss_of_bfloat16_logits_is_summed_in_float32():
    batch = pack(examples())
    logits = torch.randn(batch.sequences, 3, generator=torch.Generator().manual_seed(1))
    loss = Classification()(logits.bfloat16(), batch)
    assert loss.total.dtype == torch.float32
    exact = Classification()(logits.bfloat16().double(), batch)
    torch.testing.assert_close(loss.total, exact.total.float())


def test_a_batch_without_targets_counts_nothing():
    batch = pack([Example(np.array([1, 2]), np.zeros(2, int))])
    for objective in (MaskedLM(), NextSentence(), Classification()):
        assert objective.count(batch) == 0


def job(model: Model, folder: Path) -> Job:
    """A step of plain gradient descent at rate 1, without clipping."""
    optim = Optim(learning_rate=1.0, clip=1e9, schedule="constant", warmup=0)
    return Job(
        state=TrainState(model, torch.optim.SGD(model.parameters(), lr=1.0)),
        loader=Loader((), seed=0),  # pyright: ignore[reportArgumentType]
        objectives=OBJECTIVES,
        optim=optim,
        run=Run(max_steps=10, precision="float32"),
        folder=folder,
        evaluate=dict,
        display=Display("test", quiet=True),
    )


def tiny_model() -> Model:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    return Model(config, ["mlm", "nsp"])


@pytest.mark.parametrize("cuts", [[1], [3], [1, 2, 3, 4, 5], [4, 5]])
def test_a_step_does_not_depend_on_how_it_is_cut(cuts: list[int], tmp_path: Path):
    model, parts = tiny_model(), examples()
    start = copy.deepcopy(model.state_dict())
    ends = [0, *cuts, len(parts)]
    micro = [pack(parts[a:b]) for a, b in pairwise(ends)]
    sums = _step(job(model, tmp_path), micro)
    stepped = {name: start[name] - value for name, value in model.state_dict().items()}

    plain = tiny_model()
    batch = pack(parts)
    logits = plain(batch).logits
    assert batch.masked_ids is not None
    assert batch.next_sentence is not None
    mlm = F.cross_entropy(logits["mlm"], batch.masked_ids)
    nsp = F.cross_entropy(logits["nsp"], batch.next_sentence)
    (0.7 * mlm + 1.5 * nsp).backward()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(stepped[name], parameter.grad, atol=2e-6, rtol=1e-4)
    assert [sums[head][2] for head in ("mlm", "nsp")] == [22, 6]
    torch.testing.assert_close(sums["mlm"][0], 22 * mlm.detach())
    torch.testing.assert_close(sums["nsp"][0], 6 * nsp.detach())


def test_a_step_leaves_no_gradient_behind(tmp_path: Path):
    model = tiny_model()
    _step(job(model, tmp_path), [pack(examples())])
    assert all(p.grad is None for p in model.parameters())


def test_clipping_bounds_the_step(tmp_path: Path):
    model = tiny_model()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    bounded = job(model, tmp_path)
    bounded.optim = replace(bounded.optim, clip=0.01)
    _step(bounded, [pack(examples())])
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close((before - after).norm(), torch.tensor(0.01), rtol=1e-3, atol=0)


def test_decay_is_for_matrices_only():
    model = tiny_model()
    groups = make_optimizer(model, Optim(weight_decay=0.05)).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        plain = name.endswith("bias") or "norm" in name
        assert decay[id(parameter)] == (0.0 if plain else 0.05)
