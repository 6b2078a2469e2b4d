"""Statistics of a vocabulary on its corpus: counts, coverage, and likely sentence ends."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ownbert.files.json_files import read_json
from ownbert.language.messages import Message

REPORT = "vocabulary_report.json"

# A sentence end is among the most frequent tokens, ends at least one document in a hundred, and
# does so five times as often as its frequency predicts, with a margin for small counts.
TOP_TOKENS = 50
LEAST_END_SHARE = 0.01
LEAST_LIFT = 5.0
LEAST_DEVIATIONS = 4.0
LEAST_ENDS = 3
# Minimum share of documents with one of these ends. Titles and truncated texts end with any token.
LEAST_COMMON_SHARE = 0.2
SHOWN_TOKENS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """The frequency of a token, its share of all tokens, and the number and share of documents that
    it ends.
    """

    token: str
    count: int
    share: float
    ends: int
    end_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyReport:
    """Statistics of a vocabulary on the corpus it was learnt from.

    For ``blank``, tokens are words between whitespace, counted before unknown ones become [UNK].
    Otherwise they are pieces, and coverage and out-of-vocabulary rate refer to words.

    Args:
        kind: kind of the tokenizer.
        documents: number of documents.
        running_tokens: number of tokens in the corpus.
        distinct_tokens: number of distinct tokens in the corpus.
        vocabulary_size: number of entries, including special tokens.
        min_count: minimum frequency of a token or merge.
        coverage: share of tokens or words that the vocabulary covers.
        out_of_vocabulary_rate: share of tokens or words that become [UNK].
        pieces_per_word: mean number of pieces per word; None for ``blank``.
        top: most frequent tokens.
        sentence_ends: likely sentence ends of ``blank`` text, the most frequent first.
    """

    kind: str
    documents: int
    running_tokens: int
    distinct_tokens: int
    vocabulary_size: int
    min_count: int
    coverage: float
    out_of_vocabulary_rate: float
    pieces_per_word: float | None
    top: list[TokenCount]
    sentence_ends: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def most_frequent(counts: Counter[str], ends: Counter[str], *, documents: int) -> list[TokenCount]:
    """The 50 most frequent tokens; equally frequent ones in alphabetical order."""
    running = max(1, counts.total())
    first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP_TOKENS]
    return [
        TokenCount(
            token=token,
            count=count,
            share=count / running,
            ends=ends[token],
            end_share=ends[token] / max(1, documents),
        )
        for token, count in first
    ]


def propose_sentence_ends(top: Sequence[TokenCount], *, documents: int) -> list[str]:
    """Find frequent tokens that end documents far more often than by chance, which is ``documents *
    share`` documents. The constants above define the rule."""
    proposals = []
    for row in top:
        chance = documents * row.share
        surplus = LEAST_DEVIATIONS * math.sqrt(chance) + LEAST_ENDS
        share = max(LEAST_END_SHARE, LEAST_LIFT * row.share)
        if row.end_share >= share and row.ends - chance >= surplus:
            proposals.append(row)
    if sum(row.end_share for row in proposals) < LEAST_COMMON_SHARE:
        return []
    return [row.token for row in proposals]


def format_report(report: VocabularyReport) -> str:
    """Format a report as text that fits on one screen."""
    return "\n".join(_lines(report))


def _lines(report: VocabularyReport) -> Iterable[str]:
    blank = report.kind == "blank"
    unit = "tokens" if blank else "pieces"
    mean = report.running_tokens / max(1, report.documents)
    yield Message(
        "Vocabulary: {vocabulary_size:,} entries ({kind})", report.vocabulary_size, report.kind
    )
    yield Message(
        "  documents        {documents:>13,}   {mean:,.1f} {unit!t} each on average",
        *(report.documents, mean, unit),
    )
    yield Message(
        "  running {unit!t}   {count:>13,}   all {unit!t} of the corpus",
        unit,
        report.running_tokens,
    )
    note = "entries of the vocabulary that the corpus uses"
    if blank:
        note = Message(
            "{kept:,} kept (seen {count} times or more) and 5 special ones",
            *(report.vocabulary_size - 5, report.min_count),
        )
    distinct = "  distinct {unit!t}  {count:>13,}   {note!t}"
    yield Message(distinct, unit, report.distinct_tokens, note)
    what = "running tokens" if blank else "words"
    coverage = "  coverage         {share:>13.2%}   {what!t} that the vocabulary covers"
    yield Message(coverage, report.coverage, what)
    unknown = "  out of vocabulary{share:>13.2%}   {what!t} that become [UNK]"
    yield Message(unknown, report.out_of_vocabulary_rate, what)
    if report.pieces_per_word is not None:
        pieces = "  pieces per word  {pieces_per_word:>13.2f}   1 = every word is one entry"
        yield Message(pieces, report.pieces_per_word)
    yield ""
    yield f"  {'count':>12} {'share':>8} {'ends texts':>11}   most frequent"
    for row in report.top[:SHOWN_TOKENS]:
        yield f"  {row.count:>12,} {row.share:>8.2%} {row.end_share:>11.2%}   {row.token}"
    yield ""
    if report.kind != "blank":
        yield "Sentence ends: detected by the rule for plain text (full stops, 。 and similar)."
    elif report.sentence_ends:
        shares = {row.token: row.end_share for row in report.top}
        ends = (
            Message("{token} (ends {shares:.0%} of texts)", token, shares[token])
            for token in report.sentence_ends
        )
        yield Message("Likely sentence ends: {ends}", ", ".join(ends))
        yield "  (frequent tokens that end texts far more often than by chance; please verify)"
    else:
        yield "Likely sentence ends: none; no frequent token ends texts more often than by chance."


def proposed_sentence_ends(folder: str | os.PathLike[str]) -> list[str]:
    """The likely sentence ends in the report in a tokenizer's folder; empty if there is none."""
    try:
        report = read_json(Path(folder, REPORT))
        return [str(token) for token in report["sentence_ends"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
