"""Another number of words: rows, ties and the bias of the output."""

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.nn.output_heads import MaskedLMHead

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "initializer_range": 0.3,
}
KINDS = {
    "plain": EncoderConfig(vocab_size=20, **SMALL),
    "narrow words": EncoderConfig(vocab_size=20, embedding_size=6, **SMALL),
    "bottleneck": EncoderConfig(
        vocab_size=20, embedding_size=6, mobile=Mobile(intra_bottleneck_size=8), **SMALL
    ),
}


def make(config: EncoderConfig) -> Model:
    torch.manual_seed(0)
    model = Model(config, ["mlm"]).eval()
    head = model.heads["mlm"]
    assert isinstance(head, MaskedLMHead)
    torch.nn.init.normal_(head.decoder.bias)
    return model


def batch() -> Batch:
    return pack([Example(np.arange(2, 12), np.zeros(10, int))])


@pytest.mark.parametrize("size", [27, 20, 13])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_words_that_stay_are_as_before(config: EncoderConfig, size: int):
    model, kept = make(config), min(size, 20)
    old = model.encoder.embeddings.word.weight.detach().clone()
    with torch.no_grad():
        before = model(batch())
        model.resize(size)
        after = model(batch())
    word, head = model.encoder.embeddings.word, model.heads["mlm"]
    assert isinstance(head, MaskedLMHead)
    assert model.config.vocab_size == model.encoder.config.vocab_size == size
    assert word.weight.shape == (size, old.shape[1])
    assert torch.equal(word.weight[:kept], old[:kept])
    if size > 20:
        torch.testing.assert_close(word.weight[20:], old.mean(0).expand(size - 20, -1))
        assert not bool(head.decoder.bias[20:].any())
    assert head.decoder.weight is word.weight
    torch.testing.assert_close(before.hidden, after.hidden)
    assert after.logits["mlm"].shape == (10, size)
    torch.testing.assert_close(after.logits["mlm"][:, :kept], before.logits["mlm"][:, :kept])
    # It is what a model of that size is made of, and it learns.
    Model(model.config, ["mlm"]).load_state_dict(model.state_dict())
    model(batch()).logits["mlm"].square().sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.encoder.parameters())
    assert head.decoder.bias.grad is not None
    assert head.decoder.bias.grad.shape == (size,)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_what_is_frozen_stays_frozen(config: EncoderConfig):
    model = make(config).requires_grad_(False)
    model.resize(27)
    assert not any(p.requires_grad for p in model.parameters())


def test_padding_must_stay_inside():
    model = make(EncoderConfig(vocab_size=20, pad_token_id=15, **SMALL))
    with pytest.raises(InputError, match="pad_token_id 15 is outside vocab_size 12"):
        model.resize(12)
    assert model.encoder.embeddings.word.num_embeddings == 20


def test_a_table_of_ones_own():
    model = make(KINDS["plain"])
    words = torch.nn.Embedding(23, 16)
    model.set_words(words)
    head = model.heads["mlm"]
    assert isinstance(head, MaskedLMHead)
    assert model.encoder.embeddings.word is words
    assert head.decoder.weight is words.weight
    assert model(batch()).logits["mlm"].shape == (10, 23)
    with pytest.raises(InputError, match="word table is 5 wide; it must be 16"):
        model.set_words(torch.nn.Embedding(23, 5))
