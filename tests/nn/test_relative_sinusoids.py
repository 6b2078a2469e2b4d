"""XLNet's scores against the equation, pair by pair, and tokens that see each other by ranks."""

from dataclasses import replace

import pytest
import torch

from ownbert.batches.layout import distances, make_layout
from ownbert.nn.attention.attend import BACKENDS, attend
from ownbert.nn.model import Model
from ownbert.nn.positions import RelativeSinusoids
from ownbert.nn.prepack import prepack
from support.floats import assert_close
from support.networks import SMALL, batch_of

CONFIG = replace(
    SMALL,
    hidden_size=12,
    num_attention_heads=3,
    intermediate_size=16,
    type_vocab_size=0,
    hidden_dropout_prob=0.0,
    position_embedding_type="transformer_xl",
    norm_embeddings=False,
    qkv_bias=False,
    output_bias=False,
    mask_vector=True,
    pad_token_id=5,
)


def random_bias(**changes) -> RelativeSinusoids:
    torch.manual_seed(0)
    bias = RelativeSinusoids(replace(CONFIG, **changes), range(3))
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    return bias.double()


def tokens(length: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    q, k = torch.randn(2, length, 3, 4, dtype=torch.float64)
    return q, k, torch.randint(0, 3, (length,))


@pytest.mark.parametrize("longest", [None, 2])
def test_scores_are_the_equation_pair_by_pair(longest: int | None):
    bias, (q, k, segments) = random_bias(longest_distance=longest), tokens(6)
    queries, keys = bias.extended(q, k, segments, segments)
    far = distances(6, 6, torch.tensor([0]))
    by_head = [x.transpose(0, 1)[None] for x in (queries, keys)]
    found = (queries.transpose(0, 1) @ keys.permute(1, 2, 0)) / queries.shape[-1] ** 0.5
    found = found + bias(*by_head, far)[0]
    w = bias.distance.weight.view(3, 4, 12)
    expected = torch.empty(3, 6, 6, dtype=torch.float64)
    for i in range(6):
        for j in range(6):
            d = i - j if longest is None else max(-longest, min(longest, i - j))
            angles = d / 10_000 ** (torch.arange(0, 12, 2, dtype=torch.float64) / 12)
            r = w @ torch.cat((angles.sin(), angles.cos()))  # (H, K)
            s = bias.segments[int(segments[i] != segments[j])]
            total = ((q[i] + bias.content) * k[j] + (q[i] + bias.position) * r).sum(-1)
            expected[:, i, j] = (total + ((q[i] + bias.segment) * s).sum(-1)) / 2
    # The same but for a summand of each query, which a softmax does not see.
    assert_close(found.softmax(-1), expected.softmax(-1), name="weights")


@pytest.mark.parametrize("shift", [[0], [3], [0, 2]])
def test_keys_that_begin_before_the_queries(shift: list[int]):
    bias, queries = random_bias(), 4
    count, keys = len(shift), 4 + max(shift)
    q, k = (torch.randn(count, 3, n, 4, dtype=torch.float64) for n in (queries, keys))
    far = distances(queries, keys, torch.tensor(shift))
    known = bias.keys(keys + 2, queries + 1)
    found = bias(q, k, far)
    assert_close(bias(q, k, far, known=known), found)
    table = bias.keys(keys - 1, queries + keys).keys  # from keys - 1 down
    own = q + (bias.position - bias.content)[:, None]
    for b, h, i, j in ((0, 0, 0, 0), (count - 1, 2, 3, 1), (0, 1, 2, 3)):
        d = int(far[b, i, j])
        expected = (own[b, h, i] * table[h, keys - 1 - d]).sum() / 2
        assert_close(found[b, h, i, j], expected)


# The others take no layout in which ranks hide keys.
@pytest.mark.parametrize(
    "backend", [b for b in BACKENDS if BACKENDS[b].masks and b not in ("varlen", "windowed")]
)
@pytest.mark.parametrize("itself", [True, False])
def test_ranks_hide_what_is_predicted_later(backend: str, itself: bool):
    ranks = torch.tensor([-1, 1, 0, -1, 2, 0, 1, -1, -1])
    layout = replace(make_layout([5, 3, 1]), ranks=ranks, sees_itself=itself)
    q, k, v = torch.randn(3, 9, 2, 4, generator=torch.Generator().manual_seed(0))
    found = attend(q, k, v, layout, backend=backend).out
    start = 0
    for length in layout.lengths:
        part = slice(start, start + length)
        own = ranks[part]
        seen = own[None] < own.clamp(min=0)[:, None]
        seen = seen | torch.eye(length, dtype=torch.bool) if itself else seen
        scores = torch.einsum("ihk,jhk->hij", q[part], k[part]) / 2
        scores = scores.masked_fill(~seen, float("-inf"))
        weights = scores.softmax(-1).nan_to_num(1 / length)
        assert_close(found[part], torch.einsum("hij,jhk->ihk", weights, v[part]))
        start += length


def model() -> Model:
    torch.manual_seed(0)
    made = Model(replace(CONFIG, initializer_range=0.3), pooler=False).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made


def test_a_neighbour_in_the_batch_changes_nothing():
    one, text = model(), [7, 8, 9, 10, 11, 12]
    with torch.no_grad():
        alone = one(batch_of(text)).hidden
        for other in ([3], [4] * 6, list(range(29))):
            assert_close(one(batch_of(other, text)).hidden[len(other) :], alone)
            assert_close(one(batch_of(text, other)).hidden[:6], alone)


def test_a_predicted_token_sees_neither_itself_nor_what_comes_later():
    one, text = model(), [7, 8, 9, 10, 11, 12]

    def predicted(row: list[int]) -> torch.Tensor:
        given = batch_of(row, [3, 4])
        ranks = torch.tensor([-1, 1, 0, -1, 2, -1, 0, -1])
        rows = torch.tensor([1, 2, 4, 6])
        layout = replace(given.layout, ranks=ranks)
        with torch.no_grad():
            return one(replace(given, layout=layout, predicted=rows)).hidden[8:]

    plain = predicted(text)
    assert plain.shape == (4, 12)
    # In the order of the second list: the token at 2, then that at 1, then that at 4.
    for changed, moved in ((2, {1, 4}), (1, {4}), (4, set()), (3, {1, 2, 4})):
        other = predicted([*text[:changed], text[changed] + 9, *text[changed + 1 :]])
        far = (other - plain).abs().amax(1) > 1e-6
        assert {place for place, m in zip((1, 2, 4, 6), far.tolist(), strict=True) if m} == moved


def test_a_prepacked_copy_computes_the_same():
    one, given = model(), batch_of([7, 8, 9], [3] * 20)
    with torch.no_grad():
        assert_close(prepack(one)(given).hidden, one(given).hidden)
