"""Position kinds: their formulas, what is beyond their tables, and who may be how long."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, pack
from ownbert.batches.layout import distances
from ownbert.config.position_kinds import POSITIONS
from ownbert.config.variants import Mobile
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.nn.positions import Alibi, RelativeKeys, make_bias, rotate, sinusoids
from support.networks import SMALL

CONFIG = replace(SMALL, num_attention_heads=4, max_position_embeddings=8)
# Without its view of the neighbours, which is an order of its own.
BOTTLENECK = Mobile(intra_bottleneck_size=8, trigram_input=False, normalization_type="layer_norm")


def text(length: int) -> Example:
    ids = np.random.default_rng(length).integers(5, 30, length)
    return Example(ids, (np.arange(length) > 2).astype(int))


@pytest.mark.parametrize("size", [6, 7])
def test_sines_are_those_of_the_paper(size: int):
    found = sinusoids(torch.tensor([0, 3, 511]), size)
    for row, position in zip(found, (0, 3, 511), strict=True):
        for channel in range(size):
            angle = position / 10_000 ** (2 * (channel // 2) / size)
            true = math.cos(angle) if channel % 2 else math.sin(angle)
            assert float(row[channel]) == pytest.approx(true, abs=1e-4)


def test_rotated_products_depend_on_the_distance_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 3, 8, dtype=torch.float64)
    for distance in (0, 1, 7):
        near, far = (
            (rotate(q, torch.tensor([at + distance])) * rotate(k, torch.tensor([at]))).sum(-1)
            for at in (0, 400)
        )
        torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)
    one, other = (
        (rotate(q, torch.tensor([at])) * rotate(k, torch.tensor([0]))).sum(-1) for at in (1, 2)
    )
    assert not torch.allclose(one, other, atol=1e-2)
    # A rotation: channel i and i + K/2 as a complex number, times e^(i angle).
    x, at = torch.randn(5, 2, 6), torch.tensor([0, 1, 5, 9, 40])
    angles = at[:, None] * 10_000 ** (-torch.arange(3) / 3)
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones(5, 3), angles)[:, None]
    torch.testing.assert_close(rotate(x, at), torch.cat((turned.real, turned.imag), -1))


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("scaled", [True, False])
def test_relative_scores_and_the_end_of_their_table(kind: str, scaled: bool):
    config = replace(CONFIG, position_embedding_type=kind, scale_relative_positions=scaled)
    bias = RelativeKeys(config, range(config.num_attention_heads))
    table = bias.distance.weight
    assert table.shape == (15, 4)
    by_chance = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 3, 4, generator=by_chance)
    k = torch.randn(2, 4, 12, 4, generator=by_chance)
    scores = bias(q, k, distances(3, 12, torch.tensor([9])))
    assert scores.shape == (2, 4, 3, 12)
    for i in range(3):
        for j in range(12):
            row = table[min(7, max(-7, 9 + i - j)) + 7]  # beyond 7 it is as at 7
            true = q[:, :, i] @ row
            if kind == "relative_key_query":
                true = true + k[:, :, j] @ row
            torch.testing.assert_close(scores[:, :, i, j], true / (2 if scaled else 1))


def test_slopes():
    config = replace(CONFIG, position_embedding_type="alibi")
    bias = Alibi(config, (1, 3))
    far = distances(2, 3, torch.tensor([1]))
    assert far.tolist() == [[[1, 0, -1], [2, 1, 0]]]
    scores = bias(torch.zeros(5, 2, 2, 4), torch.zeros(5, 2, 3, 4), far)
    assert scores.tolist() == [
        [
            [[-(2**-4), 0, -(2**-4)], [-(2**-3), -(2**-4), 0]],
            [[-(2**-8), 0, -(2**-8)], [-(2**-7), -(2**-8), 0]],
        ]
    ]
    # Heads that stay after pruning keep their own slopes.
    model = Model(config)
    model.prune_heads({1: [0, 2]})
    pruned = model.encoder.blocks[1].attention.bias
    assert torch.equal(pruned.slopes, bias.slopes)
    assert torch.equal(
        model.encoder.blocks[0].attention.bias.slopes, Alibi(config, range(4)).slopes
    )


def test_kinds_without_scores_of_their_own():
    kinds = [
        kind
        for kind in POSITIONS
        if make_bias(replace(CONFIG, position_embedding_type=kind), range(4)) is None
    ]
    assert kinds == ["absolute", "sinusoidal", "sinusoidal_halves", "rotary", "none"]


@pytest.mark.parametrize("mobile", [None, BOTTLENECK], ids=["bert", "bottleneck"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_order_matters_and_length_has_its_limits(kind: str, mobile: Mobile | None):
    torch.manual_seed(0)
    if kind == "transformer_xl" and mobile is not None:
        with pytest.raises(
            InputError, match="mobile cannot be combined with position_embedding_type"
        ):
            replace(CONFIG, position_embedding_type=kind, mobile=mobile)
        return
    model = Model(replace(CONFIG, position_embedding_type=kind, mobile=mobile)).eval()
    assert hasattr(model.encoder.embeddings, "position") == (kind == "absolute")
    with torch.no_grad():
        one = text(8)
        other = Example(one.token_ids[[0, 2, 1, *range(3, 8)]], one.type_ids)
        first, second = (model(pack([x])).hidden[0] for x in (one, other))
        assert torch.allclose(first, second, atol=1e-4) == (kind == "none")
        if kind == "absolute":
            with pytest.raises(ValueError, match="20 tokens is longer than the 8 positions"):
                model(pack([text(3), text(20)]))
            next_one = pack([text(1)])
            after = replace(next_one.layout, keys=pack([text(9)]).layout, causal=True)
            with pytest.raises(ValueError, match="9 tokens is longer than the 8 positions"):
                model(replace(next_one, layout=after, positions=torch.tensor([8])))
        else:
            assert bool(model(pack([text(3), text(20)])).hidden.isfinite().all())


@pytest.mark.parametrize(
    "kind", ["relative_key", "relative_key_query", "alibi", "rotary", "transformer_xl"]
)
def test_where_a_text_begins_does_not_matter(kind: str):
    torch.manual_seed(0)
    model = Model(replace(CONFIG, position_embedding_type=kind)).eval()
    batch = pack([text(6), text(8)])
    moved = replace(batch, positions=batch.positions + 100)
    with torch.no_grad():
        one, other = model(batch).hidden, model(moved).hidden
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
