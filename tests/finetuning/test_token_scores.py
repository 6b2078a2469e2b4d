"""A BERT that contains a linear model of its tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.checkpoint import save
from ownbert.config import EncoderConfig, HeadSpec
from ownbert.finetuning.start import token_scores
from ownbert.finetuning.start.token_scores import (
    can_hold_scores,
    fit_token_scores,
    mean_counts,
    with_token_scores,
)
from ownbert.nn.model import Model

WORDS, SPECIAL = 60, 5
LABELS = ("a", "b", "c")
CONFIG = EncoderConfig(
    vocab_size=WORDS,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=40,
)


def classifier(labels: int = len(LABELS), **changes: str) -> Model:
    torch.manual_seed(0)
    names = [f"label {i}" for i in range(labels)]
    model = Model(CONFIG, ["classification"], labels=names, **changes)
    with torch.no_grad():  # as after some training: LayerNorm's weights differ by channel
        for name, own in model.named_parameters():
            own += 0.05 * torch.randn_like(own) if "norm" in name else 0.1 * torch.randn_like(own)
    return model.eval()


def texts(count: int) -> list[Example]:
    rng = np.random.default_rng(0)
    ids = [[2, *rng.integers(SPECIAL, WORDS, rng.integers(3, 30)), 3] for _ in range(count)]
    return [Example(np.asarray(own), np.zeros(len(own), np.int64)) for own in ids]


def logits(model: Model, examples: list[Example]) -> Tensor:
    with torch.no_grad():
        return model(pack(examples), ["classification"]).logits["classification"]


def table(labels: int = len(LABELS)) -> np.ndarray:
    found = np.random.default_rng(1).normal(size=(WORDS, labels)).astype(np.float32)
    found[:SPECIAL] = 0
    return found


def agreement(one: Tensor, other: Tensor) -> float:
    """The correlation of logits, from which the mean over the labels is subtracted."""
    rows = torch.stack([(x - x.mean(1, keepdim=True)).flatten() for x in (one, other)])
    return float(torch.corrcoef(rows)[0, 1])


def halves(model: Model, examples: list[Example]) -> tuple[Tensor, Tensor]:
    """The logits of a wider model by its old channels, and by the new ones."""
    last = model.heads["classification"].dense
    weight = last.weight.detach().clone()
    found = []
    for own in (slice(0, CONFIG.hidden_size), slice(CONFIG.hidden_size, None)):
        with torch.no_grad():
            last.weight.zero_()
            last.weight[:, own] = weight[:, own]
        found.append(logits(model, examples) - last.bias.detach())
    return found[0], found[1]


def test_the_logits_are_those_of_the_network_and_of_the_linear_model():
    model, examples = classifier(), texts(64)
    wide = with_token_scores(model, table())
    own, added = halves(wide, examples)
    assert (
        agreement(own, logits(model, examples) - model.heads["classification"].dense.bias.detach())
        > 0.99
    )
    counts = mean_counts(examples, WORDS, range(SPECIAL))
    assert agreement(added, torch.from_numpy(counts @ table())) > 0.98


def test_many_labels_share_channels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_scores, "MOST_CHANNELS", 10)
    # Of 20 labels ten are the same as the others.
    scores, examples = np.tile(table(10), 2), texts(64)
    wide = with_token_scores(classifier(20), scores)
    assert wide.config.hidden_size == CONFIG.hidden_size + 16  # ten channels, in heads of 16
    expected = mean_counts(examples, WORDS, range(SPECIAL)) @ scores
    assert agreement(halves(wide, examples)[1], torch.from_numpy(expected)) > 0.95


def test_transformers_loads_it(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    wide, (example, *_) = with_token_scores(classifier(), table()), texts(1)
    save(wide, tmp_path)
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        found = theirs(torch.from_numpy(example.token_ids)[None]).logits
    torch.testing.assert_close(found, logits(wide, [example]), rtol=1e-4, atol=1e-4)


def test_the_scores_of_tokens_are_found_again():
    examples = texts(400)
    counts = mean_counts(examples, WORDS, range(SPECIAL))
    wanted = counts @ table() + np.asarray([1.0, 2.0, 3.0])
    found, bias = fit_token_scores(counts, wanted)
    assert found.shape == (WORDS, 3)
    assert not found[:SPECIAL].any()
    correlation = np.corrcoef((counts @ found + bias).ravel(), wanted.ravel())[0, 1]
    assert correlation > 0.98


def test_only_a_plain_bert_with_a_pooler_can_hold_scores():
    assert can_hold_scores(classifier())
    assert not can_hold_scores(classifier(model_type="roberta"))
    assert not can_hold_scores(Model(CONFIG, ["mlm"]))
    for head in (
        HeadSpec("classification", pooling="mean"),
        HeadSpec("classification", ngrams=64),
    ):
        assert not can_hold_scores(Model(CONFIG, [head], labels=LABELS))
