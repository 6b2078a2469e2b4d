"""Linear layers in 8 bits: near the float ones, and the same by oneDNN as in floats."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ownbert import EncoderConfig, Model
from ownbert.batches.batch import Example, pack
from ownbert.nn.packed import int8
from ownbert.nn.packed.int8 import (
    PackedInt8FeedForward,
    PackedInt8Linear,
    QuantizedLinear,
    quantizable,
    quantize_linears,
    quantize_weight,
    round_rows,
    smoothing,
)
from ownbert.nn.packed.prepack import prepack
from support.floats import assert_close

WIDTHS = [
    pytest.param(
        n, marks=pytest.mark.skipif(not int8._is_exact(n), reason="requires int8 products")
    )
    for n in (7, 8)
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


@pytest.mark.parametrize(("bits", "values"), [(8, 255), (7, 127.5)])
def test_each_token_has_its_own_scale(bits: int, values: float):
    x = tokens(40)
    errors = (round_rows(x, bits) - x).abs().amax(1)
    steps = (x.amax(1) - x.amin(1)) / values
    assert (errors <= 0.51 * steps).all()
    assert torch.equal(round_rows(torch.full((2, 8), 3.0), bits), torch.full((2, 8), 3.0))


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


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("rows", [1, 7, 500])
@pytest.mark.parametrize("act", ["linear", "gelu", "relu"])
def test_packed_products_are_those_of_floats(bits: int, rows: int, act: str):
    layer = QuantizedLinear(linear(), torch.linspace(0.5, 2, 24))
    x = tokens(rows)
    expected = int8.ACTIVATION[act](layer(x, bits))
    found = PackedInt8Linear(layer, act, bits)(x)
    assert_close(found, expected, rtol=2e-3)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_largest_numbers_do_not_overflow(bits: int):
    layer = nn.Linear(512, 4)
    layer.weight.data = torch.ones(4, 512) * torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    x = torch.full((3, 512), 2.0)
    x[:, 0] = -2.0
    quantized = QuantizedLinear(layer, torch.ones(512))
    assert_close(PackedInt8Linear(quantized, bits=bits)(x), quantized(x, bits), rtol=1e-3)


@pytest.mark.parametrize(
    ("exact", "capability", "expected"),
    [
        ({7, 8}, "AVX512", 8),
        ({7, 8}, "AVX2", 8),
        ({7}, "AVX2", 7),
        ({7}, "AVX512", 0),
        (set(), "AVX2", 0),
    ],
)
def test_activations_have_as_many_bits_as_is_exact_and_faster(
    exact: set[int], capability: str, expected: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(int8, "_is_exact", exact.__contains__)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert int8.activation_bits.__wrapped__() == expected


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
    if int8.activation_bits():
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
def test_without_such_products_the_weights_are_floats(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(int8, "activation_bits", lambda: 0)
    given = model()
    packed = prepack(quantized(given))
    assert not any(isinstance(m, QuantizedLinear | PackedInt8Linear) for m in packed.modules())
    ids = torch.arange(20).numpy()
    batch = pack([Example(ids, ids * 0)])
    both = [one(batch).hidden for one in (given, packed)]
    assert torch.cosine_similarity(*both, dim=1).min() > 0.99
