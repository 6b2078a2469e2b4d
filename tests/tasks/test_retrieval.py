"""Losses of vectors and ranks of texts, against plain code and sentence-transformers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ownbert.batches.batch import Batch, Example, pack
from ownbert.tasks.embed import EmbeddingTask, ranks, retrieval_metrics
from ownbert.tasks.row_objectives import ContrastiveObjective, CosineObjective
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import join


def batch_of(*rows: list[str], score: list[float] | None = None) -> Batch:
    """Any tokens; labels as ``EmbeddingTask`` makes them."""
    task, numbers, examples = EmbeddingTask(), {}, []
    task.learnt = True
    task.scale = None if score is None else (1.0, 5.0)
    for i, texts in enumerate(rows):
        row = Row(i, tuple(texts), None if score is None else score[i])
        ids = np.arange(2)
        parts = [Example(ids, ids) for _ in texts]
        examples.append(join(parts, **task._label(row, numbers)))
    return pack(examples)


def test_the_loss_of_scores_is_that_of_plain_torch():
    batch = batch_of(["a", "b"], ["a", "c"], ["d", "e"], score=[1, 5, 2])
    torch.manual_seed(0)
    vectors = torch.randn(6, 7)
    loss = CosineObjective()(vectors, batch)
    cosines = F.cosine_similarity(vectors[0::2], vectors[1::2])
    torch.testing.assert_close(loss.total, ((cosines - torch.tensor([0, 1, 0.25])) ** 2).sum())
    assert loss.count == CosineObjective().count(batch) == 3


def info_nce(rows: list[list[str]], vectors: torch.Tensor, temperature: float) -> torch.Tensor:
    """Row by row, with what is no wrong answer left out."""
    size = len(rows[0])
    v = F.normalize(vectors, dim=1).view(len(rows), size, -1)
    total = torch.zeros(())
    for i, row in enumerate(rows):
        alike = [bool({*row[:2]} & {*other[:2]}) for other in rows]
        others = [j for j in range(len(rows)) if j != i and not alike[j]]
        forth = [v[i, 0] @ v[j, 1] for j in [i, *others]]
        for k in range(2, size):
            forth += [v[i, 0] @ v[j, k] for j in range(len(rows)) if rows[j][k] not in row[:2]]
        back = [v[i, 1] @ v[j, 0] for j in [i, *others]]
        for cosines in (forth, back):
            total = total - (torch.stack(cosines) / temperature).log_softmax(0)[0] / 2
    return total


@pytest.mark.parametrize(
    "rows",
    [
        [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]],
        [["a", "b"], ["c", "b"], ["a", "f"], ["b", "h"], ["x", "y"]],
        [["a", "b", "n"], ["c", "d", "m"], ["e", "f", "b"]],
        [["a", "b", "c"], ["c", "b", "n"], ["x", "y", "x"]],
        [["a", "b", "m", "n"], ["c", "d", "a", "m"], ["e", "b", "x", "y"]],
        [["a", "b"]],
    ],
)
def test_the_contrastive_loss_is_that_of_plain_torch(rows: list[list[str]]):
    torch.manual_seed(1)
    vectors = torch.randn(sum(map(len, rows)), 7, requires_grad=True)
    batch, objective = batch_of(*rows), ContrastiveObjective(temperature=0.2)
    loss = objective(vectors, batch)
    expected = info_nce(rows, vectors, 0.2)
    torch.testing.assert_close(loss.total, expected)
    found = torch.autograd.grad(loss.total, vectors, retain_graph=True)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected, vectors)[0])
    assert loss.count == objective.count(batch) == len(rows)


def test_the_contrastive_loss_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    torch.manual_seed(2)
    one, two, three = torch.randn(3, 5, 7)
    rows = [[f"a{i}", f"b{i}", f"c{i}"] for i in range(5)]
    vectors = torch.stack((one, two, three), 1).flatten(0, 1)
    ours = ContrastiveObjective(temperature=0.05)(vectors, batch_of(*rows)).total / 5
    forth = theirs.compute_loss_from_embeddings([one, two, three], None)
    back = theirs.compute_loss_from_embeddings([two, one], None)
    torch.testing.assert_close(ours, (forth + back) / 2)


def test_ranks_are_those_of_a_slow_search(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    names = [(f"q{rng.integers(12)}", f"d{rng.integers(15)}") for _ in range(40)]
    names += [("d3", "d4"), ("x", "x")]  # a first text among the second ones
    table = {t: rng.normal(size=5) for pair in names for t in pair}
    table["d1"] = table["d2"]  # different texts of one vector
    table = {text: v / np.linalg.norm(v) for text, v in table.items()}
    vectors = np.stack([[table[a], table[b]] for a, b in names])
    expected = []
    for first, second in names:
        right = {b for a, b in names if a == first} | {first}
        others = {b for _, b in names} - right
        mine = table[first] @ table[second]
        expected.append(1 + sum(table[first] @ table[other] >= mine - 1e-12 for other in others))
    np.testing.assert_array_equal(ranks(names, vectors[:, 0], vectors[:, 1]), expected)
    monkeypatch.setattr("ownbert.tasks.embed._CHUNK", 50)
    np.testing.assert_array_equal(ranks(names, vectors[:, 0], vectors[:, 1]), expected)
    found = retrieval_metrics(np.asarray([1, 2, 6, 11, 1]))
    assert found["recall_at_1"] == 0.4
    assert found["recall_at_5"] == 0.6
    assert found["recall_at_10"] == 0.8
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 6 + 1 / 11 + 1) / 5)


def test_who_finds_all_texts_alike_finds_nothing():
    names = [(f"q{i}", f"d{i}") for i in range(20)]
    assert ranks(names, np.ones((20, 1)), np.ones((20, 1))).tolist() == [20] * 20
