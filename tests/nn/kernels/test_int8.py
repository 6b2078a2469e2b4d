"""Linear layers in 8 bits: near the float ones, and the same by oneDNN as in floats."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ownbert import EncoderConfig, Model
from ownbert.batches.batch import Example, pack
from ownbert.nn import prepack as int8
from ownbert.nn.prepack import (
    EXACT,
    NONE,
    PAIRS,
    PackedInt8FeedForward,
    PackedInt8Linear,
    QuantizedLinear,
    bounded_pairs,
    prepack,
    quantizable,
    quantize_linears,
    quantize_weight,
    round_rows,
    smoothing,
)
from support.floats import assert_close

PRODUCTS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not int8._is_exact(name), reason="requires int8 products")
    )
    for name in (EXACT, PAIRS)
]


def linear(inputs: int = 24, outputs: int = 12) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def tokens(count: int, width: int = 24) -> torch.Tensor:
    """Rows of very different sizes, off zero."""
    draw = torch.Generator().manual_seed(count)
    sizes = torch.logspace(-2, 2, count)[:, None]
    return torch.randn(count, width, generator=draw) * sizes + 0.3 * sizes


def test_a_weight_has_a_scale_for_each_row():
    weight = torch.tensor([[1.0, -2.0], [100.0, 50.0], [0.0, 0.0]])
    whole, scale = quantize_weight(weight)
    assert whole.tolist() == [[64, -127], [127, 64], [0, 0]]
    assert_close(whole * scale[:, None], weight, rtol=0.004)


def test_a_second_time_changes_nothing():
    whole, scale = quantize_weight(linear().weight)
    again, scale_again = quantize_weight(whole * scale[:, None])
    assert torch.equal(again, whole)
    assert_close(scale_again, scale)


def test_each_token_has_its_own_scale():
    x = tokens(40)
    errors = (round_rows(x) - x).abs().amax(1)
    steps = (x.amax(1) - x.amin(1)) / 255
    assert (errors <= 0.51 * steps).all()
    assert torch.equal(round_rows(torch.full((2, 8), 3.0)), torch.full((2, 8), 3.0))


def test_no_pair_of_weights_overflows_and_rows_stay_near():
    torch.manual_seed(0)
    weight = torch.randn(40, 64)
    weight[0] = 1  # every pair is too large
    weight[1, ::2] = 0  # none is
    weight[2, :2] = 6  # one is: it alone is cut, not all of the row rounded coarsely
    whole, scale = quantize_weight(weight)
    bounded, scales = bounded_pairs(whole, scale)
    assert (bounded.int().unflatten(1, (-1, 2)).sum(2).abs() * 255).max() < 2**15
    assert torch.equal(bounded[1], whole[1])
    assert_close(scales[1], scale[1])
    found, expected = bounded * scales[:, None], whole * scale[:, None]
    assert_close(found[0], expected[0])
    assert torch.cosine_similarity(found, expected, dim=1).min() > 0.999


def test_weights_of_small_pairs_are_kept():
    whole = torch.tensor([[127, -127, 1, 127, -64, -64]], dtype=torch.int8)
    bounded, scale = bounded_pairs(whole, torch.ones(1))
    assert torch.equal(bounded, whole)
    assert scale == 1


def test_smoothing_moves_a_large_channel_into_the_weight():
    layer, x = linear(), tokens(64)
    x[:, 3] *= 50
    plain = QuantizedLinear(layer, torch.ones(24))
    divisor = smoothing(x.abs().amax(0), layer.weight)
    smoothed = copy.deepcopy(layer)
    smoothed.weight.data *= divisor
    with torch.no_grad():
        expected = layer(x)
        near, far = (
            (one(x) - expected).norm() for one in (QuantizedLinear(smoothed, divisor), plain)
        )
    assert near < far / 2


def test_gradients_pass_rounding():
    layer, x = linear(), tokens(6).requires_grad_()
    QuantizedLinear(layer, torch.ones(24))(x).sum().backward()
    found = x.grad
    assert found is not None
    expected = layer.weight.sum(0).expand(6, 24)
    assert torch.cosine_similarity(found, expected, dim=1).min() > 0.99


def multiplied(layer: QuantizedLinear, products: str) -> QuantizedLinear:
    """The layer with the weights that are multiplied."""
    layer = copy.deepcopy(layer)
    if products == PAIRS:
        layer.weight.data, layer.scale = bounded_pairs(layer.weight, layer.scale)
    return layer


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 7, 500])
@pytest.mark.parametrize("act", ["linear", "gelu", "relu"])
def test_packed_products_are_those_of_floats(products: str, rows: int, act: str):
    layer = QuantizedLinear(linear(), torch.linspace(0.5, 2, 24))
    x = tokens(rows)
    expected = int8.ACTIVATION[act](multiplied(layer, products)(x))
    found = PackedInt8Linear(layer, act, products)(x)
    assert_close(found, expected, rtol=2e-3)


@pytest.mark.parametrize("products", PRODUCTS)
def test_the_largest_numbers_do_not_overflow(products: str):
    layer = nn.Linear(512, 4)
    layer.weight.data = torch.ones(4, 512) * torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    x = torch.full((3, 512), 2.0)
    x[:, 0] = -2.0
    quantized = QuantizedLinear(layer, torch.ones(512))
    assert_close(PackedInt8Linear(quantized, products=products)(x), quantized(x), rtol=1e-3)


@pytest.mark.parametrize(
    ("exact", "capability", "expected"),
    [
        ({EXACT, PAIRS}, "AVX512", EXACT),
        ({EXACT, PAIRS}, "AVX2", EXACT),
        ({PAIRS}, "AVX2", PAIRS),
        ({PAIRS}, "AVX512", NONE),
        (set(), "AVX2", NONE),
    ],
)
def test_products_are_those_that_are_exact_and_faster(
    exact: set[str], capability: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(int8, "_is_exact", exact.__contains__)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert int8.products_here.__wrapped__() == expected


def model(**changes: Any) -> Model:
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    sizes |= {"intermediate_size": 40, "max_position_embeddings": 40}
    torch.manual_seed(0)
    return Model(EncoderConfig(**(sizes | changes)), ("mlm",)).eval()


def quantized(given: Model) -> Model:
    copied = copy.deepcopy(given)
    ones = {name: torch.ones(layer.in_features) for name, layer, _ in quantizable(copied.encoder)}
    quantize_linears(copied.encoder, ones)
    return copied


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_act": "gelu_new"}, {"norm_first": True}, {"num_hidden_groups": 1}],
    ids=["bert", "tanh gelu", "pre-norm", "shared layers"],
)
def test_a_model_is_near_its_float_one(changes: dict[str, Any], precision: str):
    given = model(**changes)
    eight = quantized(given)
    packed = prepack(eight, precision)
    if int8.products_here() != NONE:
        kinds = {type(module) for module in packed.encoder.modules()}
        assert {PackedInt8FeedForward, PackedInt8Linear} <= kinds
        assert QuantizedLinear not in kinds
    ids = [torch.arange(n) % 50 for n in (5, 31, 1)]
    batch = pack([Example(i.numpy(), (i * 0).numpy()) for i in ids])
    expected, plain, fast = (one(batch).hidden.float() for one in (given, eight, packed))
    for found in (plain, fast):
        assert torch.cosine_similarity(found, expected, dim=1).min() > 0.99
    assert prepack(eight, precision).encoder.blocks is not eight.encoder.blocks


@torch.inference_mode()
@pytest.mark.skipif(int8.products_here() == NONE, reason="requires int8 products")
def test_a_matrix_whose_width_is_not_aligned_leaves_the_activation():
    given = quantized(model(intermediate_size=42))
    packed = prepack(given)
    network: Any = packed.encoder.blocks[0].feed_forward
    assert isinstance(network.up, PackedInt8Linear)
    assert not isinstance(network.down, PackedInt8Linear)
    x = tokens(9)
    expected = given.encoder.blocks[0].feed_forward(x)  # pyright: ignore
    assert torch.cosine_similarity(network(x), expected, dim=1).min() > 0.99


@torch.inference_mode()
def test_without_such_products_the_weights_are_floats(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(int8, "products_here", lambda: NONE)
    given = model()
    packed = prepack(quantized(given))
    assert not any(isinstance(m, QuantizedLinear | PackedInt8Linear) for m in packed.modules())
    ids = torch.arange(20).numpy()
    batch = pack([Example(ids, ids * 0)])
    both = [one(batch).hidden for one in (given, packed)]
    assert torch.cosine_similarity(*both, dim=1).min() > 0.99
