"""Local attention: who sees whom in a model, and what stays as it is."""

from dataclasses import replace

import pytest
import torch

from ownbert.batches.batch import Batch
from ownbert.batches.layout import make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.nn.attention.attend import attend
from ownbert.nn.model import Model
from ownbert.nn.prepack import prepack, quantizable, quantize_linears
from ownbert.train.meter import training_flops
from support.floats import assert_close

CONFIG = EncoderConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=24,
    type_vocab_size=0,
    initializer_range=0.3,
    position_embedding_type="rotary",
    norm_first=True,
    final_norm=True,
    first_norm=False,
    norm_bias=False,
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    gated_feed_forward=True,
    local_attention=4,
    global_attn_every_n_layers=2,
)


def model(**changes) -> Model:
    torch.manual_seed(0)
    return Model(replace(CONFIG, **changes), pooler=False).eval()


def batch(*rows: list[int]) -> Batch:
    ids = torch.tensor([i for row in rows for i in row])
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    return Batch(ids, torch.zeros_like(ids), positions, make_layout([len(row) for row in rows]))


def test_a_token_far_away_counts_in_layers_that_see_the_whole_text():
    text = list(range(2, 14))
    changed = [*text[:-1], 20]
    for layers, reach in ((1, 12), (2, 12)):
        one = model(num_hidden_layers=layers)
        first, second = (one(batch(row)).hidden for row in (text, changed))
        moved = (first - second).abs().amax(1) > 1e-6
        assert int(moved.sum()) == reach
    # Without the first layer, which sees all, each local layer reaches two tokens further.
    local = model(num_hidden_layers=3, global_attn_every_n_layers=3)
    blocks = local.encoder.blocks[1:]
    local.encoder.blocks = blocks
    first, second = (local(batch(row)).hidden for row in (text, changed))
    moved = (first - second).abs().amax(1) > 1e-6
    assert moved.tolist() == [False] * 7 + [True] * 5


def test_a_neighbour_in_the_batch_changes_nothing():
    one = model(num_hidden_layers=4)
    text, other = list(range(2, 14)), [7] * 25
    alone = one(batch(text)).hidden
    for rows in ([text, other], [text, [5]], [text, other[:12]]):
        assert_close(one(batch(*rows)).hidden[: len(text)], alone)


def test_short_texts_are_computed_as_without_a_window():
    layout = make_layout([3, 2])
    assert layout.within(2) is layout
    assert layout.within(None) is layout
    far = layout.within(1)
    assert far is layout.within(1)
    assert far.hides
    assert not replace(layout, window=2).hides


@pytest.mark.parametrize("window", [0, 3, 70])
def test_blocks_of_long_texts_are_the_equation(window: int):
    lengths = [600, 1, 290, 64, 330]
    layout = make_layout(lengths).within(window)
    generator = torch.Generator().manual_seed(0)
    shape = sum(lengths), 2, 4
    rows = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    found: list[list[torch.Tensor]] = []
    for backend in (None, "reference"):
        q, k, v = (x.clone().requires_grad_() for x in rows[:3])
        out = attend(q, k, v, layout, backend=backend).out
        found.append([out.detach(), *torch.autograd.grad(out, (q, k, v), rows[3])])
        with torch.no_grad():
            found[-1].append(attend(q, k, v, layout, backend=backend).out)
    for ours, truth in zip(*found, strict=True):
        assert_close(ours, truth)


def test_memory_grows_with_the_length_and_not_with_its_square():
    def saved(length: int, dropout: float) -> int:
        count = 0

        def add(x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += x.numel()
            return x

        q, k, v = (torch.ones(length, 1, 4, requires_grad=True) for _ in range(3))
        with torch.autograd.graph.saved_tensors_hooks(add, lambda x: x):
            attend(q, k, v, make_layout([length]).within(16), dropout=dropout)
        return count

    for dropout in (0.0, 0.1):
        assert saved(4096, dropout) < 2.1 * saved(2048, dropout)


def test_blocks_take_windows_alone():
    layout = make_layout([600])
    rows = torch.ones(600, 1, 4)
    for other in (layout, replace(layout, window=5, causal=True), layout.within(600)):
        with pytest.raises(ValueError, match="requires that only windows hide keys"):
            attend(rows, rows, rows, other, backend="windowed")
    alike = attend(rows, rows, rows, layout.within(5), dropout=0.5).out
    assert 0.8 < float(alike.mean()) < 1.2
    assert alike.std() > 0.1


def test_a_prepacked_copy_keeps_the_gate():
    one = model(num_hidden_layers=2)
    given = batch([2, 3, 4, 5, 6, 7, 8])
    with torch.no_grad():
        assert_close(prepack(one)(given).hidden, one(given).hidden)


def test_it_learns_without_biases():
    one = model(num_hidden_layers=2).train()
    given, before = batch([2, 3, 4, 5, 6, 7, 8], [9, 3]), []
    target = torch.randn(9, 16)
    optimizer = torch.optim.Adam(one.parameters(), 0.01)
    for _ in range(20):
        loss = (one(given).hidden - target).square().mean()
        before.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before[-1] < 0.8 * before[0]
    assert not any("bias" in name for name, _ in one.named_parameters())


def _flops(config: EncoderConfig, length: int) -> float:
    return training_flops(Model(config, [], pooler=False), [length], {})


def test_the_work_of_pairs_that_do_not_see_each_other_is_not_counted():
    wide = replace(CONFIG, local_attention=None, num_hidden_layers=2)
    near = replace(CONFIG, num_hidden_layers=2)
    # Of 10 x 10 pairs, one of two layers has 10 x 5 less 2 x 3 beyond the ends.
    saved = _flops(wide, 10) - _flops(near, 10)
    assert saved == 3 * 4 * 16 * (100 - 44)
    assert _flops(wide, 3) == _flops(near, 3)
    plain = replace(wide, gated_feed_forward=False)
    extra = _flops(wide, 10) - _flops(plain, 10)
    assert extra == 3 * 2 * 10 * 2 * 16 * 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_attention": -1}, "local_attention is -1; it must be a whole number, at least 0"),
        ({"local_attention": 1 << 40}, "local_attention is 1099511627776; it must be at most"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ({"rotary_base": 1.0}, r"rotary_base is 1\.0; it must be more than 1"),
        ({"local_rotary_base": float("nan")}, "local_rotary_base is nan; it must be more than 1"),
        ({"num_hidden_groups": 1}, "local_attention cannot be combined with num_hidden_groups"),
    ],
)
def test_impossible_values(changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        replace(CONFIG, **changes)


def test_a_quantized_copy_keeps_the_gate():
    one = model(num_hidden_layers=2)
    given = batch([2, 3, 4, 5, 6, 7, 8])
    with torch.no_grad():
        expected = one(given).hidden
    names = [name for name, *_ in quantizable(one.encoder)]
    widths = {name: one.encoder.get_submodule(name).in_features for name in names}
    quantize_linears(one.encoder, {name: torch.ones(int(n)) for name, n in widths.items()})  # pyright: ignore
    assert any("feed_forward" in name for name in names)
    # Copies round inputs to 8 bits, to 7 or not at all, depending on the processor: an error of up
    # to .02 of the norm. Without the gate it would be .96.
    with torch.no_grad():
        for copy in (one, prepack(one)):
            assert (copy(given).hidden - expected).norm() < 0.1 * expected.norm()
