"""Attention weights of chosen layers and heads are those of Transformers' model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from ownbert import InputError
from ownbert.batches.batch import Example
from ownbert.checkpoint import load
from ownbert.inspect.internals.observation import HeadChoice, attention_maps
from support.tiny import made


def example(*sequences: list[int]) -> Example:
    ids = np.asarray([i for own in sequences for i in own])
    return Example(ids, 0 * ids, parts=tuple(map(len, sequences)) if len(sequences) > 1 else None)


def test_weights_are_those_of_transformers(tmp_path: Path):
    made(tmp_path)
    theirs = BertModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    model = load(tmp_path)
    chosen = HeadChoice([-1, 0, 1], [1]).of(model)
    assert chosen == {1: [1], 0: [1]}  # -1 is 1
    sequences = [2, 5, 6, 3], [2, 7, 3]
    found = attention_maps(model, example(*sequences), chosen)
    for ids, own in zip(sequences, found, strict=True):
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids]), output_attentions=True).attentions
        assert [*own] == [1, 0]
        for layer, weights in own.items():
            np.testing.assert_allclose(weights[0], expected[layer][0, 1].numpy(), atol=1e-5)


def test_pruned_heads_are_left_out(tmp_path: Path):
    model = made(tmp_path)
    (whole,) = attention_maps(model, example([2, 5, 3]), HeadChoice([0]).of(model))
    model.prune_heads({0: [0]})
    chosen = HeadChoice([0, 1]).of(model)
    assert chosen == {0: [1], 1: [0, 1]}
    (pruned,) = attention_maps(model, example([2, 5, 3]), chosen)
    np.testing.assert_allclose(pruned[0], whole[0][1:], atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        ([2], None, "there is no layer 2; the layers are 0..1"),
        ([-3], None, "there is no layer -3"),
        ([0], [2], "there is no head 2 in these layers; they have 0-1"),
        ([0], [-1], "there is no head -1"),
    ],
)
def test_what_is_not_there_is_refused(layers, heads, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        HeadChoice(layers, heads).of(made(tmp_path))
