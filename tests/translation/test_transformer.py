"""The Transformer of 2017 as users build it."""

import math

import pytest
import torch

from ownbert.exceptions import InputError
from ownbert.translation.transformer import log_probs, make_model
from support.floats import assert_close

TINY = {"N": 2, "d_model": 16, "d_ff": 32, "h": 2}


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_base_has_the_papers_parameters():
    """Table 3: 65 million with a shared vocabulary of 37,000."""
    with torch.device("meta"):
        model = make_model(37_000, 37_000, share_embeddings=True)
        apart = make_model(37_000, 37_000)
    attention, feed, norm = 4 * (512**2 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    blocks = 6 * (attention + feed + 2 * norm) + 6 * (2 * attention + feed + 3 * norm)
    assert count(model) == blocks + 37_000 * 512 + 37_000
    assert round(count(model) / 1e6) in (63, 64, 65)
    assert count(apart) == count(model) + 2 * 37_000 * 512


def test_shared_embeddings_are_one_matrix():
    model = make_model(11, 11, **TINY, share_embeddings=True)
    assert model.decoder is not None
    word = model.encoder.embeddings.word.weight
    assert model.decoder.embeddings.word.weight is word
    assert model.heads["generator"].projection.weight is word
    apart = make_model(11, 13, **TINY)
    assert apart.decoder is not None
    assert apart.decoder.embeddings.word.weight.shape == (13, 16)
    assert apart.heads["generator"].projection.weight.shape == (13, 16)


def test_shared_embeddings_need_one_vocabulary():
    with pytest.raises(InputError, match="src_vocab 11 and tgt_vocab 12"):
        make_model(11, 12, **TINY, share_embeddings=True)


@pytest.mark.parametrize("norm_first", [False, True])
def test_norms(norm_first: bool):
    model = make_model(11, 11, **TINY, norm_first=norm_first)
    assert model.decoder is not None
    assert (model.encoder.norm is not None) == norm_first
    assert (model.decoder.norm is not None) == norm_first
    assert all(block.norm_first == norm_first for block in model.encoder.blocks)


def test_matrices_start_as_xavier_has_them():
    model = make_model(50, 50, N=1, d_model=64, d_ff=256, h=4)
    block = model.encoder.blocks[0]
    for matrix, fans in (
        (block.attention.qkv.weight, 64 + 64),  # each of the three by itself
        (block.feed_forward.up.weight, 64 + 256),
    ):
        limit = math.sqrt(6 / fans)
        assert limit * 0.95 < float(matrix.abs().max()) <= limit
    assert not block.attention.qkv.bias.any()


@torch.no_grad()
def test_log_probs_add_up_to_one_and_see_nothing_later():
    torch.manual_seed(0)
    model = make_model(9, 12, **TINY).eval()
    source, target = torch.randint(1, 9, (2, 6)), torch.randint(1, 12, (2, 5))
    found = log_probs(model, source, target)
    assert found.shape == (2, 5, 12)
    assert torch.allclose(found.exp().sum(-1), torch.ones(2, 5), atol=1e-5)
    later = target.clone()
    later[:, 3:] = 1
    assert torch.equal(log_probs(model, source, later)[:, :3], found[:, :3])
    assert not torch.allclose(log_probs(model, source, later)[:, 3:], found[:, 3:])


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_padding_never_matters(norm_first: bool):
    """A pair alone, and in a batch with longer ones, padded on either side with whatever ids."""
    torch.manual_seed(1)
    model = make_model(9, 12, **TINY, norm_first=norm_first).eval()
    source, target = torch.randint(1, 9, (1, 4)), torch.randint(1, 12, (1, 3))
    alone = log_probs(model, source, target)
    wide, long = torch.randint(1, 9, (3, 7)), torch.randint(1, 12, (3, 6))
    told, asked = torch.ones(3, 7), torch.ones(3, 6)
    wide[1, :4], long[1, :3] = source[0], target[0]
    told[1, 4:], asked[1, 3:] = 0, 0
    found = log_probs(model, wide, long, told, asked)
    assert_close(found[1, :3], alone[0])
    assert not found[1, 3:].any()
    model.train()
    for p in model.parameters():
        p.requires_grad_(True)
    for rate in model.modules():
        if isinstance(rate, torch.nn.Dropout):
            rate.p = 0.0
    with torch.enable_grad():  # training takes another way through attention
        trained = log_probs(model, wide, long, told, asked)
    assert_close(trained[1, :3], alone[0])


def test_what_is_read_must_be_there():
    from ownbert.batches.batch import from_padded

    model = make_model(9, 9, **TINY)
    with pytest.raises(ValueError, match=r"batch\.source"):
        model(from_padded(torch.ones(1, 3, dtype=torch.long))[0])
