"""Word features against the equations of SemBERT in NumPy; a word depends on no other word."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.checkpoint import load, save
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.nn.variants.feature_embeddings import WordFeatures
from support.floats import assert_close
from support.networks import SMALL
from support.tiny import change_config

CONFIG = replace(
    SMALL, vocab_size=20, hidden_size=8, intermediate_size=12, max_position_embeddings=24
)
TABLES, SIZE = (4, 3), 5
# The tokens of each word of each sequence: words of one to five tokens.
WORDS = [(1, 2, 5, 1), (1, 1), (1, 3, 4, 1, 1)]
SPEC = HeadSpec("tokens", features=TABLES, feature_size=SIZE)


def batch(sequences: list[tuple[int, ...]] = WORDS) -> Batch:
    rng = np.random.default_rng(sum(map(sum, sequences)))
    examples = []
    for sizes in sequences:
        ids = rng.integers(5, 20, sum(sizes))
        own = np.stack([sizes, *(rng.integers(0, rows, len(sizes)) for rows in TABLES)], 1)
        examples.append(Example(ids, np.zeros_like(ids), words=own))
    return pack(examples)


def features() -> WordFeatures:
    torch.manual_seed(0)
    module = WordFeatures(CONFIG, SPEC)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.5)
    return module.eval()


def expected(module: WordFeatures, hidden: np.ndarray, words: np.ndarray) -> np.ndarray:
    """One word after the other: windows of three tokens, zeros behind short words, ReLU, maximum;
    tags by their tables, a LayerNorm each, side by side through a dense layer."""
    weights = {name: p.detach().double().numpy() for name, p in module.named_parameters()}
    kernel, bias = weights["convolution.weight"], weights["convolution.bias"]
    rows, first = [], 0
    for size, *ids in words:
        own = np.zeros((max(size, 3), hidden.shape[1]))
        own[:size] = hidden[first : first + size]
        windows = [own[i : i + 3] for i in range(len(own) - 2)]
        values = [np.einsum("oik,ki->o", kernel, window) + bias for window in windows]
        word = np.maximum(values, 0).max(0)
        tags = []
        for number, tag in enumerate(ids):
            row = weights[f"tables.{number}.weight"][tag]
            scaled = (row - row.mean()) / np.sqrt(row.var() + CONFIG.layer_norm_eps)
            tags.append(scaled * weights["norm.weight"] + weights["norm.bias"])
        mixed = weights["dense.weight"] @ np.concatenate(tags) + weights["dense.bias"]
        rows.append(np.concatenate([word, mixed]))
        first += size
    return np.stack(rows)


def test_words_and_their_features():
    module, given = features(), batch()
    assert given.words is not None
    hidden = torch.randn(given.tokens, 8)
    found, layout, word_of = module(hidden, given)
    assert_close(found, expected(module, hidden.double().numpy(), given.words.numpy()))
    assert layout.lengths == (4, 2, 5)
    sizes = [size for sequence in WORDS for size in sequence]
    assert word_of.tolist() == [w for w, size in enumerate(sizes) for _ in range(size)]


def test_gradients():
    module = features().double()
    given = batch([(1, 4), (2,)])
    hidden = torch.randn(7, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: module(x, given)[0], (hidden,))
    module(hidden, given)[0].sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in module.parameters())


HEADS = [
    SPEC,
    HeadSpec("mlm", features=TABLES, feature_size=SIZE),
    HeadSpec("tokens", features=TABLES, feature_size=SIZE, crf=False, dense="gelu"),
    *(
        HeadSpec("classification", pooling=pooling, features=TABLES, feature_size=SIZE)
        for pooling in ("first", "mean", "max")
    ),
]


@pytest.mark.parametrize("spec", HEADS, ids=lambda spec: f"{spec.kind} {spec.pooling}")
def test_other_sequences_change_nothing(spec: HeadSpec):
    torch.manual_seed(0)
    model = Model(CONFIG, [spec], labels=("a", "b", "c")).eval()
    given = batch()
    assert given.words is not None
    ids = given.token_ids.split([sum(sizes) for sizes in WORDS])
    words = given.words.split([len(sizes) for sizes in WORDS])
    with torch.no_grad():
        together = model(given).logits[spec.kind]
        alone = [
            model(pack([Example(i.numpy(), np.zeros_like(i), words=w.numpy())])).logits[spec.kind]
            for i, w in zip(ids, words, strict=True)
        ]
    assert_close(together, torch.cat(alone))


def test_the_classifier_of_sembert():
    """Dense and tanh on the first word with its features, then the labels."""
    torch.manual_seed(0)
    spec = HeadSpec("classification", pooling="first", dense="tanh", features=TABLES)
    model = Model(CONFIG, [replace(spec, feature_size=SIZE)], labels=("a", "b")).eval()
    head: Any = model.heads["classification"]
    given = batch()
    with torch.no_grad():
        hidden, _ = model.encoder(given)
        joined, layout, _ = head.features(hidden, given)
        assert joined.shape[1] == head.hidden.in_features == head.hidden.out_features == 13
        first = joined[layout.cu_seqlens[:-1]]
        assert_close(model(given).logits["classification"], head.dense(head.hidden(first).tanh()))


def test_a_masked_token_sees_its_word_and_its_features():
    """Its own vector and a projection of its word, through the head as without features."""
    torch.manual_seed(0)
    model = Model(CONFIG, [HeadSpec("mlm", features=TABLES, feature_size=SIZE)]).eval()
    head: Any = model.heads["mlm"]
    given = replace(batch(), masked_positions=torch.tensor([2, 4, 9]))
    word = [1, 2, 4]  # of these tokens
    with torch.no_grad():
        head.word_projection.weight.normal_()
        hidden, _ = model.encoder(given)
        words, _, _ = head.features(hidden, given)
        rows = (
            hidden[[2, 4, 9]]
            + words[word] @ head.word_projection.weight.T
            + head.word_projection.bias
        )
        found = model(given).logits["mlm"]
        assert_close(found, head.words(rows))
        assert given.words is not None
        other = given.words.clone()
        other[1, 1] = (other[1, 1] + 1) % TABLES[0]
        changed = model(replace(given, words=other)).logits["mlm"]
    assert not torch.allclose(changed[0], found[0])
    assert torch.equal(changed[1:], found[1:])


def test_a_folder(tmp_path: Path):
    torch.manual_seed(0)
    model = Model(CONFIG, [SPEC], labels=("a", "b", "c")).eval()
    save(model, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["ownbert_heads"] == [{"kind": "tokens", "features": [4, 3], "feature_size": SIZE}]
    # The encoder is an ordinary one, which others load.
    assert values["model_type"] == "bert"
    again = load(tmp_path)
    assert again.specs == model.specs
    with torch.no_grad():
        assert torch.equal(again(batch()).logits["tokens"], model(batch()).logits["tokens"])
    change_config(tmp_path, ownbert_heads=[{**values["ownbert_heads"][0], "features": [9**5, 3]}])
    with pytest.raises(InputError, match=r"features.tables.0.weight has shape \(4, 5\)"):
        load(tmp_path)


def test_what_is_refused():
    model = Model(CONFIG, [SPEC], labels=("a", "b"))
    with pytest.raises(InputError, match="was given only texts"):
        model(pack([Example(np.array([5, 6]), np.array([0, 0]))]))
    spec = HeadSpec("classification", pooling="gru", features=TABLES)
    with pytest.raises(InputError, match="support pooling first, mean or max, not gru"):
        Model(CONFIG, [spec], labels=("a", "b"))
