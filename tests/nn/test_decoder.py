"""Decoder mode: nothing from the future, cross attention, and the cache."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, from_padded
from ownbert.batches.layout import Layout, make_layout
from ownbert.config.position_kinds import POSITIONS
from ownbert.nn.context import Cache, Context, per_sequence
from ownbert.nn.model import Model
from support.networks import SMALL

CONFIG = replace(SMALL, max_position_embeddings=12, is_decoder=True)
COUNT, LENGTH, TOLD = 3, 9, 5
SHARED = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}


def make(**changes) -> Model:
    torch.manual_seed(0)
    return Model(replace(CONFIG, **changes), ["mlm"]).eval()


def ids() -> Tensor:
    return torch.randint(5, 30, (COUNT, LENGTH), generator=torch.Generator().manual_seed(3))


def whole() -> Batch:
    return from_padded(ids())[0]


def told() -> tuple[Tensor, Layout]:
    """Hidden states of an encoder, and their layout: all of one length."""
    rows = torch.randn(COUNT * TOLD, 16, generator=torch.Generator().manual_seed(4))
    return rows, make_layout([TOLD] * COUNT)


def step(model: Model, cache: Cache, start: int, stop: int, *, cross: bool = False) -> Tensor:
    """Logits (B, stop - start, V) of some tokens after those in the cache."""
    part = from_padded(ids()[:, start:stop], position_ids=torch.arange(start, stop)[None])[0]
    layout = replace(part.layout, keys=make_layout([stop] * COUNT), causal=True)
    context = Context(layout, part.positions, cache=cache)
    if cross:
        # The rows of the encoder are needed once; later the cache has them.
        rows, keys = told()
        context.encoder_hidden = rows if start == 0 else None
        context.cross = replace(part.layout, keys=keys)
    return model(part, context=context).logits["mlm"].view(COUNT, stop - start, -1)


@pytest.mark.parametrize("kind", POSITIONS)
def test_nothing_comes_from_the_future(kind: str):
    model = make(position_embedding_type=kind)
    batch = whole()
    changed = replace(batch, token_ids=batch.token_ids.clone())
    changed.token_ids.view(COUNT, LENGTH)[:, 6] = 1
    with torch.no_grad():
        one, other = (model(x).hidden.view(COUNT, LENGTH, -1) for x in (batch, changed))
    torch.testing.assert_close(one[:, :6], other[:, :6])
    assert not torch.allclose(one[:, 6:], other[:, 6:], atol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [{"position_embedding_type": kind} for kind in POSITIONS] + [SHARED],
    ids=[*POSITIONS, "shared layers"],
)
@pytest.mark.parametrize("steps", [(1,) * LENGTH, (4, 1, 3, 1)], ids=["one by one", "several"])
def test_cached_decoding_gives_the_same_logits(changes: dict, steps: tuple[int, ...]):
    model, cache = make(**changes), Cache()
    with torch.no_grad():
        expected = model(whole()).logits["mlm"].view(COUNT, LENGTH, -1)
        start = 0
        for count in steps:
            assert cache.length == start
            found = step(model, cache, start, start + count)
            torch.testing.assert_close(
                found, expected[:, start : start + count], atol=2e-5, rtol=1e-4
            )
            start += count
    runs = changes.get("inner_group_num", 1) * model.config.num_hidden_layers
    assert len(cache.self_attention) == runs
    assert cache.self_attention[0][0].shape == (COUNT, LENGTH, 2, 8)


def test_cross_attention_and_its_cache():
    model, cache = make(add_cross_attention=True), Cache()
    batch, (rows, keys) = whole(), told()
    layout = replace(batch.layout, causal=True)
    cross = replace(batch.layout, keys=keys)
    context = Context(
        layout, batch.positions, encoder_hidden=rows, cross=cross, keep=frozenset([1])
    )
    with torch.no_grad():
        found = model(batch, context=context)
        expected = found.logits["mlm"].view(COUNT, LENGTH, -1)
        for i in range(LENGTH):
            logits = step(model, cache, i, i + 1, cross=True)
            torch.testing.assert_close(logits[:, 0], expected[:, i], atol=2e-5, rtol=1e-4)
        alone = model(batch).logits["mlm"].view(COUNT, LENGTH, -1)
    assert [tuple(w.shape) for w in found.cross_attentions[1]] == [(2, LENGTH, TOLD)] * COUNT
    assert [tuple(w.shape) for w in found.attentions[1]] == [(2, LENGTH, LENGTH)] * COUNT
    assert not torch.allclose(alone, expected, atol=1e-3)  # with no encoder it is left out
    assert [x.shape[1] for x in cache.self_attention[1]] == [LENGTH, LENGTH]
    assert [len(x) for x in cache.cross_attention[1]] == [COUNT * TOLD] * 2


def test_texts_of_an_encoder_may_differ_in_length():
    model = make(add_cross_attention=True)
    lengths = [2, 7, 4]
    rows = torch.randn(13, 16)
    batch = whole()
    layout = replace(batch.layout, causal=True)

    def ask(given: Batch, rows: Tensor, lengths: list[int]) -> Tensor:
        cross = replace(given.layout, keys=make_layout(lengths))
        layout = replace(given.layout, causal=True)
        context = Context(layout, given.positions, encoder_hidden=rows, cross=cross)
        return model(given, context=context).hidden

    with torch.no_grad():
        together = ask(batch, rows, lengths)
        for b, (part, told_of) in enumerate(
            zip(together.split(layout.lengths), rows.split(lengths), strict=True)
        ):
            alone = ask(from_padded(ids()[b : b + 1])[0], told_of, [lengths[b]])
            torch.testing.assert_close(part, alone, atol=2e-5, rtol=1e-4)


def test_a_mask_of_heads_reaches_cross_attention():
    model = make(add_cross_attention=True)
    batch, (rows, keys) = whole(), told()

    def ask(mask: Tensor | None, rows: Tensor) -> Tensor:
        context = Context(
            replace(batch.layout, causal=True),
            batch.positions,
            head_mask=mask,
            encoder_hidden=rows,
            cross=replace(batch.layout, keys=keys),
        )
        return model(batch, context=context).hidden

    with torch.no_grad():
        off = torch.zeros(2, 2)
        torch.testing.assert_close(ask(off, rows), ask(off, rows + 1))
        assert not torch.allclose(ask(None, rows), ask(None, rows * 2), atol=1e-3)


def test_the_cache_can_be_put_in_order():
    model, cache = make(add_cross_attention=True), Cache()
    order = torch.tensor([2, 0, 0])
    with torch.no_grad():
        step(model, cache, 0, 4, cross=True)
        turned = copy.deepcopy(cache)
    turned.reorder_self_attention(order)
    turned.reorder_cross_attention(order)
    assert cache.memory_layout is not None
    assert turned.memory_layout is not None
    for layer in (0, 1):
        for old, new in zip(cache.self_attention[layer], turned.self_attention[layer], strict=True):
            assert torch.equal(new, old[order])
        kept = zip(cache.cross_attention[layer], turned.cross_attention[layer], strict=True)
        for old, new in kept:
            expected = per_sequence(old, cache.memory_layout)[order]
            assert torch.equal(per_sequence(new, turned.memory_layout), expected)
    assert cache.length == 4


def test_what_a_cache_cannot_keep_is_refused():
    model = make(add_cross_attention=True)
    ragged = from_padded(torch.ones(2, 4, dtype=torch.long), torch.tensor([[1] * 4, [1, 1, 0, 0]]))[
        0
    ]
    with pytest.raises(ValueError, match="a cache needs sequences of equal length, not 2 to 4"):
        model(ragged, context=Context(ragged.layout, ragged.positions, cache=Cache()))


def test_a_model_without_cross_attention_says_so():
    batch, (rows, keys) = whole(), told()
    context = Context(
        batch.layout, batch.positions, encoder_hidden=rows, cross=replace(batch.layout, keys=keys)
    )
    with pytest.raises(ValueError, match="add_cross_attention is false"):
        make()(batch, context=context)
