"""The model as a whole: counts, starting weights, heads, and no leak between sequences."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ownbert.batches.batch import Batch, Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.layers import Dropout
from ownbert.nn.model import Model
from ownbert.nn.output_heads import MaskedLMHead
from support.networks import SMALL

HEADS = ("mlm", "nsp", "classification")
CONFIG = replace(SMALL, vocab_size=40, max_position_embeddings=32)


def model() -> Model:
    torch.manual_seed(0)
    return Model(CONFIG, HEADS, labels=("x", "y", "z")).eval()


def batch(change: int | None = None) -> Batch:
    """Five sequences; ``change`` replaces all the tokens of one."""
    rng = np.random.default_rng(0)
    examples = []
    for number, length in enumerate((9, 30, 1, 9, 17)):
        ids = rng.integers(5, 40, length)
        if number == change:
            ids = (ids + 7) % 40
        types = (np.arange(length) > 4).astype(int)
        examples.append(Example(ids, types, np.array([0, length - 1]), ids[[0, -1]], 0, 1))
    return pack(examples)


def test_bert_base_has_its_published_counts():
    with torch.device("meta"):
        base = Model(EncoderConfig.of_size("base", vocab_size=30522))
    assert sum(p.numel() for p in base.parameters()) == 109_482_240
    kinds = Counter(type(module) for module in base.modules())
    assert (kinds[Dropout], kinds[nn.LayerNorm], kinds[nn.Embedding]) == (37, 25, 3)
    attention = base.encoder.blocks[0].attention
    assert sum(p.numel() for p in attention.parameters()) == 4 * 768**2 + 4 * 768


def test_pretraining_heads_add_what_they_need_and_no_second_vocabulary():
    base = sum(p.numel() for p in Model(CONFIG).parameters())
    both = sum(p.numel() for p in Model(CONFIG, ["mlm", "nsp"]).parameters())
    assert both - base == (16 * 16 + 16) + 2 * 16 + 40 + (2 * 16 + 2)
    head = model().heads["mlm"]
    assert isinstance(head, MaskedLMHead)
    tied = model()
    mlm = tied.heads["mlm"]
    assert isinstance(mlm, MaskedLMHead)
    assert mlm.decoder.weight is tied.encoder.embeddings.word.weight
    assert Model(CONFIG, ["mlm"]).pooler is None


def test_starting_weights():
    big = replace(CONFIG, vocab_size=3000, hidden_size=64, initializer_range=0.02)
    fresh = Model(big, HEADS, labels=("x", "y")).requires_grad_(False)
    # Cut off at two deviations, a normal distribution keeps 0.8796 of its deviation.
    for weight in (
        fresh.encoder.embeddings.word.weight,
        fresh.encoder.blocks[0].feed_forward.up.weight,
    ):
        assert abs(float(weight.std()) - 0.8796 * 0.02) < 0.001
        assert abs(float(weight.mean())) < 0.001
        assert float(weight.abs().max()) <= 0.04
    for module in fresh.modules():
        if isinstance(module, nn.Linear):
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert module.eps == CONFIG.layer_norm_eps
            assert bool((module.weight == 1).all())
            assert not module.bias.any()


def test_no_sequence_sees_another():
    parts, changed = model(), 1
    found = []
    for change in (None, changed):
        given = batch(change)
        handle: list[torch.Tensor] = []
        hook = parts.encoder.embeddings.register_forward_hook(
            lambda module, inputs, out, handle=handle: handle.append(out) or out.retain_grad()
        )
        out = parts(given)
        sum(logits.square().sum() for logits in out.logits.values()).backward()
        hook.remove()
        found.append((out, handle[0].grad))
    rows = torch.ones(66, dtype=torch.bool)
    rows[9:39] = False
    sequences, masked = torch.arange(5) != changed, torch.arange(10) // 2 != changed
    (one, grad_one), (two, grad_two) = found
    pairs = [
        (one.hidden, two.hidden, rows),
        (grad_one, grad_two, rows),
        (one.pooled, two.pooled, sequences),
        (one.logits["nsp"], two.logits["nsp"], sequences),
        (one.logits["classification"], two.logits["classification"], sequences),
        (one.logits["mlm"], two.logits["mlm"], masked),
    ]
    for first, second, others in pairs:
        assert torch.equal(first[others], second[others])
        assert not torch.equal(first[~others], second[~others])


def test_a_sequence_alone_gives_the_same():
    parts, given = model(), batch()
    with torch.no_grad():
        together = parts(given).hidden.split(given.layout.lengths)
        for ids, kinds, hidden in zip(
            given.token_ids.split(given.layout.lengths),
            given.type_ids.split(given.layout.lengths),
            together,
            strict=True,
        ):
            alone = parts(pack([Example(ids.numpy(), kinds.numpy())])).hidden
            torch.testing.assert_close(alone, hidden, atol=1e-5, rtol=1e-5)


def test_heads_are_computed_where_asked():
    parts, given = model(), batch()
    with torch.no_grad():
        assert parts(given).logits.keys() == set(HEADS)
        out = parts(given, ["nsp"])
        assert out.logits.keys() == {"nsp"}
        everywhere = parts(replace(given, masked_positions=None)).logits["mlm"]
        somewhere = parts(given).logits["mlm"]
    assert somewhere.shape == (10, 40)
    assert everywhere.shape == (66, 40)
    assert given.masked_positions is not None
    torch.testing.assert_close(everywhere[given.masked_positions], somewhere)
    assert parts.labels == ("x", "y", "z")
    assert Model(CONFIG, ["nsp"]).labels == ()


def test_dropout_is_for_training():
    parts, given = model(), batch()
    with torch.no_grad():
        torch.testing.assert_close(parts(given).hidden, parts(given).hidden, atol=0, rtol=0)
        parts.train()
        assert not torch.equal(parts(given).hidden, parts(given).hidden)
        dropped = parts.encoder.embeddings(given)
    # A tenth of the embeddings is zero.
    share = float((dropped == 0).float().mean())
    assert abs(share - 0.1) < 5 * math.sqrt(0.09 / dropped.numel())


def test_what_does_not_fit_is_refused():
    long = pack([Example(np.ones(33, int), np.zeros(33, int))])
    with pytest.raises(ValueError, match="33 tokens is longer than the 32 positions"):
        model()(long)
    with pytest.raises(ValueError, match="head 'qa' is not known; use one of mlm, nsp, sop"):
        Model(CONFIG, ["qa"])
    with pytest.raises(ValueError, match="heads nsp need a pooler"):
        Model(CONFIG, ["nsp"], pooler=False)
