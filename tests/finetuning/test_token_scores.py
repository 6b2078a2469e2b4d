"""A BERT that contains a linear model of its tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array
from sklearn.linear_model import Ridge
from torch import Tensor

from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.checkpoint import load, load_tokenizer, save
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.finetuning import token_scores
from ownbert.finetuning.token_pairs import can_hold_pairs, token_shares
from ownbert.finetuning.token_scores import (
    TokenScores,
    can_hold_means,
    can_hold_scores,
    fit_to_labels,
    fit_token_scores,
    with_mean_layer,
    with_token_scores,
)
from ownbert.nn.model import Model
from ownbert.views.linear_models import Targets
from ownbert.views.ngram_counts import ngram_numbers
from support.tiny import CONFIG as TINY

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


# Pairs need heads in which a code fits.
WIDE_HEADS = replace(CONFIG, hidden_size=64)


def classifier(labels: int = len(LABELS), config: EncoderConfig = CONFIG, **changes: str) -> Model:
    torch.manual_seed(0)
    names = [f"label {i}" for i in range(labels)]
    model = Model(config, ["classification"], labels=names, **changes)
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


def repetitive(count: int) -> list[Example]:
    """Texts in which some words occur many times, others in each."""
    rng = np.random.default_rng(0)
    often = 1 / np.arange(1, WORDS - SPECIAL + 1)
    found = []
    for _ in range(count):
        words = SPECIAL + rng.permutation(WORDS - SPECIAL)
        ids = rng.choice(words, rng.integers(20, 500), p=often / often.sum())
        found.append(Example(np.asarray([2, *ids, 3]), np.zeros(len(ids) + 2, np.int64)))
    return found


def table(labels: int = len(LABELS)) -> np.ndarray:
    found = np.random.default_rng(1).normal(size=(WORDS, labels)).astype(np.float32)
    found[:SPECIAL] = 0
    return found


def scores_of(
    table: np.ndarray, pairs: np.ndarray | None = None, *, damped: bool = False
) -> TokenScores:
    none = np.zeros(0, np.int64)
    bias = np.zeros(table.shape[1], np.float32)
    return TokenScores(table, bias, none if pairs is None else pairs, range(SPECIAL), damped)


def with_pairs(examples: list[Example], count: int = 40) -> TokenScores:
    """Scores of all tokens and of the commonest pairs of neighbours."""
    ids, row, _ = token_shares(examples, range(SPECIAL), damped=False)
    numbers, times = np.unique(ngram_numbers(ids, row, 2, WORDS)[0], return_counts=True)
    pairs = np.sort(numbers[np.argsort(-times, kind="stable")[:count]])
    own = np.random.default_rng(2).normal(scale=4, size=(count, len(LABELS)))
    return scores_of(np.concatenate([table(), own.astype(np.float32)]), pairs)


def agreement(one: Tensor, other: Tensor) -> float:
    """The correlation of logits, from which the mean over the labels is subtracted."""
    rows = torch.stack([(x - x.mean(1, keepdim=True)).flatten() for x in (one, other)])
    return float(torch.corrcoef(rows)[0, 1])


def halves(
    model: Model, examples: list[Example], hidden: int = CONFIG.hidden_size
) -> tuple[Tensor, Tensor]:
    """The logits of a wider model by its old channels, and by the new ones."""
    last = model.heads["classification"].dense
    weight = last.weight.detach().clone()
    found = []
    for own in (slice(0, hidden), slice(hidden, None)):
        with torch.no_grad():
            last.weight.zero_()
            last.weight[:, own] = weight[:, own]
        found.append(logits(model, examples) - last.bias.detach())
    return found[0], found[1]


def test_the_logits_are_those_of_the_network_and_of_the_linear_model():
    model, examples = classifier(), texts(64)
    scores = scores_of(table())
    own, added = halves(with_token_scores(model, scores, examples), examples)
    bias = model.heads["classification"].dense.bias.detach()
    assert agreement(own, logits(model, examples) - bias) > 0.99
    assert agreement(added, torch.from_numpy(scores.added(examples))) > 0.98


def test_a_deep_network_works_as_before():
    # Public networks have such weights: what is added to a token would grow from layer to layer.
    model, examples = classifier(config=replace(WIDE_HEADS, num_hidden_layers=8)), texts(64)
    with torch.no_grad():
        for name, own in model.named_parameters():
            own *= 0.6 if "norm.weight" in name else 1.0
    scores = scores_of(table())
    wide = with_token_scores(model, scores, examples)
    own, added = halves(wide, examples, WIDE_HEADS.hidden_size)
    bias = model.heads["classification"].dense.bias.detach()
    assert agreement(own, logits(model, examples) - bias) > 0.98
    assert agreement(added, torch.from_numpy(scores.added(examples))) > 0.98


def test_a_pair_counts_only_where_its_tokens_follow_each_other():
    model, examples = classifier(config=WIDE_HEADS), texts(64)
    scores = with_pairs(examples)
    wide = with_token_scores(model, scores, examples)
    own, added = halves(wide, examples, WIDE_HEADS.hidden_size)
    bias = model.heads["classification"].dense.bias.detach()
    assert agreement(own, logits(model, examples) - bias) > 0.97
    assert agreement(added, torch.from_numpy(scores.added(examples))) > 0.97
    # Of the tokens alone it is not:
    tokens = replace(
        scores, table=np.where(np.arange(len(scores.table))[:, None] < WORDS, scores.table, 0)
    )
    assert agreement(added, torch.from_numpy(tokens.added(examples))) < 0.9
    first, second = divmod(int(scores.pairs[0]), WORDS)
    there, turned = ([2, 9, one, other, 11, 3] for one, other in ((first, second), (second, first)))
    rows = [Example(np.asarray(ids), np.zeros(6, np.int64)) for ids in (there, turned)]
    wanted = scores.counts(rows)[:, WORDS:].toarray()
    assert wanted[0, 0] == pytest.approx(1 / 6)
    assert wanted[1, 0] == 0 or first == second


LONG = replace(WIDE_HEADS, max_position_embeddings=512)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("layers", [2, 4])
def test_repeated_tokens_count_less(layers: int, paired: bool):
    config = replace(LONG, num_hidden_layers=layers)
    model, examples = classifier(config=config), repetitive(24)
    scores = replace(with_pairs(examples) if paired else scores_of(table()), damped=True)
    wide = with_token_scores(model, scores, examples)
    own, added = halves(wide, examples, LONG.hidden_size)
    bias = model.heads["classification"].dense.bias.detach()
    assert agreement(own, logits(model, examples) - bias) > 0.98
    found = agreement(added, torch.from_numpy(scores.added(examples)))
    undamped = replace(scores, damped=False)  # the mean over all tokens is another one
    assert found > 0.93
    assert agreement(added, torch.from_numpy(undamped.added(examples))) < found - 0.03
    # Where only the scores count, channels that would stay empty make them more exact.
    with torch.no_grad():
        model.heads["classification"].dense.weight.zero_()
    wide = with_token_scores(model, scores, examples)
    added = halves(wide, examples, LONG.hidden_size)[1]
    exact = agreement(added, torch.from_numpy(scores.added(examples)))
    assert 1 - exact < (1 - found) / 2


def test_shares_of_repeated_tokens():
    ids = np.asarray([2, 8, 7, 9, 7, 3, 2, 7, 3])
    example = Example(ids, np.zeros(9, np.int64), parts=(6, 3))
    plain = token_shares([example], range(SPECIAL), damped=False)
    np.testing.assert_allclose(plain.share, [1 / 12] * 6 + [1 / 6] * 3, rtol=1e-6)
    assert plain.ids.tolist() == [-1, 8, 7, 9, 7, -1, -1, 7, -1]
    damped = token_shares([example], range(SPECIAL), damped=True).share
    assert damped[0] == damped[6] == 0  # the first token of a window has no part
    assert damped[1] == damped[3] > damped[2] == damped[4]
    assert damped[2] + damped[4] == pytest.approx(damped[1], rel=0.1)
    np.testing.assert_allclose([damped[:6].sum(), damped[6:].sum()], 0.5, rtol=1e-5)


@pytest.mark.parametrize("damped", [False, True])
def test_scores_of_repeated_tokens_are_found_again(damped: bool):
    examples = repetitive(400)
    wanted = scores_of(table(), damped=damped).added(examples)
    correlations = []
    for tried in (damped, not damped):
        found = fit_token_scores(examples, wanted, WORDS, range(SPECIAL), damped=tried)
        both = found.added(examples) + found.bias, wanted
        correlations.append(np.corrcoef(*(x.ravel() for x in both))[0, 1])
    assert correlations[0] > 0.97
    assert correlations[0] > correlations[1] + 0.02


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_scores_are_fitted_to_labels(task: str):
    examples = texts(600)
    right = scores_of(table())
    logits = right.added(examples)
    values = {
        "classify": logits.argmax(1),
        "multilabel": (logits > 0).astype(float),
        "regress": logits,
    }[task]
    targets = Targets(task, values, len(LABELS))
    counts = right.counts(examples[:500])
    found = fit_to_labels(right, counts, targets[np.arange(500)], 0.3)
    scores = found.added(examples[500:]) + found.bias
    if task == "regress":
        assert np.corrcoef(scores.ravel(), values[500:].ravel())[0, 1] > 0.97
    else:
        predicted = scores.argmax(1) if task == "classify" else scores > 0
        assert (predicted == values[500:]).mean() > 0.85


def test_a_text_without_known_words_gets_the_mean():
    # As from a regression on long texts: nearly all of the scores are undone by the bias.
    shifted = table() + 60
    shifted[:SPECIAL] = 0
    long = [each for each in repetitive(100) if len(each.token_ids) > 200]
    scores = replace(scores_of(shifted), bias=np.full(3, -60, np.float32))
    before = scores.added(long) + scores.bias
    found = scores.centred(scores.counts(long))
    np.testing.assert_allclose(found.added(long) + found.bias, before, atol=0.6)
    np.testing.assert_allclose(found.bias, before.mean(0), atol=1e-3)
    assert not found.table[:SPECIAL].any()
    nothing = Example(np.asarray([2, 3]), np.zeros(2, np.int64))
    np.testing.assert_allclose(found.added([nothing]) + found.bias, before.mean(0)[None], atol=1e-3)


def test_many_labels_share_channels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_scores, "MOST_CHANNELS", 10)
    # Of 20 labels ten are the same as the others.
    scores, examples = scores_of(np.tile(table(10), 2)), texts(64)
    wide = with_token_scores(classifier(20), scores, texts(8))
    assert wide.config.hidden_size == CONFIG.hidden_size + 16  # ten channels, in heads of 16
    expected = torch.from_numpy(scores.added(examples))
    assert agreement(halves(wide, examples)[1], expected) > 0.95


@pytest.mark.parametrize("damped", [False, True])
def test_transformers_loads_it(tmp_path: Path, damped: bool):
    transformers = pytest.importorskip("transformers")
    examples = texts(64)
    scores = replace(with_pairs(examples), damped=damped)
    wide = with_token_scores(classifier(config=WIDE_HEADS), scores, examples)
    save(wide, tmp_path)
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        found = theirs(torch.from_numpy(examples[0].token_ids)[None]).logits
    torch.testing.assert_close(found, logits(wide, examples[:1]), rtol=1e-4, atol=1e-4)


def test_the_scores_of_tokens_are_found_again():
    examples = texts(400)
    wanted = scores_of(table()).added(examples) + np.asarray([1.0, 2.0, 3.0])
    found = fit_token_scores(examples, wanted, WORDS, range(SPECIAL), most_pairs=20)
    assert found.table.shape == (WORDS, 3)  # pairs would bring nothing
    assert not found.table[:SPECIAL].any()
    correlation = np.corrcoef((found.added(examples) + found.bias).ravel(), wanted.ravel())[0, 1]
    assert correlation > 0.98


def test_with_few_texts_the_scores_of_single_tokens_count():
    few, others = texts(220)[:20], texts(220)[20:]
    right = scores_of(table())
    noisy = 5 * (table() + np.random.default_rng(3).normal(size=(WORDS, 3)))  # in other units
    correlations = []
    for alone in (None, noisy):
        found = fit_token_scores(few, right.added(few), WORDS, range(SPECIAL), alone=alone)
        both = found.added(others) + found.bias, right.added(others)
        correlations.append(np.corrcoef(*(x.ravel() for x in both))[0, 1])
    assert correlations[1] > correlations[0] + 0.05


@pytest.mark.parametrize("rows", [12, 200])
def test_the_regression_is_a_ridge_regression(rows: int):
    rng = np.random.default_rng(0)
    features = random_array((rows, 15), density=0.3, rng=rng, format="csr").astype(np.float32)
    scores = rng.normal(size=(rows, 4)).astype(np.float32)
    scores[:, 0] = 0
    exact = Ridge(1 / token_scores._STRENGTH, fit_intercept=False).fit(features, scores).coef_.T
    found = token_scores._conjugate_gradients(csr_matrix(features), scores)
    np.testing.assert_allclose(found, exact, atol=1e-3)


def test_pairs_that_matter_are_found_again():
    examples = texts(2000)
    scores = with_pairs(examples)
    found = fit_token_scores(examples, scores.added(examples), WORDS, range(SPECIAL), most_pairs=40)
    assert len(np.intersect1d(found.pairs, scores.pairs)) >= 20
    alone = fit_token_scores(examples, scores.added(examples), WORDS, range(SPECIAL))
    errors = [
        np.square(own.added(examples) - scores.added(examples)).mean() for own in (found, alone)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_scores_are_read_as_they_were_written(tmp_path: Path):
    scores = TokenScores(np.eye(4, 2), np.ones(2), np.array([5]), [0, 1], True)
    scores.write(tmp_path / "scores.npz")
    found = TokenScores.read(tmp_path / "scores.npz")
    assert found is not None
    assert all(
        np.array_equal(getattr(found, key), value)
        for key, value in vars(scores).items()
        if key != "special"
    )
    assert list(found.special) == [0, 1]
    assert (type(found.damped), type(found.strength)) == (bool, float)
    for damaged in (b"", b"PK\x03\x04", (tmp_path / "scores.npz").read_bytes()[:-30]):
        (tmp_path / "scores.npz").write_bytes(damaged)
        assert TokenScores.read(tmp_path / "scores.npz") is None


def test_only_some_networks_can_hold_pairs():
    assert can_hold_pairs(classifier(config=WIDE_HEADS))
    assert not can_hold_pairs(classifier())  # heads of 16
    for changes in ({"num_hidden_layers": 1}, {"hidden_act": "tanh"}):
        assert not can_hold_pairs(classifier(config=replace(WIDE_HEADS, **changes)))


def test_only_a_plain_bert_with_a_pooler_can_hold_scores():
    assert can_hold_scores(classifier())
    assert not can_hold_scores(classifier(model_type="roberta"))
    assert not can_hold_scores(Model(CONFIG, ["mlm"]))
    for head in (
        HeadSpec("classification", pooling="mean"),
        HeadSpec("classification", ngrams=64),
    ):
        assert not can_hold_scores(Model(CONFIG, [head], labels=LABELS))


def test_transformers_pools_the_mean_of_the_tokens(
    pretrained: Path, tmp_path: Path, transformers: Any
):
    model = load(pretrained, heads=[], pooler=False)
    assert can_hold_means(model)
    save(with_mean_layer(model), tmp_path / "longer", tokenizer=load_tokenizer(pretrained))
    before, longer = (
        transformers.AutoModel.from_pretrained(p) for p in (pretrained, tmp_path / "longer")
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained)
    batch = tokenizer(
        ["red1 red2 w3", "blue1", "w1 w2 green3 w5 w6"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        tokens, pooled = before(**batch).last_hidden_state, longer(**batch).pooler_output
    kept = batch["attention_mask"][..., None]
    means = (tokens * kept).sum(1) / kept.sum(1)
    for own, mean in zip(pooled, means, strict=True):
        assert torch.corrcoef(torch.stack([own, mean]))[0, 1] > 0.99


def test_other_networks_have_none():
    for changes in ({"norm_first": True}, {"pruned_heads": {0: (1,)}}):
        assert not can_hold_means(Model(replace(TINY, **changes), []))
