"""Targets of permutation language modelling: where they are, how many, and in which order."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import XLNET_STRUCTURE, EncoderConfig
from ownbert.objectives import PermutationLM
from ownbert.objectives.language_modelling import PermutedSpans
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import unmasked
from ownbert.pretraining.init_weights import new_learner
from ownbert.pretraining.pretrain_recipe import PretrainRecipe, PretrainTask

ORDINARY = np.array([False] * 5 + [True] * 95)


def chosen(ids: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return PermutedSpans(ORDINARY)(ids, np.random.default_rng(seed))


def example(ids: np.ndarray, seed: int) -> Example:
    positions, order = chosen(ids, seed)
    return Example(ids, np.zeros_like(ids), positions, ids[positions], order=order)


def test_a_sixth_of_the_tokens_in_spans_of_one_to_five():
    ids = np.full(3000, 7)
    positions, order = chosen(ids, 0)
    assert abs(len(positions) / len(ids) - 1 / 6) < 0.01
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    lengths = np.bincount([len(run) for run in runs])
    assert lengths[1:6].min() > 0.1 * len(runs)  # some stand side by side, and count as one
    assert lengths[6:].sum() < 0.1 * len(runs)
    assert sorted(order) == list(range(len(positions)))
    again = chosen(ids, 0)
    assert (again[0] == positions).all()
    assert (again[1] == order).all()
    assert len(chosen(ids, 1)[0]) != len(positions) or (chosen(ids, 1)[0] != positions).any()


@pytest.mark.parametrize("seed", range(20))
def test_special_tokens_are_no_targets_and_there_is_one_in_any_text(seed: int):
    for ids in (np.array([2, 9, 3]), np.array([2, 8, 9, 10, 3, 11, 3])):
        positions, _ = chosen(ids, seed)
        assert len(positions) >= 1
        assert ORDINARY[ids[positions]].all()
    assert len(chosen(np.array([2, 3]), seed)[0]) == 0


def test_the_view_puts_words_back_and_ranks_the_targets():
    texts = [np.arange(5, 5 + n) for n in (12, 1, 30)]
    batch = pack([example(ids, i) for i, ids in enumerate(texts)])
    seen = PermutationLM().to_view(batch, {})
    assert torch.equal(seen.token_ids, torch.from_numpy(np.concatenate(texts)))
    assert seen.layout.ranks is not None
    assert torch.equal(unmasked(batch), seen.token_ids)
    assert batch.masked_positions is not None
    assert batch.order is not None
    assert seen.masked_positions is not None
    assert torch.equal(seen.layout.ranks[batch.masked_positions], batch.order)
    assert int((seen.layout.ranks == -1).sum()) == batch.tokens - len(batch.masked_positions)
    assert seen.masked_positions.tolist() == list(
        range(batch.tokens, batch.tokens + len(batch.masked_positions))
    )
    with pytest.raises(ValueError, match="names an order of its targets"):
        PermutationLM().to_view(replace(batch, order=None), {})


def learner() -> Learner:
    config = EncoderConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **XLNET_STRUCTURE,
    )
    recipe = PretrainRecipe(task=PretrainTask(objectives=("plm",)))
    return new_learner(recipe, config, [PermutationLM()])


def test_the_loss_of_a_batch_is_that_of_its_sequences():
    torch.manual_seed(0)
    one = learner().eval()
    examples = [example(np.arange(6, 6 + n), n) for n in (12, 1, 30)]
    together = one(pack(examples))["plm"]
    parts = [one(pack([e]))["plm"] for e in examples]
    assert together.count == sum(part.count for part in parts)
    torch.testing.assert_close(together.total, sum(part.total for part in parts))


@pytest.mark.slow
def test_it_learns_an_order_of_words_that_frequencies_do_not_tell():
    one = learner().train()
    rng = np.random.default_rng(0)
    optimizer = torch.optim.Adam(one.parameters(), 0.01)
    losses = []
    for step in range(50):
        starts = rng.integers(0, 20, 16)
        texts = [10 + (np.arange(12) + start) % 20 for start in starts]
        loss = one(pack([example(ids, 100 * step + i) for i, ids in enumerate(texts)]))["plm"]
        mean = loss.total / loss.count
        losses.append(float(mean.detach()))
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    assert np.mean(losses[-5:]) < 0.5 * np.log(20)  # which is what frequencies give
    for name, parameter in one.named_parameters():
        assert parameter.grad is not None, name
