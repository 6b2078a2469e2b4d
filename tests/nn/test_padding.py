"""Padding never matters: a text gives the same alone and among longer ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, from_padded, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.position_kinds import POSITIONS
from ownbert.config.variants import Mobile
from ownbert.nn.model import Model
from ownbert.nn.output_heads import POOLINGS
from support.networks import SMALL

CONFIG = SMALL
LENGTHS = (5, 1, 16, 9, 5)
KINDS = {kind: replace(CONFIG, position_embedding_type=kind) for kind in POSITIONS} | {
    "decoder": replace(CONFIG, is_decoder=True),
    "shared layers": replace(
        CONFIG, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2, embedding_size=8
    ),
    "bottleneck": replace(
        CONFIG,
        embedding_size=8,
        mobile=Mobile(intra_bottleneck_size=8, normalization_type="layer_norm"),
    ),
    "rotary bottleneck": replace(
        CONFIG,
        embedding_size=8,
        position_embedding_type="rotary",
        mobile=Mobile(intra_bottleneck_size=8),
    ),
    "chunks": replace(CONFIG, chunk_size_feed_forward=2),
    "tasks and offset": replace(
        CONFIG, task_type_vocab_size=2, max_position_embeddings=18, position_offset=2
    ),
}


def texts() -> list[Example]:
    rng = np.random.default_rng(0)
    return [
        Example(rng.integers(5, 30, n), (np.arange(n) > 3).astype(int), label=0) for n in LENGTHS
    ]


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_every_kind_of_encoder(config: EncoderConfig):
    torch.manual_seed(0)
    model = Model(config, ["mlm", "tokens"], labels=("a", "b"), pooler=True).eval()
    with torch.no_grad():
        together = model(pack(texts()))
        starts = np.cumsum([0, *LENGTHS])
        for b, example in enumerate(texts()):
            alone = model(pack([example]))
            rows = slice(starts[b], starts[b + 1])
            torch.testing.assert_close(together.hidden[rows], alone.hidden, atol=2e-5, rtol=1e-4)
            assert together.pooled is not None
            assert alone.pooled is not None
            torch.testing.assert_close(together.pooled[b : b + 1], alone.pooled)
            for name in ("mlm", "tokens"):
                torch.testing.assert_close(
                    together.logits[name][rows], alone.logits[name], atol=1e-4, rtol=1e-4
                )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling(pooling: str):
    torch.manual_seed(0)
    spec = HeadSpec("classification", pooling=pooling)
    model = Model(CONFIG, [spec], labels=("a", "b", "c")).eval()
    with torch.no_grad():
        together = model(pack(texts())).logits["classification"]
        alone = [model(pack([x])).logits["classification"] for x in texts()]
    assert together.shape == (5, 3)
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", POSITIONS)
def test_places_that_a_mask_hides(kind: str):
    """All places in the encoder and a mask over them, or the tokens alone: the same."""
    torch.manual_seed(0)
    model = Model(KINDS[kind]).eval()
    ids = torch.randint(5, 30, (3, 9))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [1]])).long()
    batch, index = from_padded(ids, mask)
    every, _ = from_padded(ids)
    hidden = replace(every, layout=replace(every.layout, mask=mask[:, None].bool()))
    with torch.no_grad():
        found, dense = model(batch).hidden, model(hidden).hidden
    torch.testing.assert_close(dense[index], found, atol=2e-5, rtol=1e-4)


def test_padding_reaches_no_gradient():
    torch.manual_seed(0)
    model = Model(CONFIG, ["classification"], labels=("a", "b"))
    gradients = []
    for batches in ([pack(texts())], [pack([x]) for x in texts()]):
        model.zero_grad()
        model.eval()  # no dropout, but gradients
        for batch in batches:
            model(batch).logits["classification"].square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == dict(model.named_parameters()).keys()
    for name, grad in gradients[0].items():
        torch.testing.assert_close(grad, gradients[1][name], atol=1e-4, rtol=1e-3, msg=name)
