"""Targets of permutation language modelling and of span corruption: where, and how many."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import XLNET_STRUCTURE, EncoderConfig
from ownbert.objectives import PermutationLM
from ownbert.objectives.language_modelling import PermutedSpans
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import unmasked
from ownbert.objectives.span_corruption_lm import SpanCorruption
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
    end = batch.tokens + len(batch.masked_positions)
    assert seen.masked_positions.tolist() == [*range(batch.tokens, end)]
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


# Span corruption: what is taken out, and that nothing is lost.


WORDS = np.arange(400) >= 4
START, END, SENTINELS = 0, 3, np.arange(300, 400)


def corruption(**settings: float) -> SpanCorruption:
    ordinary = WORDS & (np.arange(400) < 300)
    return SpanCorruption(SENTINELS, START, END, ordinary, **settings)


def put_back(source: np.ndarray, written: np.ndarray) -> list[int]:
    """The text, with the spans that the decoder writes in place of their sentinels."""
    spans, number = {}, -1
    for token in written[:-1].tolist():
        if token >= 300:
            number = token
            spans[number] = []
        else:
            spans[number].append(token)
    return [t for token in source.tolist() for t in spans.get(token, [token])]


@pytest.mark.parametrize(("rate", "mean"), [(0.15, 3.0), (0.5, 1.0), (0.99, 2.5), (0.01, 512.0)])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 40, 126, 3000])
def test_nothing_is_lost(length: int, rate: float, mean: float):
    rng = np.random.default_rng(length)
    ids = np.array([2, *rng.integers(4, 300, length), 3])
    for _ in range(5):
        example = corruption(rate=rate, length=mean)(ids, rng)
        assert example.source is not None
        assert example.tags is not None
        read, written = example.source.token_ids, example.tags
        assert put_back(read, written) == ids.tolist()
        assert example.token_ids.tolist() == [START, *written[:-1]]
        assert written[-1] == END
        assert (read[0], read[-1]) == (2, 3)
        found = read[read >= 300]
        assert found.tolist() == SENTINELS[: len(found)].tolist()
        taken = (written < 300).sum() - 1
        if length < 2:
            assert taken == len(found) == 0
            continue
        assert taken == min(length - 1, max(1, round(rate * length)))
        assert len(found) == min(100, length - taken, max(1, round(taken / mean)))


def test_an_example_follows_from_the_generator_alone():
    ids = np.arange(4, 130)
    pairs: Any = [corruption()(ids, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(pairs[0].tags, pairs[1].tags)
    assert not np.array_equal(pairs[0].source.token_ids, pairs[2].source.token_ids)  # pyright: ignore
    gone = np.zeros(130)
    for seed in range(300):
        read = corruption()(ids, np.random.default_rng(seed)).source.token_ids  # pyright: ignore
        gone[np.setdiff1d(ids, read)] += 1
    # A text begins with what stays and ends with a span; between, every place is as likely.
    assert (gone[4], gone[-1]) == (0, 300)
    assert gone[14:-10].min() > 20
    assert gone[14:-10].max() < 80
