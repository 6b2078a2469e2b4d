"""The same weights as ``torch.nn.Transformer``, the same numbers: both orders of norms, masks."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from ownbert.batches.batch import to_padded
from ownbert.nn.positions import sinusoids
from ownbert.translation.transformer import make_model, to_batch
from support.floats import assert_close

SIZES = {"N": 2, "d_model": 16, "d_ff": 24, "h": 4, "dropout": 0.0}
LAYERS = (2, 3)


def theirs_and_ours(norm_first: bool) -> tuple[nn.Transformer, nn.Module]:
    torch.manual_seed(0)
    theirs = nn.Transformer(
        16, 4, *LAYERS, 24, dropout=0.0, batch_first=True, norm_first=norm_first
    ).eval()
    for parameter in theirs.parameters():
        parameter.data.normal_(std=0.3)
    ours = make_model(
        9,
        11,
        **SIZES,
        norm_first=norm_first,
        final_norm=True,
        decoder={"num_hidden_layers": LAYERS[1]},
    ).eval()
    weights = from_torch(theirs.state_dict(), layers=LAYERS)
    missing, unexpected = ours.load_state_dict(weights, strict=False)
    assert not unexpected
    assert {name.split(".")[1] for name in missing} <= {"embeddings", "generator"}
    return theirs, ours


def from_torch(theirs: Mapping[str, Tensor], *, layers: tuple[int, int]) -> dict[str, Tensor]:
    """The tensors of a ``torch.nn.Transformer`` by our names; its final LayerNorms correspond to
    ``final_norm``."""
    ours = {}
    for stack, count in zip(("encoder", "decoder"), layers, strict=True):
        for i in range(count):
            for old, new in _torch_names(stack == "decoder").items():
                for leaf in ("weight", "bias"):
                    separator = "_" if old.endswith("in_proj") else "."
                    tensor = theirs[f"{stack}.layers.{i}.{old}{separator}{leaf}"]
                    ours |= _split_cross_attention(f"{stack}.blocks.{i}.{new}", leaf, tensor)
        for leaf in ("weight", "bias"):
            if f"{stack}.norm.{leaf}" in theirs:
                ours[f"{stack}.norm.{leaf}"] = theirs[f"{stack}.norm.{leaf}"]
    return ours


def _torch_names(decoder: bool) -> dict[str, str]:
    names = {
        "self_attn.in_proj": "attention.qkv",
        "self_attn.out_proj": "attention.output",
        "linear1": "feed_forward.up",
        "linear2": "feed_forward.down",
        "norm1": "attention_norm",
        "norm3" if decoder else "norm2": "feed_forward_norm",
    }
    if decoder:
        names |= {
            "multihead_attn.in_proj": "cross_attention",
            "multihead_attn.out_proj": "cross_attention.output",
            "norm2": "cross_attention_norm",
        }
    return names


def _split_cross_attention(name: str, leaf: str, tensor: Tensor) -> dict[str, Tensor]:
    """A renamed tensor; cross-attention has separate tensors for queries, and for keys and
    values."""
    if not name.endswith("cross_attention"):
        return {f"{name}.{leaf}": tensor}
    query, key, value = tensor.chunk(3)
    return {f"{name}.query.{leaf}": query, f"{name}.key_value.{leaf}": torch.cat((key, value))}


def embedded(table: nn.Embedding, ids: Tensor) -> Tensor:
    positions = sinusoids(torch.arange(ids.shape[1]), 16)
    return table(ids) * 4.0 + positions


@pytest.mark.parametrize("norm_first", [False, True])
def test_equals_torch(norm_first: bool):
    theirs, ours = theirs_and_ours(norm_first)
    source, target = torch.randint(1, 9, (3, 7)), torch.randint(1, 11, (3, 5))
    told, asked = torch.ones(3, 7), torch.ones(3, 5)
    told[0, 4:], told[2, 6:], asked[1, 3:] = 0, 0, 0
    with torch.no_grad():
        expected = theirs(
            embedded(ours.encoder.embeddings.word, source),
            embedded(ours.decoder.embeddings.word, target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(5),
            src_key_padding_mask=told == 0,
            memory_key_padding_mask=told == 0,
            tgt_key_padding_mask=asked == 0,
        )
        batch, index = to_batch(source, target, told, asked)
        found = to_padded(ours(batch, []).hidden, index, (3, 5))
    real = asked.bool()
    assert_close(found[real], expected[real])


def test_gradients_equal_torch():
    theirs, ours = theirs_and_ours(False)
    source, target = torch.randint(1, 9, (2, 6)), torch.randint(1, 11, (2, 4))
    theirs(
        embedded(ours.encoder.embeddings.word, source),
        embedded(ours.decoder.embeddings.word, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(4),
    ).pow(2).sum().backward()
    ours.zero_grad()
    ours.train()(to_batch(source, target)[0], []).hidden.pow(2).sum().backward()
    expected = from_torch(
        {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}, layers=LAYERS
    )
    found = dict(ours.named_parameters())
    for name, gradient in expected.items():
        assert torch.allclose(found[name].grad, gradient, atol=2e-4, rtol=1e-3), name
