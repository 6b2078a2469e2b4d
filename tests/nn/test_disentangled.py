"""Disentangled attention: its equation, its table of distances, and who sees whom."""

import math
from dataclasses import replace

import pytest
import torch

from ownbert.batches.layout import distances, make_layout
from ownbert.config.variants import Disentangled
from ownbert.exceptions import InputError
from ownbert.nn.attention.attend import BACKENDS, attend
from ownbert.nn.model import Model
from ownbert.nn.prepack import prepack
from ownbert.nn.variants.disentangled import DisentangledBias, DistanceTable, row_of
from support.floats import assert_close
from support.networks import SMALL, batch_of

V3 = Disentangled(share_att_key=True, position_buckets=4, norm_rel_ebd=True)
# As in v2-xlarge, and with matrices of their own as in v2 before it.
V2 = Disentangled(max_relative_positions=3, conv_kernel_size=3, conv_groups=2)
KINDS = {
    "v3": V3,
    "v2": V2,
    "queries": replace(V3, pos_att_type=("c2p",), share_att_key=False),
    "keys": replace(V2, pos_att_type=("p2c",)),
    "no distances": replace(V2, relative_attention=False),
}
CONFIG = replace(
    SMALL, num_attention_heads=4, type_vocab_size=0, position_embedding_type="none", disentangled=V3
)
TEXT = list(range(2, 14))


def model(settings: Disentangled, **changes) -> Model:
    torch.manual_seed(0)
    made = Model(replace(CONFIG, disentangled=settings, **changes), pooler=False).eval()
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def test_far_distances_share_rows_in_logarithmic_steps():
    far = torch.arange(-9, 10)
    assert row_of(far, Disentangled(max_relative_positions=3)).tolist() == [
        *([0] * 7),
        *(1, 2, 3, 4, 5),
        *([5] * 7),
    ]
    # Half of 8 are near; log(d / 4) / log(15 / 4) * 3 rounded up: 5 and 6 are one step away.
    settings = Disentangled(position_buckets=8, max_relative_positions=16)
    assert row_of(torch.arange(17), settings).tolist() == [
        *(8, 9, 10, 11, 12, 13, 13),
        *(14, 14, 14, 15, 15, 15, 15, 15, 15, 15),
    ]
    # Row 0 has the distances from -16 on, as there is no row for as far behind.
    assert row_of(-torch.tensor([15, 16, 99]), settings).tolist() == [1, 0, 0]
    narrow = Disentangled(position_buckets=4, max_relative_positions=3)
    assert row_of(far, narrow).tolist() == [*([0] * 7), 2, 3, 4, 5, 6, *([0] * 7)]
    # As many rows as distances: none is shared.
    assert row_of(far, Disentangled(position_buckets=256, max_relative_positions=8)).tolist() == [
        256 + d for d in range(-9, 10)
    ]


@pytest.mark.parametrize("kind", ["v3", "v2", "queries", "keys"])
def test_the_scores_are_the_equation_pair_by_pair(kind: str):
    made = model(KINDS[kind])
    attention, table = made.encoder.blocks[1].attention, made.encoder.distances
    assert isinstance(table, DistanceTable)
    bias, settings = attention.bias, KINDS[kind]
    assert isinstance(bias, DisentangledBias)
    near = table.within(6)
    scores = bias.scores(attention.project, near)
    q, k = torch.randn(2, 2, 4, 5, 4).unbind()
    n = len(settings.pos_att_type)
    found = scores(q / math.sqrt(1 + n), k, distances(5, 5, torch.tensor([0])))
    every = table.table.weight if table.norm is None else table.norm(table.table.weight)
    if settings.share_att_key:
        queries, keys, _ = attention.project(every)
    else:
        queries, keys = (
            getattr(bias, name)(every).view(-1, 4, 4) if hasattr(bias, name) else None
            for name in ("query", "key")
        )
    for i in range(5):
        for j in range(5):
            row = int(row_of(torch.tensor(i - j), settings))
            true = torch.zeros(2, 4)
            if "c2p" in settings.pos_att_type:
                true = true + (q[:, :, i] * keys[row]).sum(-1)
            if "p2c" in settings.pos_att_type:
                true = true + (k[:, :, j] * queries[row]).sum(-1)
            assert_close(found[:, :, i, j], true / math.sqrt(4 * (1 + n)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_in_the_batch_changes_nothing(kind: str):
    made = model(KINDS[kind])
    with torch.no_grad():
        alone = made(batch_of(TEXT)).hidden
        for rows in ([TEXT, [7] * 25], [TEXT, [5]], [TEXT, [7] * 12], [[9] * 30, TEXT]):
            found = made(batch_of(*rows)).hidden
            at = 30 if rows[-1] is TEXT else 0
            assert_close(found[at : at + len(TEXT)], alone)
        assert_close(prepack(made)(batch_of(TEXT, [7] * 25)).hidden[: len(TEXT)], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_order_counts_by_distances_or_the_convolution(kind: str):
    made = model(KINDS[kind])
    with torch.no_grad():
        first, second = (
            made(batch_of([2, *row])).hidden[0] for row in ([5, 6, 7, 8], [6, 5, 7, 8])
        )
    assert float((first - second).abs().max()) > 1e-3


def test_all_backends_compute_the_same():
    made = model(V3)
    attention, table = made.encoder.blocks[0].attention, made.encoder.distances
    layout = make_layout([5, 1, 8])
    with torch.no_grad():
        scores = attention.bias.scores(attention.project, table(layout))
        q, k, v = torch.randn(3, 14, 4, 4).unbind()
        truth = attend(q, k, v, layout, bias=scores, backend="reference").out
        able = [name for name, backend in BACKENDS.items() if backend.biases]
        assert {"matmul", "sdpa", "equal_lengths"} < {*able}
        for name in able:
            assert_close(attend(q, k, v, layout, bias=scores, backend=name).out, truth, name=name)


def test_short_texts_need_few_rows_of_the_table():
    table = DistanceTable(replace(CONFIG, disentangled=replace(V3, position_buckets=64)))
    assert table(make_layout([3, 5])).vectors.shape == (9, 16)
    assert table(make_layout([1])).vectors.shape == (1, 16)
    assert table(make_layout([900])).vectors.shape == (128, 16)


@pytest.mark.parametrize("kind", ["v3", "v2"])
def test_every_part_learns_also_with_recomputed_activations(kind: str):
    made = model(KINDS[kind]).train()
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    given, gradients = batch_of(TEXT, [9, 3]), []
    target = torch.randn(14, 16)
    for recompute in (False, True):
        made.encoder.gradient_checkpointing = recompute
        loss = (made(given).hidden - target).square().mean()
        gradients.append(torch.autograd.grad(loss, list(made.parameters()), allow_unused=True))
    for name, one, two in zip(dict(made.named_parameters()), *gradients, strict=True):
        assert one is not None, name
        assert float(one.abs().max()) > 0, name
        assert_close(two, one, scale=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_buckets": 1}, "position_buckets is 1; it must be at least 2"),
        ({"position_buckets": 1 << 40}, "position_buckets is 1099511627776; it must be at most"),
        ({"max_relative_positions": 0}, "max_relative_positions is 0; it must be a whole number"),
        ({"pos_att_type": ("p2p",)}, "pos_att_type 'p2p' is not known; use one of c2p, p2c"),
        ({"conv_kernel_size": 4}, "conv_kernel_size is 4; it must be an odd number"),
        ({"conv_act": "sine"}, "conv_act 'sine' is not known"),
        ({"share_att_key": "no"}, "share_att_key is 'no'; it must be true or false"),
    ],
)
def test_impossible_settings(changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        replace(V3, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_groups": 1},
            "disentangled attention cannot be combined with num_hidden_groups",
        ),
        (
            {"pruned_heads": {0: (1,)}},
            "disentangled attention cannot be combined with pruned_heads",
        ),
        ({"head_width": 4}, "disentangled attention cannot be combined with head_width"),
        ({"position_embedding_type": "rotary"}, "requires position_embedding_type absolute or"),
        (
            {"disentangled": replace(V2, conv_groups=3)},
            "hidden_size 16 must be a multiple of conv_groups 3",
        ),
    ],
)
def test_what_does_not_go_together(changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        replace(CONFIG, **changes)
    with pytest.raises(InputError, match="cannot be combined with pruned_heads"):
        model(V3).prune_heads({0: [1]})
