"""Retrieval metrics of sentence embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

RETRIEVAL_METRICS = ("mrr", "recall_at_1", "recall_at_5", "recall_at_10")
# Maximum elements of a cosine matrix.
_CHUNK = 1 << 24


def ranks(texts: Sequence[tuple[str, str]], queries: Any, positives: Any) -> np.ndarray:
    """The rank of each row's positive among all distinct positives, by the cosine with the query.

    The query itself and its positives in other rows are excluded. Ties count against the positive,
    otherwise constant vectors would get the best rank.

    Args:
        texts: query and positive of each row.
        queries: unit vectors of the queries (rows, D), dense or sparse.
        positives: unit vectors of the positives (rows, D).

    Returns:
        (rows), from 1.
    """
    places: dict[str, int] = {}
    rows = [places.setdefault(positive, len(places)) for _, positive in texts]
    row_ids = np.asarray(rows)
    _, first_rows = np.unique(row_ids, return_index=True)
    candidates = positives[first_rows]  # (distinct positives, D)
    skipped: dict[str, set[int]] = {}
    for (query, _), place in zip(texts, rows, strict=True):
        skipped.setdefault(query, {places[query]} if query in places else set()).add(place)
    result = np.empty(len(texts), dtype=np.int64)
    step = max(1, _CHUNK // len(first_rows))
    for start in range(0, len(texts), step):
        cosines = queries[start : start + step] @ candidates.T  # (step, candidates)
        if not isinstance(cosines, np.ndarray):
            cosines = cosines.toarray()
        right = cosines[np.arange(len(cosines)), row_ids[start : start + step]]
        before = cosines >= right[:, None]
        for row, (query, _) in enumerate(texts[start : start + step]):
            before[row, list(skipped[query])] = False
        result[start : start + step] = 1 + before.sum(1)
    return result


def retrieval_metrics(ranks: np.ndarray) -> dict[str, float]:
    """Metrics of ranks (rows): mean reciprocal rank, and recall at 1, 5 and 10."""
    recalls = {f"recall_at_{k}": float((ranks <= k).mean()) for k in (1, 5, 10)}
    return {"mrr": float((1 / ranks).mean()), **recalls}
