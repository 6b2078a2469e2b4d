"""Greedy and beam search: with a cache and without, alone and together, against every possible
answer."""

import itertools

import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, from_padded
from ownbert.nn.model import Model
from ownbert.translation.generate import Hypothesis, beam_search, greedy
from ownbert.translation.transformer import log_probs, make_model

START, END = 1, 2
LENGTHS = (3, 7, 5, 1)
# A score sums up to a dozen log-probabilities, each the difference of two numbers of some tens:
# 4e-5 has been seen.
SCORES = 5e-4


@pytest.fixture(params=[False, True], ids=["post", "pre"])
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(3)
    made = make_model(9, 10, N=2, d_model=16, d_ff=32, h=2, norm_first=request.param).eval()
    for parameter in made.parameters():
        parameter.data.mul_(2)
    return made


def padded() -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, 9, (4, 7), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(7) < torch.tensor(LENGTHS)[:, None]).long()
    return ids, mask


def sources() -> Batch:
    return from_padded(*padded())[0]


def same(one: list[Hypothesis], two: list[Hypothesis]) -> None:
    assert [w.ids for w in one] == [w.ids for w in two]
    assert [w.ended for w in one] == [w.ended for w in two]
    assert all(abs(a.score - b.score) < SCORES for a, b in zip(one, two, strict=True))


ASKED = {"start": START, "end": END, "longest": [12, 9, 12, 4]}


def test_the_cache_changes_nothing(model: Model):
    kept, computed = (greedy(model, sources(), **ASKED, cached=c) for c in (True, False))
    same(kept, computed)
    assert len({len(w.ids) for w in kept}) > 1  # sources end at different steps
    kept, computed = (
        beam_search(model, sources(), **ASKED, beams=3, cached=c) for c in (True, False)
    )
    same(kept, computed)


def test_a_source_is_answered_the_same_alone(model: Model):
    together = beam_search(model, sources(), **ASKED, beams=3), greedy(model, sources(), **ASKED)
    ids, _ = padded()
    for number, length in enumerate(LENGTHS):
        alone = from_padded(ids[number : number + 1, :length])[0]
        asked = ASKED | {"longest": ASKED["longest"][number : number + 1]}
        same(beam_search(model, alone, **asked, beams=3), together[0][number : number + 1])
        same(greedy(model, alone, **asked), together[1][number : number + 1])


def test_greedy_takes_the_likeliest_each_time(model: Model):
    ids, mask = padded()
    for number, written in enumerate(greedy(model, sources(), **ASKED)):
        tokens, total = [START], 0.0
        while len(tokens) - 1 < ASKED["longest"][number] and tokens[-1] != END:
            row = slice(number, number + 1)
            found = log_probs(model, ids[row], torch.tensor([tokens]), mask[row])[0, -1].detach()
            total += float(found.max())
            tokens.append(int(found.argmax()))
        assert written.ended == (tokens[-1] == END)
        assert written.ids == tuple(t for t in tokens[1:] if t != END)
        assert written.score == pytest.approx(total, abs=SCORES)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_wide_beam_finds_the_best_of_all_answers(model: Model, penalty: float):
    """With as many beams as there are beginnings nothing is lost."""
    longest = 3
    source = torch.tensor([[3, 4, 5]])
    ranked: dict[tuple[int, ...], float] = {}
    for length in range(longest):
        bodies = itertools.product([t for t in range(10) if t != END], repeat=length)
        answers = torch.tensor([(START, *body, END) for body in bodies])
        sources = source.expand(len(answers), -1)
        found = log_probs(model, sources, answers[:, :-1]).detach()
        totals = found.gather(-1, answers[:, 1:, None]).sum((1, 2))
        divisor = ((5 + length + 1) / 6) ** penalty
        for answer, total in zip(answers[:, 1:].tolist(), totals.tolist(), strict=True):
            ranked[tuple(answer)] = total / divisor

    best = max(ranked, key=ranked.__getitem__)
    (written,) = beam_search(
        model,
        from_padded(source)[0],
        start=START,
        end=END,
        longest=[longest],
        beams=100,
        length_penalty=penalty,
    )
    assert written.ended
    assert (*written.ids, END) == best
    assert written.score == pytest.approx(ranked[best], abs=SCORES)


def test_what_does_not_end_is_cut(model: Model):
    model.heads["generator"].projection.bias.data[END] = -1e4
    for found in (greedy(model, sources(), **ASKED), beam_search(model, sources(), **ASKED)):
        assert [len(w.ids) for w in found] == ASKED["longest"]
        assert not any(w.ended for w in found)
