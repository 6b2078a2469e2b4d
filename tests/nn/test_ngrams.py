"""Hashed n-grams beside the pooled vector: which count, in which buckets, and what is learnt."""

from collections.abc import Sequence

import numpy as np
import torch

from ownbert.batches.batch import Batch, Example, from_padded, pack
from ownbert.config.head_spec import HeadSpec
from ownbert.nn.model import Model
from ownbert.nn.variants.ngram_embeddings import WIDTH, NgramTable, ngram_buckets
from support.floats import assert_close
from support.tiny import CONFIG

# As in the tiny vocabulary.
CLS, SEP = 2, 3
BUCKETS = 1000


def batch_of(*sequences: Sequence[int], parts: tuple[int, ...] | None = None) -> Batch:
    arrays = [np.asarray(ids, dtype=np.int64) for ids in sequences]
    return pack([Example(ids, ids * 0, parts=parts) for ids in arrays])


def buckets_of(*sequences: Sequence[int]) -> list[list[int]]:
    found, of = ngram_buckets(batch_of(*sequences), BUCKETS)
    return [found[of == i].tolist() for i in range(len(sequences))]


def test_ngrams_are_of_the_tokens_of_one_text_only():
    alone = buckets_of([CLS, 5, 6, 7, SEP])[0]
    assert len(alone) == 3  # 5 6, 5 6 7, 6 7
    pair = [CLS, 5, 6, SEP, 7, 8, SEP]
    several = buckets_of([CLS, 5, 6, 7, SEP], [CLS, 9, SEP], pair, [CLS, SEP], [CLS, 6, 7, SEP])
    assert [len(found) for found in several] == [3, 0, 2, 0, 1]
    assert several[0] == alone
    assert several[4] == [alone[2]]
    assert several[2] == [alone[0], *buckets_of([CLS, 7, 8, SEP])[0]]


def test_order_and_length_tell_ngrams_apart():
    texts = [[5, 6], [6, 5], [5, 5], [6, 6], [5, 7], [0, 5], [5, 0]]
    found = [buckets_of([CLS, *text, SEP])[0][0] for text in texts]
    assert len(set(found)) == len(texts)
    assert all(0 <= bucket < BUCKETS for bucket in found)


def test_buckets_never_change():
    """A saved table is of no use with another hash. The places are those of plain integers."""

    def signed(x: int) -> int:
        return (x + (1 << 63)) % (1 << 64) - (1 << 63)

    def hashed(*ids: int) -> int:
        key = ids[0]
        for other in ids[1:]:
            key = signed(key * -7046029254386353131 + other + 1)
        key = signed((key ^ (key >> 32)) * -2643881736870682267)
        return (key ^ (key >> 29)) % BUCKETS

    expected = [hashed(5, 6), hashed(5, 6, 9), hashed(6, 9)]
    assert buckets_of([CLS, 5, 6, 9, SEP])[0] == expected
    assert expected == [988, 111, 823]


def test_buckets_are_filled_evenly():
    ids = np.arange(60)
    pairs = [[CLS, a + 10, b + 10, SEP] for a in ids for b in ids]
    found, _ = ngram_buckets(batch_of(*pairs), 64)
    counts = torch.bincount(found, minlength=64)
    assert len(counts) == 64
    # 56 on average; of even draws all are within five deviations.
    assert float((counts - 3600 / 64).abs().max()) < 5 * (3600 / 64) ** 0.5


def test_the_vector_is_the_sum_of_the_rows_over_the_root_of_their_number():
    table = NgramTable(BUCKETS)
    torch.manual_seed(0)
    torch.nn.init.normal_(table.table.weight)
    texts = [[CLS, 5, 6, 7, SEP], [CLS, 9, SEP], [CLS, 6, 7, SEP]]
    found = table(batch_of(*texts), grouped=False)
    rows, none = table.table.weight, torch.zeros(WIDTH)
    expected = [rows[of].sum(0) / len(of) ** 0.5 if of else none for of in buckets_of(*texts)]
    assert_close(found, torch.stack(expected))
    # One answer for all windows of a document; and indices of a smaller word table.
    joined = batch_of([i for text in texts for i in text], parts=(5, 3, 4))
    each = [row for found in buckets_of(*texts) for row in found]
    assert_close(table(joined, grouped=True), table.table.weight[each].sum(0)[None] / 2)
    table.ids = torch.tensor([2, 3, 5, 6, 7, 9])
    indices = [[0, 2, 3, 4, 1], [0, 5, 1], [0, 3, 4, 1]]
    assert_close(table(batch_of(*indices), grouped=False), found)


def test_the_head_sees_it_beside_the_pooled_vector():
    torch.manual_seed(0)
    spec = HeadSpec("classification", pooling="mean", ngrams=BUCKETS)
    model = Model(CONFIG, [spec], labels=["x", "y"]).eval()
    head = model.heads["classification"]
    batch = batch_of([CLS, 5, 6, 7, SEP], [CLS, 9, SEP])
    before = model(batch).logits["classification"]
    with torch.no_grad():
        head.ngrams.table.weight.add_(1.0)
    after = model(batch).logits["classification"]
    added = head.dense.weight[:, CONFIG.hidden_size :].sum(1)
    assert_close(after - before, torch.stack([added * 3**0.5, torch.zeros(2)]))
    padded, _ = from_padded(
        torch.tensor([[CLS, 5, 6, 7, SEP], [CLS, 9, SEP, 0, 0]]),
        torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]),
    )
    assert_close(model(padded).logits["classification"], after)


def test_only_rows_in_use_get_a_gradient():
    table = NgramTable(BUCKETS)
    table(batch_of([CLS, 5, 6, 7, SEP]), grouped=False).sum().backward()
    gradient = table.table.weight.grad.coalesce()
    assert gradient.indices()[0].tolist() == sorted(buckets_of([CLS, 5, 6, 7, SEP])[0])
    assert_close(gradient.values(), torch.full((3, WIDTH), 3**-0.5))
