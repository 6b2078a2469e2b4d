"""A packed copy computes what the model computes, for every kind of block."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ownbert import EncoderConfig, Model
from ownbert.batches.batch import Batch, Example, pack
from ownbert.config.head_spec import HeadSpec
from ownbert.nn import prepack as module
from ownbert.nn.prepack import (
    PackedLinear,
    prepack,
    prepack_for_heads,
    quantizable,
    quantize_linears,
)

SMALL = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
VARIANTS = {
    "bert": {},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "relu": {"hidden_act": "relu"},
    "silu": {"hidden_act": "silu"},
    "an activation that is not fused": {"hidden_act": "mish"},
    "relative keys": {"position_embedding_type": "relative_key"},
    "rotary": {"position_embedding_type": "rotary"},
    "narrow words and shared layers": {"embedding_size": 8, "num_hidden_groups": 1},
}


def make(heads: tuple[str, ...] = ("mlm", "nsp"), **changes: object) -> Model:
    torch.manual_seed(0)
    model = Model(EncoderConfig(**(SMALL | changes)), heads).eval()
    for parameter in model.parameters():
        # Biases and LayerNorms away from zero and one, so that leaving them out shows.
        nn.init.normal_(parameter, std=0.3)
    return model


def batch_of(*lengths: int) -> Batch:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 50, n) for n in lengths]
    return pack([Example(i, np.zeros_like(i)) for i in ids])


@pytest.fixture
def batch() -> Batch:
    return batch_of(17, 9, 9, 3, 1)


def packed_layers(model: nn.Module) -> list[PackedLinear]:
    return [m for m in model.modules() if isinstance(m, PackedLinear)]


def test_the_global_generator_stays_as_it_was():
    model = make()
    quantized = copy.deepcopy(model)
    widths = {name: layer.in_features for name, layer, _ in quantizable(quantized.encoder)}
    quantize_linears(quantized.encoder, {name: torch.ones(n) for name, n in widths.items()})
    before = torch.get_rng_state()
    module._works.cache_clear()
    for each in (model, quantized):
        prepack(each)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_float32_is_the_same(changes: dict, batch: Batch):
    model = make(**changes)
    packed = prepack(model)
    assert packed_layers(packed.encoder), "nothing was packed"
    with torch.no_grad():
        expected, found = model(batch), packed(batch)
    torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-5, rtol=1e-5)
    for name, logits in expected.logits.items():
        torch.testing.assert_close(found.logits[name], logits, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_bfloat16_stays_near(changes: dict, batch: Batch):
    model = make(**changes)
    packed = prepack(model, "bfloat16")
    with torch.no_grad():
        expected, found = model(batch).hidden, packed(batch).hidden
    assert found.dtype == torch.bfloat16
    likeness = nn.functional.cosine_similarity(found.float(), expected)
    assert float(likeness.min()) > 0.995


HEADS: list[HeadSpec] = [
    HeadSpec("classification"),
    HeadSpec("classification", pooling="lstm", dense="tanh", segments="attention"),
    HeadSpec("tokens", crf=True),
    HeadSpec("tokens", features=(4,)),
    HeadSpec("span"),
]


@pytest.mark.parametrize("spec", HEADS, ids=lambda spec: f"{spec.kind} {spec.pooling}")
def test_heads_compute_in_float32_what_the_encoder_gives_in_bfloat16(spec: HeadSpec, batch: Batch):
    torch.manual_seed(0)
    model = Model(EncoderConfig(**SMALL), [spec], labels=("a", "b", "c")).eval()
    words = torch.stack((torch.ones(batch.tokens).long(), batch.token_ids % 4), 1)
    batch = replace(batch, words=words, groups=(1,) * batch.sequences)
    packed = prepack_for_heads(model, "bfloat16")
    with torch.no_grad():
        found, rounded = packed(batch).logits[spec.kind], packed.encoder(batch)[0]
        # The error of the encoder depends on the processor, that of the head does not.
        hidden = rounded.float()
        pooled = None if model.pooler is None else model.pooler(hidden, batch)
        expected = model.heads[spec.kind](hidden, pooled, batch)
    assert rounded.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert bool((found != found.bfloat16()).any()), "the scores were rounded"
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_the_model_stays_as_it_was(batch: Batch):
    model = make()
    before = {name: p.clone() for name, p in model.named_parameters()}
    printed = str(model)
    prepack(model, "bfloat16")
    packed = prepack(model)
    assert str(model) == printed
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])
    words = packed.encoder.embeddings.word.weight
    assert words.data_ptr() == model.encoder.embeddings.word.weight.data_ptr()
    assert not packed(batch).hidden.requires_grad


def test_the_activation_is_fused_once():
    block = prepack(make()).encoder.blocks[0]
    assert "activation=gelu" in str(block.feed_forward.up)
    assert [p.activation for p in packed_layers(block)].count("gelu") == 1
    unfused = prepack(make(hidden_act="mish")).encoder.blocks[0]
    assert [p.activation for p in packed_layers(unfused)] == [None] * 4


def test_the_decoder_of_words_stays_tied():
    packed = prepack(make())
    assert packed.heads["mlm"].decoder.weight is packed.encoder.embeddings.word.weight


def test_a_part_of_a_model(batch: Batch):
    model = make()
    with torch.no_grad():
        expected, _ = model.encoder(batch)
        found, _ = prepack(model.encoder)(batch)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_without_the_operations_layers_stay_plain(batch: Batch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module._works.cache_clear()
    try:
        model = make()
        packed = prepack(model, "bfloat16")
        assert not packed_layers(packed)
        with torch.no_grad():
            likeness = nn.functional.cosine_similarity(
                packed(batch).hidden.float(), model(batch).hidden
            )
        assert float(likeness.min()) > 0.995
    finally:
        module._works.cache_clear()


def test_an_unknown_precision():
    with pytest.raises(ValueError, match="'float16' is not known; float32 or bfloat16"):
        prepack(make(), "float16")
