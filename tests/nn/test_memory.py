"""Gradient checkpointing and chunks of the feed-forward network change memory and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.nn.context import Cache, Context
from ownbert.nn.model import Model
from support.networks import SMALL, random_batch

CONFIG = replace(SMALL, num_hidden_layers=3)
KINDS = {
    "bert": CONFIG,
    "relative": replace(CONFIG, position_embedding_type="relative_key_query"),
    "decoder": replace(CONFIG, is_decoder=True),
    "shared layers": replace(CONFIG, num_hidden_groups=1),
    "bottleneck": replace(CONFIG, embedding_size=8, mobile=Mobile(intra_bottleneck_size=8)),
}


def make(config: EncoderConfig = CONFIG) -> Model:
    torch.manual_seed(0)
    return Model(config, ["mlm"])


def learn(model: Model, keep: tuple[int, ...] = ()) -> tuple[Tensor, list[Tensor | None]]:
    """Logits and all gradients of a step with dropout."""
    torch.manual_seed(1)
    model.train().zero_grad()
    given = random_batch((7, 1, 16, 5))
    context = replace(model.encoder.plain_context(given), keep=frozenset(keep))
    out = model(given, context=context)
    loss = out.logits["mlm"].square().sum()
    for weights in out.attentions.values():
        loss = loss + sum(w.square().sum() for w in weights)
    loss.backward()
    return out.logits["mlm"].detach(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("keep", [(), (0, 2)], ids=["plain", "with weights"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_checkpointing_changes_no_bit(config: EncoderConfig, keep: tuple[int, ...]):
    model = make(config)
    logits, gradients = learn(model, keep)
    saved: list[int] = []
    model.encoder.gradient_checkpointing = True
    again, recomputed = learn(model, keep)
    assert torch.equal(logits, again)
    for name, one, other in zip(dict(model.named_parameters()), gradients, recomputed, strict=True):
        assert one is not None, name
        assert other is not None, name
        assert torch.equal(one, other), name
    # And it does forget what it is for: far fewer numbers wait for the backward pass.
    for wanted in (False, True):
        model.encoder.gradient_checkpointing = wanted
        count = 0

        def count_up(x: Tensor) -> Tensor:
            nonlocal count
            count += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count_up, lambda x: x):
            model.encoder(random_batch((7, 1, 16, 5)))
        saved.append(count)
    assert saved[1] < 0.4 * saved[0]


def test_checkpointing_leaves_a_cache_alone():
    model = make(replace(CONFIG, is_decoder=True)).train()
    model.encoder.gradient_checkpointing = True
    given = pack([Example(np.arange(5, 9), np.zeros(4, int))] * 2)
    context = replace(model.encoder.plain_context(given), cache=Cache())
    model(given, context=context).logits["mlm"].sum().backward()
    assert context.cache is not None
    assert context.cache.length == 4


@pytest.mark.parametrize("chunk", [1, 3, 50])
@pytest.mark.parametrize("kind", ["bert", "relative", "shared layers"])
def test_chunks_compute_the_same(kind: str, chunk: int):
    whole, cut = make(KINDS[kind]), make(replace(KINDS[kind], chunk_size_feed_forward=chunk))
    cut.load_state_dict(whole.state_dict())
    found = []
    for model in (whole, cut):
        model.eval()  # chunks draw other numbers for their dropout
        logits = model(random_batch((7, 1, 16, 5))).logits["mlm"]
        logits.square().sum().backward()
        found.append([logits, *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    # The widest layer never sees more than a chunk of every sequence.
    seen = []
    hook = cut.encoder.blocks[0].feed_forward.up.register_forward_hook(
        lambda module, inputs, out: seen.append(len(out))
    )
    given = random_batch((7, 1, 16, 5))
    cut.encoder.blocks[0](torch.randn(29, 16), Context(given.layout, given.positions))
    hook.remove()
    assert max(seen) == min(29, 4 * chunk)
    assert sum(seen) == 29
