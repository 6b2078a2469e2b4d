"""Measures memorisation of training texts: membership, canaries, rare tokens, copies; and writes a
model card's section on it.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.batches.masking import ordinary_tokens
from ownbert.checks import between, list_of, record, whole
from ownbert.exceptions import InputError, fields_repr, percent
from ownbert.files.encodings import reads_encoding
from ownbert.files.folders import is_ours
from ownbert.files.json_files import read_json
from ownbert.files.writing import write_text
from ownbert.hub import model_folder
from ownbert.inference.engines import Compute, Say
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Opened, read_labelled_rows
from ownbert.inference.opened_blend import all_raws
from ownbert.inference.score import ScoredText, Scorer, drawn, surprisals
from ownbert.inference.vector_files import as_inputs, records_of
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import CANARIES
from ownbert.run.model_card import CARD, cell, table
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.metrics import auroc
from ownbert.tasks.related_rows import row_key, text_key
from ownbert.tasks.row_network import blocks
from ownbert.tasks.task import NoTaskHead
from ownbert.views.tokens import marks

MOST_TEXTS = 2000  # maximum texts scored per side
# Number of random sequences that a canary is ranked among, which limits its exposure to 10 bits.
_OTHERS = 1023
# Maximum occurrences of a rare token in the training texts.
_RARE = 5
# Minimum probability for a token to count as recalled; number of examples shown.
_RECALLED, _SHOWN = 0.5, 10
_FEWEST = 20
_CANARY = {"ids": list_of(whole(0, limits.VOCABULARY)), "times": whole(1, limits.COUNT)}
_CANARIES = list_of(record(_CANARY, required=tuple(_CANARY)), most=1000)
_CHECK = record({"canaries": _CANARIES}, required=("canaries",))
# Number of consecutive words or Chinese characters that count as a copy.
_RUN = 8
_ENDINGS = (".md", ".html", ".txt", ".json", ".jsonl", ".csv")
# Skipped files: vocabularies, number tables, and files above this size (bytes).
_OTHER_TEXTS = {"vocab.txt", "tokenizer.json", "merges.txt"}
_MOST_BYTES = 50_000_000
_TITLE = "Memory of the training texts"


@dataclass(frozen=True)
class Membership:
    """Membership inference: how well the loss separates training texts from held-out texts.

    Args:
        auc: probability that a training text has the lower loss; 0.5 means no separation.
        low, high: 95% interval of the AUROC.
        found: true positive rate at a false positive rate of 1%.
        train, held_out: numbers of texts.
    """

    score: str
    auc: float
    low: float
    high: float
    found: float
    train: int
    held_out: int


@dataclass(frozen=True)
class Canary:
    """A planted sequence with its exposure in bits, at most 10; an unseen sequence has 1 on
    average."""

    tokens: str
    times: int
    exposure: float


@dataclass(frozen=True)
class RareTokens:
    """Tokens that occur at most five times in the training texts: the share that the model predicts
    where they are masked, in training texts and in held-out texts, their numbers, and examples."""

    given_back: float
    of_held_out: float
    count: int
    held_out: int
    examples: tuple[str, ...]


_ADVICE = {
    "membership": "Training texts can be distinguished from others: train fewer epochs or steps, "
    "drop duplicates (prepare --duplicates drop), and share neither weights nor losses.",
    "canaries": "The planted sequences are memorised, so text that occurs several times is too. "
    "Drop duplicates, and remove names and numbers before training.",
    "rare": "Rare tokens are reproduced: a larger --min-count leaves them out of the vocabulary.",
    "copies": "Files in the folder contain parts of training texts: delete them before sharing "
    "the folder (ownbert push does not upload reports).",
}


@dataclass(frozen=True)
class Audit:
    """The results of an audit; ``rare`` is None for models without an MLM head."""

    membership: Membership
    canaries: tuple[Canary, ...]
    rare: RareTokens | None
    copies: dict[str, int]

    def __repr__(self) -> str:
        return fields_repr(self)

    def as_json(self) -> dict[str, Any]:
        """The results as JSON values, with the advice."""
        return {**asdict(self), "advice": self.advice()}

    def advice(self) -> list[str]:
        """Recommendations, as sentences."""
        rare = self.rare
        found = {
            "membership": self.membership.low > 0.55,
            "canaries": any(canary.exposure >= 5 for canary in self.canaries),
            "rare": rare is not None and rare.given_back > 2 * rare.of_held_out + 0.05,
            "copies": bool(self.copies),
        }
        sentences = [_ADVICE[name] for name, holds in found.items() if holds]
        return sentences or ["Nothing stands out. This is not a proof: see docs/audit.md."]


@reads_encoding
@in_float32
def audit(
    folder: str | Path,
    train: Any,
    held_out: Any,
    *,
    text_column: str | None = None,
    most: int = MOST_TEXTS,
    device: str = "auto",
    encoding: str | None = None,
    say: Say | None = None,
) -> Audit:
    """Measure how much a model has memorised of its training texts.

    Args:
        folder: folder of a model with an MLM head, or of a single-label classifier, which needs
            labelled files.
        train: texts that it was trained on: files, folders or globs, or texts in memory.
        held_out: similar texts that it was not trained on.
        text_column: column of the text in tables.
        most: maximum number of texts, sampled at random, per side.
        device: auto, cpu or cuda.
        encoding: encoding of text files; by default UTF-8.
        say: called with notes.

    Raises:
        InputError: the folder or a file cannot be used, or there are fewer than 20 texts.

    Source: Carlini et al. 2019, "The Secret Sharer"; Yeom et al. 2018, "Privacy Risk in Machine
    Learning", for membership inference by the loss.
    """
    between(_FEWEST, limits.COUNT, "[]")("most", most)
    folder = model_folder(folder)
    columns = ColumnNames(text=text_column)
    try:
        opened = open_folder(folder, Compute(device), columns=columns)
    except NoTaskHead:
        scorer = Scorer(folder, device=device, refit=True)
        return _of_texts(scorer, train, held_out, columns, most, say)
    if opened.task.name != "classify":
        raise InputError(
            "{folder} was fine-tuned for {name}; an audit supports pretrained models and models "
            "with one label per text",
            *(folder, opened.task.name),
        )
    return _of_rows(opened, train, held_out, most)


def _of_texts(
    scorer: Scorer, train: Any, held_out: Any, columns: ColumnNames, most: int, say: Say | None
) -> Audit:
    def texts(given: Any) -> Iterator[str]:
        return (text for _, text in records_of(as_inputs(given), columns))

    (kept, count), (others, _) = (
        drawn((t for t in texts(each) if t.strip()), most) for each in (train, held_out)
    )
    unseen = set(map(text_key, others))
    counts: Counter[str] = Counter()
    tokenizer = scorer.filler.tokenizer
    for block in blocks(texts(train), size=len):
        unseen.difference_update(map(text_key, block))
        for ids, _ in tokenizer.with_offsets(block):
            counts.update(tokenizer.tokens(ids.tolist()))
    others = [text for text in others if text_key(text) in unseen]
    _require(len(kept), len(others))
    if say is not None and count > len(kept):
        say(
            Message("note: {count:,} of the {count2:,} training texts are scored", len(kept), count)
        )
    members, rest = scorer(kept), scorer(others)

    def losses(side: Iterable[ScoredText]) -> np.ndarray:
        """The mean surprisal of each text's tokens that occur in training texts: others would
        identify held-out texts by vocabulary, not by memorisation."""
        pairs = (zip(text.tokens, text.surprisals, strict=True) for text in side)
        seen = ([value for token, value in own if counts[token]] for own in pairs)
        return np.asarray([sum(values) / len(values) for values in seen if values])

    return Audit(
        _membership("surprisal", losses(members), losses(rest)),
        _canaries(scorer.folder, scorer),
        _rare(members, rest, counts),
        copies(scorer.folder, texts(train)),
    )


def _of_rows(opened: Opened, train: Any, held_out: Any, most: int) -> Audit:
    task: Any = opened.task
    members, others = (read_labelled_rows(task, each, opened.folder) for each in (train, held_out))
    known, losses = set(map(row_key, members)), []
    others = [row for row in others if row_key(row) not in known]
    sides = [drawn(each, most)[0] for each in (members, others)]
    _require(*map(len, sides))
    for rows in sides:
        probabilities = all_raws(opened, rows)
        right = probabilities[np.arange(len(rows)), [task.target(row) for row in rows]]
        losses.append(-np.log(np.maximum(right, 1e-12)))
    texts = (text for row in members for text in row.texts)
    return Audit(_membership("loss", *losses), (), None, copies(opened.folder, texts))


def _require(train: int, held_out: int) -> None:
    if min(train, held_out) < _FEWEST:
        raise InputError(
            "an audit needs at least {fewest} training texts and the same number of held-out "
            "texts that are not among them; there are {train:,} and {held_out:,}",
            *(_FEWEST, train, held_out),
        )


def _membership(score: str, train: np.ndarray, held_out: np.ndarray) -> Membership:
    _require(len(train), len(held_out))
    auc = auroc(train, held_out)
    # Hanley and McNeil 1982, "The Meaning and Use of the Area under a ROC Curve", equation 2.
    q, r, m, n = auc / (2 - auc), 2 * auc**2 / (1 + auc), len(train), len(held_out)
    variance = auc * (1 - auc) + (m - 1) * (q - auc**2) + (n - 1) * (r - auc**2)
    spread = 1.96 * math.sqrt(max(variance, 0.0) / (m * n))
    true_positive_rate = float((train < np.quantile(held_out, 0.01)).mean())
    return Membership(
        score, auc, max(0.0, auc - spread), min(1.0, auc + spread), true_positive_rate, m, n
    )


def _canaries(folder: Path, scorer: Scorer) -> tuple[Canary, ...]:
    """The exposure of each canary: its rank in bits among random sequences."""
    planted = read_json(folder / CANARIES, missing={"canaries": []}, check=_CHECK)["canaries"]
    if not planted:
        return ()
    filler = scorer.filler
    size = filler.tokenizer.vocab_size
    lengths = {len(each["ids"]) for each in planted}
    if len(lengths) > 1 or 0 in lengths or max(max(each["ids"]) for each in planted) >= size:
        raise InputError("{folder} is damaged, or of another vocabulary", folder / CANARIES)
    known = np.flatnonzero(ordinary_tokens(size, filler.tokenizer.special_ids))
    others = np.random.default_rng(0).choice(known, (_OTHERS, lengths.pop()))
    sequences = [np.asarray(each["ids"]) for each in planted]
    means = np.asarray([v.mean() for v in surprisals(filler, [*sequences, *others], None)])
    rest = np.sort(means[len(sequences) :])
    ranks = 1 + np.searchsorted(rest, means[: len(sequences)], side="left")
    exposures = [round(math.log2(_OTHERS + 1) - math.log2(rank), 2) for rank in ranks.tolist()]
    return tuple(
        Canary(" ".join(filler.tokenizer.tokens(each["ids"])), each["times"], exposure)
        for each, exposure in zip(planted, exposures, strict=True)
    )


def _rare(
    train: Sequence[ScoredText], held_out: Sequence[ScoredText], counts: Counter[str]
) -> RareTokens:
    def recalled(texts: Sequence[ScoredText]) -> tuple[list[str], int]:
        """Rare tokens that are predicted, and the number of all rare ones."""
        pairs = (zip(text.tokens, text.surprisals, strict=True) for text in texts)
        rare = [(t, value) for t, value in chain(*pairs) if 0 < counts[t] <= _RARE]
        return [t for t, value in rare if value <= -math.log(_RECALLED)], len(rare)

    (back, count), (others, held_out_count) = recalled(train), recalled(held_out)
    shares = len(back) / max(1, count), len(others) / max(1, held_out_count)
    return RareTokens(*shares, count, held_out_count, tuple(dict.fromkeys(back))[:_SHOWN])


def copies(folder: Path, texts: Iterable[str]) -> dict[str, int]:
    """Count the texts that each file of a folder quotes, by eight consecutive words; files with
    any."""
    files = (
        path
        for path in sorted(folder.iterdir())
        if path.suffix in _ENDINGS and path.name not in _OTHER_TEXTS and path.is_file()
    )
    small = (path for path in files if path.stat().st_size <= _MOST_BYTES)
    pages = {path.name: set(_runs(_shown(path))) for path in small}
    counts = dict.fromkeys(pages, 0)
    if pages:
        for text in texts:
            text_runs = set(_runs(text))
            for name, runs in pages.items():
                counts[name] += not text_runs.isdisjoint(runs)
    return {name: count for name, count in counts.items() if count}


def _shown(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".html":
        text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    escapes = re.compile(r"\\u([0-9a-fA-F]{4})|\\[nrt]")  # of JSON
    return escapes.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(rf"[\u3400-\u9fff]|(?:[^\W_\u3400-\u9fff][{marks()}]*)+", text.lower())
    return (tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1))


def lines(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield the results as names and values, without any text."""
    membership = audit.membership
    name = Message(
        "training texts separated from held-out texts by their {score} (AUROC)", membership.score
    )
    yield translated(name), f"{membership.auc:.3f} ({membership.low:.3f} - {membership.high:.3f})"
    yield (
        translated("training texts detected, at a false positive rate of 1% on held-out texts"),
        f"{percent(membership.found)}",
    )
    for times in sorted({canary.times for canary in audit.canaries}):
        exposures = [canary.exposure for canary in audit.canaries if canary.times == times]
        name = "mean exposure of sequences planted {times:,} x ({count:,} of them; 10 bits at most)"
        mean = sum(exposures) / len(exposures)
        yield translated(name, times, len(exposures)), f"{mean:.1f}"
    if audit.rare is not None:
        rare = audit.rare
        shares = (
            ("rare tokens of training texts reproduced", rare.given_back, rare.count),
            ("rare tokens of held-out texts reproduced", rare.of_held_out, rare.held_out),
        )
        for name, share, count in shares:
            yield translated(name), f"{percent(share)}" if count else translated("no rare tokens")
    for name, count in audit.copies.items():
        yield translated("training texts with a part in {name}", name), f"{count:,}"


def add_to_card(folder: Path, audit: Audit) -> str | None:
    """Add the section to the README.md of a folder, or replace the existing one; return a warning
    or None."""
    path = folder / CARD
    if not path.exists() or not is_ours(path):
        return Message(
            "{folder} has no model card written by ownbert; no section was added", folder
        )
    title, versions = f"## {translated(_TITLE)}", f"## {translated('Versions')}"
    rows = [(cell(name), value) for name, value in lines(audit)]
    advice = "\n".join(f"- {translated(sentence)}" for sentence in audit.advice())
    section = f"{title}\n\n{table(('', ''), rows)}\n\n{advice}\n\n"
    text = path.read_text(encoding="utf-8")
    text = re.sub(rf"(?ms)^{re.escape(title)}\n.*?(?=^## |\Z)", "", text)
    place = text.rfind(f"{versions}\n")
    place = len(text) if place < 0 else place
    write_text(path, text[:place] + section + text[place:])
    return None
