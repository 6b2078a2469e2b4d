"""The same weights as ``torch.nn.Transformer``, the same numbers: both orders of norms, masks."""

import pytest
import torch
from torch import Tensor, nn

from ownbert.batches.batch import to_padded
from ownbert.nn.positions import sinusoids
from ownbert.transformer import from_torch, make_model, to_batch
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
        {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None},
        layers=LAYERS,
    )
    found = dict(ours.named_parameters())
    for name, gradient in expected.items():
        assert torch.allclose(found[name].grad, gradient, atol=2e-4, rtol=1e-3), name
