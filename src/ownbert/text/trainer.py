"""WordPiece and byte-level BPE vocabularies from the ``tokenizers`` trainers, deterministically."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING

from ownbert.text.bert_rules import CONTINUATION, LONGEST_WORD, SPECIAL_TOKENS
from ownbert.text.subword import bpe_backend

if TYPE_CHECKING:
    import tokenizers


# Python handles signals between the calls of a waiting main thread.
_SECONDS_BETWEEN_SIGNALS = 0.1
# The time that a trainer takes for a word grows with the square of its length.
_LONG_RUN = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")
# Words of over 100 characters by any rules; there may be a megabyte of them.
_LONG_ASCII = re.compile(
    rf"(?<![^\s!-/:-@\[-`{{-~])[0-9A-Za-z]{{{LONGEST_WORD + 1},}}(?![^\s!-/:-@\[-`{{-~])"
)
# Too short to become a word of more than the longest, whatever the rules make of its characters:
# of a Korean syllable they make three.
_MAYBE_LONG = re.compile(rf"[^\s!-/:-@\[-`{{-~\u4e00-\u9fff]{{{LONGEST_WORD // 3}}}")


def without_long_words(texts: Iterator[str], backend: "tokenizers.Tokenizer") -> Iterator[str]:
    """``texts`` without words of over 100 characters, which are unknown whatever their pieces."""
    # Taken now: while it is trained, the backend itself is locked.
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


def _interruptibly(work: Callable[[], None]) -> None:
    """Run ``work``, which looks at no signal, in a thread, so that an interrupt ends the wait.

    The thread itself cannot be ended, and ends with the process.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SECONDS_BETWEEN_SIGNALS)
    if failures:
        raise failures[0]


def _in_context(texts: Iterator[str]) -> Iterator[str]:
    """``texts`` for another thread, which knows nothing of this one's context: the encoding of
    the files."""
    context = copy_context()
    return iter(lambda: context.run(next, texts, None), None)  # type: ignore[arg-type]


def choose_alphabet(
    characters: Counter[str], backend: "tokenizers.Tokenizer", *, room: int, min_count: int
) -> tuple[list[str], list[str]]:
    """The characters to start from, and those of them that also continue a word, as ``##x``.

    The most frequent ones come first, ties in the order of the characters.

    Args:
        characters: how often each occurs.
        backend: its normaliser is applied to them.
        room: the most entries of the vocabulary that they may use; punctuation and Chinese
            characters are words by themselves and need one, a letter needs two, ``x`` and ``##x``.
        min_count: rarer ones are left out.
    """
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
    """The vocabulary in the order of its ids: special tokens, characters, then longer pieces."""
    from tokenizers import trainers

    # The trainer itself numbers characters in the order of a hash table, which changes from run to
    # run and decides ties between merges. Listing them all at the front fixes the numbers.
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
    short = without_long_words(texts, backend)
    texts = _in_context(short)
    _interruptibly(lambda: backend.train_from_iterator(texts, trainer))
    ids = backend.get_vocab(with_added_tokens=True)
    return sorted(ids, key=ids.__getitem__)


def train_bpe(
    texts: Iterator[str], *, special: Sequence[str], size: int, min_count: int, lowercase: bool
) -> "tokenizers.Tokenizer":
    """Learn byte-level BPE; ids are those of ``special`` tokens, the 256 bytes, then merges.

    Args:
        texts: to learn from.
        special: tokens that come first.
        size: the most entries in total.
        min_count: of a merge.
        lowercase: whether text is lower-cased.

    Source: Sennrich et al. 2016, over bytes as in GPT-2.
    """
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
    # Words of a language without spaces may be long, and byte-level BPE has no longest word.
    short = (_LONG_RUN.sub(r"\g<0> ", text) for text in texts)
    texts = _in_context(short)
    _interruptibly(lambda: learner.train_from_iterator(texts, trainer))
    learnt = json.loads(learner.to_str())["model"]
    pairs = (m.split(" ") if isinstance(m, str) else m for m in learnt["merges"])
    merges = [(first, second) for first, second in pairs]
    backend = bpe_backend(learnt["vocab"], merges, add_prefix_space=True)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    return backend
