"""Decoding with an encoder-decoder model: greedy and beam search, with or without a cache.

B sources, S tokens so far, D hidden, V vocabulary. The beams of a source are consecutive rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.batches.layout import make_layout
from ownbert.nn.context import Cache, Context, rows_of
from ownbert.nn.model import Model


@dataclass(frozen=True)
class Hypothesis:
    """A finished output sequence.

    Args:
        ids: token ids without start and end token.
        score: log-probability in nats; in beam search divided by the length penalty.
        ended: whether the end token was reached before the maximum length.
    """

    ids: tuple[int, ...]
    score: float
    ended: bool


class _Decoder:
    """Decoding state: an encoder-decoder model with encoded sources and a cache.

    All beams of a source share its keys: cross-attention treats them as queries of one sequence, so
    that nothing is stored per beam.
    """

    def __init__(self, model: Model, source: Batch, beams: int, *, cached: bool) -> None:
        self.model, self.beams = model, beams
        self.encoder_hidden, _ = model.encoder(source)
        self.layout = source.layout
        self.cache = Cache() if cached else None

    def log_probs(self, tokens: Tensor) -> Tensor:
        """(B beams, S) -> log-probabilities of the next token (B beams, V)."""
        rows, length = tokens.shape
        new = tokens[:, -1:] if self.cache is not None and self.cache.length else tokens
        count, device = new.shape[1], tokens.device
        layout = make_layout([count] * rows, device)
        keys = make_layout([length] * rows, device) if count < length else None
        queries = make_layout([self.beams * count] * (rows // self.beams), device)
        ids = new.flatten()
        batch = Batch(
            token_ids=ids,
            type_ids=torch.zeros_like(ids),
            positions=torch.arange(length - count, length, device=device).repeat(rows),
            layout=replace(layout, keys=keys, causal=True),
        )
        context = Context(
            batch.layout,
            batch.positions,
            encoder_hidden=self.encoder_hidden,
            cross=replace(queries, keys=self.layout),
            cache=self.cache,
        )
        hidden = self.model(batch, [], context=context).hidden  # (B beams count, D)
        last = hidden.unflatten(0, (rows, count))[:, -1]
        return self.model.heads["generator"](last, None, batch).float().log_softmax(-1)

    def keep(self, order: Tensor, sources: Tensor | None = None) -> None:
        """Continue with the rows ``order``, and with ``sources`` of the sources (None: all)."""
        if self.cache is not None:
            self.cache.reorder_self_attention(order)
        if sources is None:
            return
        if self.cache is not None:
            self.cache.reorder_cross_attention(sources)
        rows, self.layout = rows_of(self.layout, sources)
        self.encoder_hidden = self.encoder_hidden.index_select(0, rows)


@torch.no_grad()
def greedy(
    model: Model,
    source: Batch,
    *,
    start: int,
    end: int,
    longest: Sequence[int],
    cached: bool = True,
) -> list[Hypothesis]:
    """Decode greedily, taking the most probable token in each step.

    Args:
        source: packed batch of B sequences.
        start, end: ids of the start and the end token.
        longest: (B) maximum tokens, including the end token.
        cached: whether to cache keys and values, which is equivalent but faster.

    Returns:
        A hypothesis for each source; its score is the sum of log-probabilities in nats.
    """
    decoder = _Decoder(model, source, 1, cached=cached)
    device = source.token_ids.device
    alive = list(range(source.sequences))
    tokens = torch.full((len(alive), 1), start, device=device)
    totals = torch.zeros(len(alive), device=device)
    hypotheses: dict[int, Hypothesis] = {}
    while alive:
        best, chosen = decoder.log_probs(tokens).max(-1)
        totals = totals + best
        tokens = torch.cat((tokens, chosen[:, None]), 1)
        length = tokens.shape[1] - 1
        unfinished = []
        for row, (number, last) in enumerate(zip(alive, chosen.tolist(), strict=True)):
            if last == end or length >= longest[number]:
                ids = tokens[row, 1 : -1 if last == end else None].tolist()
                hypotheses[number] = Hypothesis(tuple(ids), float(totals[row]), last == end)
            else:
                unfinished.append(row)
        if len(unfinished) < len(alive) and unfinished:
            order = torch.tensor(unfinished, device=device)
            decoder.keep(order, order)
            tokens, totals = tokens[order], totals[order]
        alive = [alive[row] for row in unfinished]
    return [hypotheses[number] for number in range(source.sequences)]


@torch.no_grad()
def beam_search(
    model: Model,
    source: Batch,
    *,
    start: int,
    end: int,
    longest: Sequence[int],
    beams: int = 4,
    length_penalty: float = 0.6,
    cached: bool = True,
) -> list[Hypothesis]:
    """Decode by beam search.

    A source is finished when no candidate can beat the ``beams`` finished ones, or when it has
    ``longest`` tokens.

    Args:
        source, start, end, longest, cached: see ``greedy``.
        beams: number of beams.
        length_penalty: a finished text of n tokens (including the end token) is ranked by its
            log-probability divided by ((5 + n) / 6) ** length_penalty.

    Returns:
        The best hypothesis for each source.

    Source: Wu et al. 2016, section 7.
    """
    decoder = _Decoder(model, source, beams, cached=cached)
    device = source.token_ids.device
    candidates = [_Candidates(beams, length_penalty, end, most) for most in longest]
    alive = list(range(source.sequences))
    tokens = torch.full((len(alive) * beams, 1), start, device=device)
    # All beams are equal at first, so only the first one counts.
    totals = torch.full((len(alive), beams), float("-inf"), device=device)
    totals[:, 0] = 0
    while alive:
        scores = decoder.log_probs(tokens).unflatten(0, (-1, beams))  # (B, beams, V)
        scores = (totals[..., None] + scores).flatten(1)
        # All but ``beams`` of them may be end tokens.
        best, at = scores.topk(min(2 * beams, scores.shape[1]), -1)
        words = scores.shape[1] // beams
        parents, chosen = at // words, at % words
        unfinished, order, ids, kept = [], [], [], []
        for row, (values, froms, news) in enumerate(
            zip(best.tolist(), parents.tolist(), chosen.tolist(), strict=True)
        ):
            rows = tokens[row * beams : (row + 1) * beams]
            live = candidates[alive[row]].take(values, froms, news, rows)
            if live:
                unfinished.append(row)
                order += [row * beams + parent for _, parent, _ in live]
                ids += [new for _, _, new in live]
                kept.append([value for value, _, _ in live])
        if not unfinished:
            break
        index = torch.tensor(order, device=device)
        some = torch.tensor(unfinished, device=device) if len(unfinished) < len(alive) else None
        decoder.keep(index, some)
        tokens = torch.cat((tokens[index], torch.tensor(ids, device=device)[:, None]), 1)
        totals = torch.tensor(kept, device=device)
        alive = [alive[row] for row in unfinished]
    return [each.best() for each in candidates]


class _Candidates:
    """The finished candidates of one source."""

    def __init__(self, beams: int, penalty: float, end: int, longest: int) -> None:
        self.beams, self.penalty, self.end, self.longest = beams, penalty, end, longest
        self.finished: list[Hypothesis] = []

    def ranked(self, total: float, length: int) -> float:
        return total / ((5 + length) / 6) ** self.penalty

    def take(
        self, totals: Sequence[float], parents: Sequence[int], news: Sequence[int], rows: Tensor
    ) -> list[tuple[float, int, int]]:
        """The candidates to continue with, (total, beam, token): ``beams`` of them, or none."""
        length = rows.shape[1]  # counts the start token instead of the new token
        full, live = length >= self.longest, []
        for place, (total, parent, new) in enumerate(zip(totals, parents, news, strict=True)):
            if new == self.end:
                if place < self.beams:  # only candidates among the best beams count
                    self.finish(rows[parent, 1:].tolist(), total, length, ended=True)
            elif len(live) < self.beams:
                live.append((total, parent, new))
        if full:
            for total, parent, new in live:
                self.finish([*rows[parent, 1:].tolist(), new], total, length, ended=False)
            return []
        if len(self.finished) >= self.beams:
            # Log-probabilities only decrease, and the penalty is smallest at the maximum length.
            best_possible = self.ranked(live[0][0], length if self.penalty <= 0 else self.longest)
            worst = sorted(each.score for each in self.finished)[-self.beams]
            if best_possible <= worst:
                return []
        return live

    def finish(self, ids: list[int], total: float, length: int, *, ended: bool) -> None:
        self.finished.append(Hypothesis(tuple(ids), self.ranked(total, length), ended))

    def best(self) -> Hypothesis:
        ended = [each for each in self.finished if each.ended]
        return max(ended or self.finished, key=lambda each: each.score)
