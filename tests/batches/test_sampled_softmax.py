"""The words that a softmax is taken over are those of the batch and some that are drawn."""

import torch

from ownbert.batches.sampled_softmax import Candidates, CandidateSampler

WORDS, TOKENS, DRAWS = 50, 30, 20


def probabilities() -> torch.Tensor:
    found = 1.0 / torch.arange(1.0, WORDS + 1)  # Zipf
    found[0] = 0.0  # is never predicted
    return found / found.sum()


def test_the_words_of_a_batch_are_candidates_and_found_again():
    torch.manual_seed(0)
    sampler = CandidateSampler(probabilities(), DRAWS)
    ids = torch.tensor([0, 49, 7, 7, 30, 0])
    candidates = sampler(ids)
    assert len(candidates.ids) % 128 == 0
    different = sorted({*candidates.ids.tolist()})
    rest = [different[-1]] * (len(candidates.ids) - len(different))
    assert candidates.ids.tolist() == different + rest
    assert torch.isneginf(candidates.offsets[len(different) :]).all()
    candidates = Candidates(candidates.ids[: len(different)], candidates.offsets[: len(different)])
    assert {*ids.tolist()} < {*candidates.ids.tolist()}
    assert torch.equal(candidates.ids[candidates.index_of(ids)], ids)
    assert candidates.offsets[candidates.index_of(torch.tensor([0]))] == 0
    assert (candidates.offsets[1:].diff() > 0).all()  # the rarer, the more it counts


def test_offsets_make_up_for_how_rarely_a_word_is_a_candidate():
    """The sum of 1 over all words is, on average, the sum of exp(offset) over candidates."""
    torch.manual_seed(0)
    own = probabilities()
    sampler, times = CandidateSampler(own, DRAWS), 3000
    total = torch.zeros(WORDS)
    for _ in range(times):
        found = sampler(torch.multinomial(own, TOKENS, replacement=True))
        total.index_add_(0, found.ids, found.offsets.exp())
    # The rarest is a candidate in 17 of 100 batches: a standard deviation of 0.04.
    torch.testing.assert_close(total[1:] / times, torch.ones(WORDS - 1), atol=0.2, rtol=0)


def test_what_a_model_sees_has_a_row_but_is_not_predicted():
    torch.manual_seed(0)
    own = probabilities()
    own[2:] = 0  # nothing but word 1 is drawn
    ids, shown = torch.tensor([1, 7, 7, 30]), torch.tensor([1, 4, 49, 30])
    candidates = CandidateSampler(own, DRAWS)(ids, shown)
    assert candidates.ids.unique().tolist() == [1, 4, 7, 30, 49]
    at = candidates.index_of(torch.tensor([1, 7, 30, 4, 49]))
    assert torch.isfinite(candidates.offsets[at]).tolist() == [True, True, True, False, False]
    assert torch.isfinite(candidates.offsets).sum() == 3
