"""Layer-wise rates, a running mean of the weights, and steps against the model."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, pack
from ownbert.batches.loader import Position
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.objectives import MaskedLM
from ownbert.objectives.learner import Learner
from ownbert.train.display import Display
from ownbert.train.loop import Job, Monitor, Phase, train
from ownbert.train.optimizers import decay_groups, make_optimizer
from ownbert.train.state import SavedState, TrainState
from ownbert.train.step import count_targets, step
from ownbert.train.training_settings import Optim, Run

CONFIG = EncoderConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def learner() -> Learner:
    torch.manual_seed(0)
    return Learner(Model(CONFIG, ["mlm", "nsp"]), [MaskedLM()])


def batch():
    rng = np.random.default_rng(0)
    examples = []
    for length in (9, 14, 5):
        places = np.sort(rng.choice(length, 3, replace=False))
        ids = rng.integers(5, 40, length)
        examples.append(Example(ids, ids * 0, places, rng.integers(5, 40, 3), 1))
    return pack(examples)


def run(learning: Learner, optim: Optim, steps: int = 1, rate: float = 0.01) -> TrainState:
    state = TrainState(learning, make_optimizer(learning, optim))
    for _ in range(steps):
        micro = [batch()]
        counts = {"mlm": count_targets(learning.objectives, micro)[0]}
        step(
            learning,
            state.optimizer,
            micro,
            counts,
            objectives=learning.objectives,
            optim=optim,
            rate=rate,
            precision="float32",
        )
        state.step += 1
        if optim.ema:
            state.take_average(optim.ema)
    return state


def test_each_layer_learns_at_its_share_of_the_rate():
    # SGD moves a parameter by its rate times its gradient, so the shares can be read off.
    plain, decayed = learner(), learner()
    before = copy.deepcopy(plain.state_dict())
    settings = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 1e9}
    run(plain, Optim(**settings))
    run(decayed, Optim(**settings, layer_decay=0.5))
    seen = set()
    for name, start in before.items():
        moved, moved_less = (m.state_dict()[name] - start for m in (plain, decayed))
        if float(moved.abs().max()) == 0:
            continue  # of the other head
        share = 1.0 if ".heads." in name or "pooler" in name else 0.5**4
        for layer in range(3):
            if f"blocks.{layer}." in name:
                share = 0.5 ** (3 - layer)
        if "decoder.weight" in name:
            share = 0.5**4  # the word table itself
        # Weights of about one move in steps of 1.2e-7.
        torch.testing.assert_close(moved_less, moved * share, rtol=2e-3, atol=2.5e-7)
        seen.add(share)
    assert seen == {1.0, 0.5, 0.25, 0.125, 0.0625}


def test_without_layer_decay_there_are_two_groups_and_with_it_two_a_layer():
    model = learner().model
    assert len(decay_groups(model, 0.1)) == 2
    groups = decay_groups(model, 0.1, 0.9)
    assert len(groups) == 2 * 5
    assert [g["scale"] for g in groups] == sorted((g["scale"] for g in groups), reverse=True)
    count = sum(p.numel() for g in groups for p in g["params"])
    assert count == sum(p.numel() for p in model.parameters())


def test_a_generator_beside_a_model_adds_no_layers():
    both = Learner(learner().model, [], generator=learner().model)
    scales = [group["scale"] for group in decay_groups(both, 0.1, 0.5)]
    assert scales == [group["scale"] for group in decay_groups(learner(), 0.1, 0.5)]


def test_muon_has_no_layer_decay():
    with pytest.raises(InputError, match=r"optim\.layer_decay and a CRF are not possible with"):
        make_optimizer(learner(), Optim(name="muon", layer_decay=0.9))


def test_the_mean_of_the_weights_follows_them_and_steps_aside():
    learning = learner()
    state = run(learning, Optim(ema=0.5))
    means = {n: p.detach().clone() for n, p in learning.named_parameters()}
    optim = Optim(ema=0.5)
    for _ in range(5):
        micro = [batch()]
        counts = {"mlm": count_targets(learning.objectives, micro)[0]}
        keywords = {"optim": optim, "rate": 0.01, "precision": "float32"}
        step(learning, state.optimizer, micro, counts, objectives=learning.objectives, **keywords)
        state.step += 1
        state.take_average(0.5)
        kept = min(0.5, (1 + state.step) / (10 + state.step))
        for name, p in learning.named_parameters():
            means[name] = kept * means[name] + (1 - kept) * p.detach()
    weights = {n: p.detach().clone() for n, p in learning.named_parameters()}
    with state.averaged():
        for name, p in learning.named_parameters():
            torch.testing.assert_close(p.detach(), means[name])
    assert all(torch.equal(p, weights[n]) for n, p in learning.named_parameters())


def test_the_mean_is_saved_and_restored(tmp_path: Path):
    state = run(learner(), Optim(ema=0.9), steps=3)
    path = state.save(tmp_path)
    other = TrainState(learner(), make_optimizer(learner(), Optim()))
    other.optimizer = make_optimizer(other.learner, Optim())
    other.restore(SavedState.read(path))
    assert state.average is not None
    assert other.average is not None
    assert all(torch.equal(t, other.average[n]) for n, t in state.average.items())


class OneBatch:
    """A loader that repeats one batch."""

    def batches(self, position: Position):
        while True:
            yield batch(), position


def test_the_best_weights_are_the_mean_that_was_evaluated(tmp_path: Path):
    learning = learner()
    optim = Optim(ema=0.9, learning_rate=0.01)
    evaluated = []

    def evaluate() -> dict[str, float]:
        evaluated.append({n: p.detach().clone() for n, p in learning.named_parameters()})
        return {"loss": abs(len(evaluated) - 2.0)}  # the second evaluation is the best

    job = Job(
        state=TrainState(learning, make_optimizer(learning, optim)),
        phases=[Phase(OneBatch(), learning.objectives, evaluate)],  # type: ignore[arg-type]
        optim=optim,
        run=Run(max_steps=6, eval_every=2, precision="float32"),
        folder=tmp_path,
        display=Display("test", quiet=True),
        monitor=Monitor("loss", lower=True, patience=9),
    )
    train(job)
    assert job.state.best == {"step": 4, "value": 0.0, "since": 4}
    job.state.use_best()
    for name, p in learning.named_parameters():
        assert torch.equal(p.detach(), evaluated[1][name])
    weight = "model.encoder.blocks.0.feed_forward.up.weight"
    assert not torch.equal(evaluated[1][weight], evaluated[2][weight])


def test_a_step_against_the_model_adds_the_gradient_of_moved_words():
    optim = Optim(
        name="sgd", momentum=0.0, weight_decay=0.0, clip=1e9, adversarial=0.3, learning_rate=1.0
    )
    ours, plain = learner(), learner()
    start = {n: p.detach().clone() for n, p in plain.named_parameters()}
    run(ours, optim, rate=1.0)

    def gradients() -> None:
        loss = plain(batch())["mlm"]
        (loss.total / loss.count).backward()

    plain.train()
    gradients()
    table = plain.model.encoder.embeddings.word.weight
    assert table.grad is not None
    with torch.no_grad():
        table += 0.3 * table.grad / table.grad.norm()
    gradients()  # adds to what is there
    for name, p in plain.named_parameters():
        if p.grad is not None:
            moved = start[name] - dict(ours.named_parameters())[name].detach()
            torch.testing.assert_close(moved, p.grad, rtol=1e-4, atol=1e-6)


def test_frozen_words_cannot_be_moved():
    learning = learner()
    learning.model.encoder.embeddings.requires_grad_(False)
    with pytest.raises(InputError, match="these are frozen"):
        run(learning, Optim(adversarial=0.1))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("ema", 1.0), ("ema", -0.1), ("layer_decay", 0.0), ("layer_decay", 1.1), ("adversarial", -1)],
)
def test_settings_out_of_range_are_refused(setting: str, value: float):
    with pytest.raises(InputError, match=f"optim.{setting} is"):
        Optim(**{setting: value})
