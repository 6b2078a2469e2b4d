"""Deterministic training of WordPiece and byte-level BPE vocabularies with ``tokenizers``."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ownbert.text.bert_rules import CONTINUATION, LONGEST_WORD, SPECIAL_TOKENS
from ownbert.text.build import bpe_backend

if TYPE_CHECKING:
    import tokenizers


# Time between calls of ``join`` in the main thread, between which Python handles signals.
_SECONDS_BETWEEN_SIGNALS = 0.1
# The training time is quadratic in the length of a word.
_LONG_RUN = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")
# ASCII words of over 100 characters, under any rules. There may be a megabyte of them.
_LONG_ASCII = re.compile(
    rf"(?<![^\s!-/:-@\[-`{{-~])[0-9A-Za-z]{{{LONGEST_WORD + 1},}}(?![^\s!-/:-@\[-`{{-~])"
)
# Runs that may become longer than 100 characters: the rules turn a Korean syllable into three.
_MAYBE_LONG = re.compile(rf"[^\s!-/:-@\[-`{{-~\u4e00-\u9fff]{{{LONGEST_WORD // 3}}}")


def without_long_words(texts: Iterator[str], backend: "tokenizers.Tokenizer") -> Iterator[str]:
    """Remove words of over 100 characters, which are unknown regardless of their pieces."""
    # Read before training, which locks the backend.
    normalizer, splitter = backend.normalizer, backend.pre_tokenizer

    def shortened(text: str) -> str:
        if not _MAYBE_LONG.search(text):
            return text
        text = _LONG_ASCII.sub(" ", text)
        if not _MAYBE_LONG.search(text):
            return text
        words = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        kept = [word for word, _ in words if len(word) <= LONGEST_WORD]
        return text if len(kept) == len(words) else " ".join(kept)

    return map(shortened, texts)


def _train(backend: "tokenizers.Tokenizer", texts: Iterator[str], trainer: Any) -> None:
    """Train in a thread, because training ignores signals, so that an interrupt ends the wait.

    The thread itself cannot be stopped, and ends with the process.
    """
    failures: list[BaseException] = []
    context = copy_context()  # of this thread; it has the encoding of the files
    in_context = iter(lambda: context.run(next, texts, None), None)  # type: ignore[arg-type]

    def run() -> None:
        try:
            backend.train_from_iterator(in_context, trainer)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SECONDS_BETWEEN_SIGNALS)
    if failures:
        raise failures[0]


def choose_alphabet(
    characters: Counter[str], backend: "tokenizers.Tokenizer", *, room: int, min_count: int
) -> tuple[list[str], list[str]]:
    """Choose the initial alphabet of a vocabulary: the characters after the rules of ``backend``,
    the most frequent first, ties in code point order; and the continuations ``##x`` of those that
    can continue a word. It has at most ``room`` entries: one for punctuation and Chinese
    characters, which are separate words, two for a letter, ``x`` and ``##x``."""
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        for normal in "".join(backend.normalizer.normalize_str(character).split()):
            counts[normal] += count
    alphabet, continued = [], []
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        inside = "a" + backend.normalizer.normalize_str(character)
        continues = len(backend.pre_tokenizer.pre_tokenize_str(inside)) == 1
        room -= 1 + continues
        if room < 0 or counts[character] < min_count:
            break
        alphabet.append(character)
        if continues:
            continued.append(CONTINUATION + character)
    return alphabet, continued


def train_wordpiece(
    backend: "tokenizers.Tokenizer",
    texts: Iterator[str],
    alphabet: list[str],
    continued: list[str],
    *,
    size: int,
    min_count: int,
) -> list[str]:
    """Train a WordPiece vocabulary of at most ``size`` entries, besides special tokens and the
    alphabet of ``choose_alphabet``; ``backend`` has BERT's rules and is trained in place. Returns
    the tokens in the order of their ids: special tokens, characters, longer pieces."""
    from tokenizers import trainers

    # By default the trainer numbers characters in the order of a hash table, which changes from run
    # to run and decides ties between merges. Listing all as special tokens makes the ids fixed.
    first = [*SPECIAL_TOKENS, *alphabet, *continued]
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(size, len(first)),
        min_frequency=min_count,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    _train(backend, without_long_words(texts, backend), trainer)
    ids = backend.get_vocab(with_added_tokens=True)
    return sorted(ids, key=ids.__getitem__)


def train_bpe(
    texts: Iterator[str], *, special: Sequence[str], size: int, min_count: int, lowercase: bool
) -> "tokenizers.Tokenizer":
    """Train a byte-level BPE tokenizer of at most ``size`` entries (Sennrich et al. 2016, over
    bytes as in GPT-2). The ids are those of special tokens, then the 256 bytes, then merges, each
    with a frequency of at least ``min_count``."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    learner.normalizer = normalizers.Lowercase() if lowercase else normalizers.Sequence([])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Words may be long in languages without spaces, and byte-level BPE does not limit their length.
    _train(learner, (_LONG_RUN.sub(r"\g<0> ", text) for text in texts), trainer)
    learnt = json.loads(learner.to_str())["model"]
    pairs = (m.split(" ") if isinstance(m, str) else m for m in learnt["merges"])
    merges = [(first, second) for first, second in pairs]
    backend = bpe_backend(learnt["vocab"], merges, add_prefix_space=True)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    return backend
