"""Masking for masked language modelling.

T tokens of a sequence, V vocabulary, M masked tokens (targets). Candidates are tokens that may
be masked.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ownbert.batches import MASKINGS
from ownbert.batches.example import Example
from ownbert.batches.word_features import split_into_words
from ownbert.checks import between, known
from ownbert.exceptions import InputError
from ownbert.text.bert_rules import CONTINUATION

if TYPE_CHECKING:
    from ownbert.text.tokenizer import Tokenizer

# Maximum lengths of runs in the papers: ALBERT's n-grams, SpanBERT's spans.
_LONGEST = {"ngram": 3, "span": 10}
# p of SpanBERT's geometric distribution: the probability that a span ends after each word.
_SPAN_END_PROBABILITY = 0.2

# Longer words, in tokens, are text without spaces; masking all of it would leave no context.
LONGEST_WORD = 16


class Masker(Protocol):
    """Turns a sequence into a training example.

    Attributes:
        by_words: whether word boundaries matter.
    """

    @property
    def by_words(self) -> bool: ...

    def example(
        self, whole: Example, rng: np.random.Generator, begins: np.ndarray | None
    ) -> Example:
        """The example of a sequence in which nothing is masked, and ``words`` has the features of
        each token (T, F), if any; ``begins`` (T) is true where a word begins, if that is known."""
        ...


@dataclass(frozen=True)
class Masking:
    """BERT's masking, of tokens or runs of tokens.

    Args:
        mask_id: id of [MASK].
        ordinary: (V) false for special tokens, which are neither targets nor replacements.
        rate: share of the tokens that become targets; 80 % of these are replaced by [MASK], 10 % by
            a random token of the vocabulary, 10 % are unchanged.
        kind: unit of masking:
            - token: single tokens.
            - word: whole words (google-research/bert, May 2019), skipping words that exceed the
              remaining number of targets.
            - ngram: runs of 1 to ``longest`` tokens (3), of length n with a probability
              proportional to 1/n (ALBERT, Lan et al. 2020, section 4.1).
            - span: runs of whole words (of tokens if words are unknown), whose number is geometric
              with p = 0.2 up to ``longest`` (10); all tokens of a span are replaced in the same way
              (SpanBERT, Joshi et al. 2020, section 3.1).
        continues: (V) true for tokens that continue a word; without it every token is a word.
        longest: maximum length of a run.

    Source: Devlin et al. 2019, section 3.1, task 1.
    """

    mask_id: int
    ordinary: np.ndarray
    rate: float = 0.15
    kind: str = "token"
    continues: np.ndarray | None = None
    longest: int | None = None

    def __post_init__(self) -> None:
        between(0, 1)("mask_rate", self.rate)
        known(*MASKINGS)("masking", self.kind)
        if self.longest is not None and self.longest < 1:
            message = "the longest run to mask has {longest} tokens; it must have at least 1"
            raise InputError(message, self.longest)

    @property
    def by_words(self) -> bool:
        """Whether word boundaries are needed."""
        return self.kind in ("word", "span")

    def __call__(
        self, ids: np.ndarray, rng: np.random.Generator, begins: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mask a sequence of ids (T); ``begins`` (T), true for word starts, replaces ``continues``.

        Returns:
            The masked ids (T), the positions of the targets (M, ascending) and their original ids
            (M). There is at least one target, if there is any ordinary token, and at most as many
            as ``rate`` allows, unless the first word alone has more.
        """
        candidates = self.ordinary[ids].nonzero()[0]
        size = len(candidates)
        count = min(size, max(1, round(self.rate * size)))
        if self.kind == "token" or not size:
            positions = candidates[rng.choice(size, count, replace=False)] if size else candidates
            positions.sort()
            draw = rng.random(count)
        else:
            words, runs = self._runs(ids, candidates, rng, begins)
            positions, run = _choose(candidates, words, runs, count, rng)
            shared = self.kind == "span"
            draw = rng.random(len(runs) - 1)[run] if shared else rng.random(len(run))
        targets = ids[positions]
        shown = np.where(draw < 0.8, self.mask_id, targets)
        replaced = draw >= 0.9
        pool = self.replacements
        shown[replaced] = pool[rng.integers(len(pool), size=np.count_nonzero(replaced))]
        masked = ids.copy()
        masked[positions] = shown
        return masked, positions, targets

    def example(
        self, whole: Example, rng: np.random.Generator, begins: np.ndarray | None
    ) -> Example:
        masked, positions, targets = self(whole.token_ids, rng, begins)
        words = whole.words
        if words is not None and begins is not None:
            words = split_into_words(begins, words)
        return replace(
            whole, token_ids=masked, masked_positions=positions, masked_ids=targets, words=words
        )

    @cached_property
    def replacements(self) -> np.ndarray:
        """The ids that random replacements are drawn from."""
        return np.flatnonzero(self.ordinary)

    def _runs(
        self,
        ids: np.ndarray,
        candidates: np.ndarray,
        rng: np.random.Generator,
        begins: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Starts of words and of runs, as indices of candidates; both end with the number of these.

        The text is split into runs of random lengths, some of which are chosen afterwards: lengths
        and positions are distributed as in single draws, no draw is wasted on masked tokens, and
        any rate can be reached.
        """
        size = len(candidates)
        # A word and a run start after a special token.
        boundaries = np.ones(size, dtype=bool)
        boundaries[1:] = candidates[1:] - candidates[:-1] > 1
        if self.kind == "ngram" or (begins is None and self.continues is None):
            words = np.arange(size + 1)
        else:
            if begins is not None:
                starts = boundaries | (begins[candidates] != 0)
            else:
                assert self.continues is not None
                starts = boundaries | ~self.continues[ids[candidates]]
            words = _short_words(starts)
        if self.kind == "word":
            return words, words
        lengths, first_lengths = self._length_distributions
        draws = rng.random(len(words))
        # The first run is the rest of one that started before the text; otherwise runs would start
        # at the first token too often.
        draws[0] = first_lengths.searchsorted(draws[0])
        draws[1:] = lengths.searchsorted(draws[1:])
        at = (draws + 1).astype(np.int64).cumsum()
        boundaries[words[at[: at.searchsorted(len(words) - 1)]]] = True
        return words, np.append(boundaries.nonzero()[0], size)

    @cached_property
    def _length_distributions(self) -> tuple[np.ndarray, np.ndarray]:
        """Cumulative probabilities of a run of 1, 2, ... words, and of 1, 2, ... words from a
        random word to the end of its run."""
        numbers = np.arange(1, (self.longest or _LONGEST[self.kind]) + 1)
        if self.kind == "ngram":
            lengths = 1 / numbers
        else:
            lengths = _SPAN_END_PROBABILITY * (1 - _SPAN_END_PROBABILITY) ** (numbers - 1)
        lengths = lengths / lengths.sum()
        rest = lengths[::-1].cumsum()[::-1]
        cumulative = lengths.cumsum(), (rest / rest.sum()).cumsum()
        for probabilities in cumulative:
            probabilities[-1] = 1.0
        return cumulative


def _short_words(starts: np.ndarray) -> np.ndarray:
    """Word starts (words + 1), followed by the number of candidates; long words are split."""
    words = np.append(starts.nonzero()[0], len(starts))
    sizes = words[1:] - words[:-1]
    if sizes.max() <= LONGEST_WORD:
        return words
    within = np.arange(len(starts)) - words[:-1].repeat(sizes)
    return np.append((within % LONGEST_WORD == 0).nonzero()[0], len(starts))


def _choose(
    candidates: np.ndarray,
    words: np.ndarray,
    runs: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (M) of ``count`` tokens in randomly chosen runs, and the run of each (M).

    A run that exceeds the remaining count contributes the whole words that fit, from its front or
    back. The first run always contributes a word, otherwise long words would never be masked in
    short texts.
    """
    starts, sizes = runs[:-1].copy(), runs[1:] - runs[:-1]
    stops = starts.copy()
    order = rng.permutation(len(sizes))
    total = sizes[order].cumsum()
    fit = int(total.searchsorted(count, "right"))
    whole = order[:fit]
    stops[whole] += sizes[whole]
    left = count - (int(total[fit - 1]) if fit else 0)
    if left:
        places, ends = words.tolist(), runs.tolist()
        front = rng.random() < 0.5
        for run in order[fit:].tolist():
            start, stop = ends[run], ends[run + 1]
            if front:
                stop = places[bisect_right(places, min(start + left, stop)) - 1]
            else:
                start = places[bisect_left(places, max(stop - left, start))]
            if start == stop and left == count:
                at = bisect_left(places, start)
                start, stop = (start, places[at + 1]) if front else (places[at - 1], stop)
            starts[run], stops[run] = start, stop
            left -= stop - start
            if left <= 0:
                break
    run = np.arange(len(sizes)).repeat(sizes)
    indices = np.arange(len(candidates))
    chosen = ((indices >= starts[run]) & (indices < stops[run])).nonzero()[0]
    return candidates[chosen], run[chosen]


def ordinary_tokens(vocab_size: int, special_ids: tuple[int, ...]) -> np.ndarray:
    """(V) true for tokens that are not special."""
    ordinary = np.ones(vocab_size, dtype=bool)
    ordinary[list(special_ids)] = False
    return ordinary


def continuing_tokens(tokenizer: "Tokenizer") -> np.ndarray:
    """(V) true for tokens that continue a word, by the tokenizer's markers; in space-separated text
    every token is a word, and special and added tokens are not continuations."""
    vocabulary = tokenizer.vocabulary()
    if tokenizer.kind == "wordpiece":
        prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", CONTINUATION)
        continuing = np.array([token.startswith(prefix) for token in vocabulary], dtype=bool)
    elif tokenizer.kind == "blank":
        continuing = np.zeros(len(vocabulary), dtype=bool)
    else:
        # Both include the space before a word in its first token, as Ġ in byte-level BPE.
        continuing = np.array([not token.startswith(("Ġ", "▁")) for token in vocabulary])
    added = set(tokenizer.backend.get_added_tokens_decoder()) | set(tokenizer.special_ids)
    continuing[sorted(added)] = False
    return continuing
