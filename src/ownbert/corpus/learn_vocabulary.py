"""Learns a vocabulary from a corpus, deterministically, with a report on its coverage."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category, name, normalize

from ownbert import limits
from ownbert.checks import between, known, up_to
from ownbert.corpus.documents import Document, PathLike, find_files, read_documents
from ownbert.corpus.joined_codes import are_joined
from ownbert.exceptions import InputError, warn_of_input
from ownbert.files.encodings import reads_encoding
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.input_files import protected, refuse_same
from ownbert.files.json_files import write_json
from ownbert.language.messages import Message
from ownbert.tables.texts_or_files import corpus_files
from ownbert.text.bert_rules import (
    CONTINUATION,
    LONGEST_WORD,
    SPECIAL_TOKENS,
    split_whitespace,
    wordpiece_backend,
)
from ownbert.text.build import bpe_backend
from ownbert.text.styles import NEEDED_NAMES, ROBERTA
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import TOKENIZER_FILES, has_tokenizer
from ownbert.text.vocabulary_report import (
    REPORT,
    TokenCount,
    VocabularyReport,
    format_report,
    most_frequent,
    propose_sentence_ends,
)

if TYPE_CHECKING:
    import numpy as np
    import tokenizers


__all__ = ["TokenCount", "VocabularyReport", "format_report", "learn_vocabulary"]

Progress = Callable[[int], None]
KINDS = ("blank", "wordpiece")

BLANK_SIZE = 100_000
# Distinct tokens inspected for separators inside.
_LOOKED_AT = 10_000
BLANK_MIN_COUNT = 3
WORDPIECE_SIZE = 30_000
WORDPIECE_MIN_COUNT = 2
# A small corpus supports few entries: one per this many characters of text.
CHARACTERS_PER_ENTRY = 500
SMALL_SIZE = 2_000
# Maximum share of single characters among the entries.
ALPHABET_SHARE = 0.6
# From this share of vowel signs (Hindi, Thai) or voicing marks (Japanese), accents are kept.
_VOWEL_SIGNS = 0.01
# First words in the Unicode names of marks that most readers can do without.
_ACCENTS = {"COMBINING", "HEBREW", "ARABIC", "SYRIAC", "VARIATION"}
PROGRESS_EVERY = 200
# Number of byte values, each of which has a token in byte-level BPE.
BYTES = 256
# Characters encoded at a time: encodings take a hundred times the memory of their text.
ENCODE_CHARACTERS = 1_000_000
# Longer pieces, such as a file with a single line, are split at a space.
LONGEST_PIECE = 100_000
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


@reads_encoding
def learn_vocabulary(
    paths: Any,
    output: PathLike,
    *,
    kind: str = "wordpiece",
    vocab_size: int | None = None,
    min_count: int | None = None,
    text_column: str | None = None,
    layout: str = "auto",
    encoding: str | None = None,
    lowercase: bool = True,
    progress: Progress | None = None,
) -> VocabularyReport:
    """Learn a vocabulary and write vocab.txt, tokenizer.json, tokenizer_config.json and a report.

    The result depends only on the text.

    Args:
        paths: files, folders and globs, or texts in memory (see ``corpus_files``).
        output: folder to write.
        kind: ``blank``, for pre-tokenised text, keeps the most frequent tokens of at most 100
            characters; ``wordpiece``, for plain text, learns WordPiece.
        vocab_size: maximum entries including special tokens; by default 100,000 for ``blank`` and
            30,000 for ``wordpiece`` (for a small corpus, its characters plus one entry per 500
            characters of text).
        min_count: minimum frequency of entries; by default 3 for ``blank`` and 2 for ``wordpiece``.
        text_column, layout: see ``read_documents``.
        encoding: encoding of text files; by default UTF-8.
        lowercase: whether to lower-case text and strip accents; no effect on ``blank``. Accents are
            kept in text with vowel signs, which BERT's rules would strip too.
        progress: called with the number of documents read so far in each pass over the corpus
            (``wordpiece`` makes three).

    Raises:
        InputError: the corpus gives no entries, a value is invalid, or ``output`` contains a
            trained model with another vocabulary; nothing is written.
    """
    _refuse_settings(output, kind=kind, vocab_size=vocab_size, min_count=min_count)
    with writing(output):
        with corpus_files(paths) as names:
            inputs = find_files(names)
            refuse_same(names, output)
            refuse_foreign(output, [*TOKENIZER_FILES, REPORT])

            def documents() -> Iterator[Document]:
                read = read_documents(names, text_column=text_column, layout=layout)
                return _counted(read, progress)

            if kind == "blank":
                learnt = _learn_blank(documents(), vocab_size=vocab_size, min_count=min_count)
            else:
                learnt = _learn_wordpiece(
                    documents, vocab_size=vocab_size, min_count=min_count, lowercase=lowercase
                )
        tokenizer, report = learnt
        _protect_model(Path(output), tokenizer)
        with protected(inputs):
            file = Path(output, REPORT)
            if not file.exists():  # it tells that the folder is ours if the disk is full
                write_json(file, report.to_dict())
            tokenizer.save(output)
            write_json(file, report.to_dict())
    return report


def learn_tokenizer(
    texts: Callable[[], Iterator[str]],
    *,
    kind: str,
    vocab_size: int,
    min_count: int | None = None,
    lowercase: bool = False,
) -> Tokenizer:
    """Learn a tokenizer from the texts that ``texts`` returns for each pass over them.

    Args:
        kind: ``blank`` or ``wordpiece`` as in ``learn_vocabulary``, or ``bpe`` (byte-level).
        vocab_size: maximum entries including special tokens (and the 256 bytes of ``bpe``).
        min_count: minimum frequency of entries; by default 1 for ``blank``, else 2.
        lowercase: whether to lower-case text; no effect on ``blank``.
    """
    _refuse_small(vocab_size)

    def documents() -> Iterator[Document]:
        return (Document([text], presplit=True) for text in texts())

    if kind == "blank":
        return _learn_blank(documents(), vocab_size=vocab_size, min_count=min_count or 1)[0]
    if kind == "wordpiece":
        return _learn_wordpiece(
            documents, vocab_size=vocab_size, min_count=min_count, lowercase=lowercase
        )[0]
    special = list(dict.fromkeys(ROBERTA.special[name] for name in NEEDED_NAMES))
    least = len(special) + BYTES
    if vocab_size < least:
        raise InputError(
            "vocab_size {vocab_size}: byte-level BPE needs {least} or more", vocab_size, least
        )
    backend = train_bpe(
        texts(),
        special=special,
        size=vocab_size,
        min_count=WORDPIECE_MIN_COUNT if min_count is None else min_count,
        lowercase=lowercase,
    )
    return Tokenizer.byte_level(backend)


def _refuse_settings(
    output: PathLike, *, kind: str, vocab_size: int | None, min_count: int | None
) -> None:
    known(*KINDS)("kind", kind)
    _refuse_small(vocab_size)
    if min_count is not None:
        between(1, limits.FREQUENCY, "[]")("min_count", min_count)
    if Path(output).exists() and not Path(output).is_dir():
        raise InputError("{output} is a file, a folder is needed", output)


def _refuse_small(vocab_size: int | None) -> None:
    if vocab_size is not None and vocab_size <= len(SPECIAL_TOKENS):
        raise InputError(
            "vocab_size {vocab_size} is too small; it must exceed the 5 special tokens", vocab_size
        )
    if vocab_size is not None:
        up_to(limits.VOCABULARY)("vocab_size", vocab_size)


def _counted(documents: Iterable[Document], progress: Progress | None) -> Iterator[Document]:
    number = 0
    for number, document in enumerate(documents, start=1):
        if progress is not None and number % PROGRESS_EVERY == 0:
            progress(number)
        yield document
    if progress is not None:
        progress(number)


def _protect_model(folder: Path, tokenizer: Tokenizer) -> None:
    """Refuse to change the vocabulary of a trained model; with an equal one, keep its max
    length."""
    if not has_tokenizer(folder):
        return
    trained = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    try:
        present = Tokenizer.load(folder)
    except InputError:
        present = None
    if present is not None and present.fingerprint() == tokenizer.fingerprint():
        tokenizer.max_length = present.max_length
    elif trained:
        raise InputError(
            "{folder} contains a model trained with another vocabulary: choose another output "
            "folder",
            folder,
        )


def _learn_blank(
    documents: Iterable[Document], *, vocab_size: int | None, min_count: int | None
) -> tuple[Tokenizer, VocabularyReport]:
    size = BLANK_SIZE if vocab_size is None else vocab_size
    least = BLANK_MIN_COUNT if min_count is None else min_count
    counts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    number = 0
    for document in documents:
        number += 1
        last = None
        for piece in document.pieces:
            for part in _parts(piece):
                if tokens := split_whitespace(part):
                    counts.update(tokens)
                    last = tokens[-1]
        if last is not None:
            ends[last] += 1
    # Special tokens are found anywhere in a text, so a token that contains one never occurs.
    usable = (
        (token, count)
        for token, count in counts.items()
        if count >= least
        and len(token) <= LONGEST_WORD
        and not any(special in token for special in SPECIAL_TOKENS)
    )
    kept = sorted(usable, key=lambda item: (-item[1], item[0]))[: size - len(SPECIAL_TOKENS)]
    if not kept:
        long = sum(counts[token] for token in counts if len(token) > LONGEST_WORD)
        if 2 * long > counts.total():
            raise InputError(_too_long(long, counts.total()))
        raise InputError(
            "no token occurs {least} times or more in the corpus: lower {--min-count} or give "
            "more text",
            least,
        )
    if are_joined([*islice(counts, _LOOKED_AT)]):
        warn_of_input(
            "many tokens are codes joined by separators, such as A01,B20, and each combination "
            "is one token: use {--kind} wordpiece, which splits at punctuation, or put spaces "
            "between the codes"
        )
    running = counts.total()
    covered = sum(count for _, count in kept) + sum(counts[token] for token in SPECIAL_TOKENS)
    top = most_frequent(counts, ends, documents=number)
    tokenizer = Tokenizer.blank([*SPECIAL_TOKENS, *(token for token, _ in kept)])
    return tokenizer, VocabularyReport(
        kind="blank",
        documents=number,
        running_tokens=running,
        distinct_tokens=len(counts),
        vocabulary_size=tokenizer.vocab_size,
        min_count=least,
        coverage=covered / running,
        out_of_vocabulary_rate=1 - covered / running,
        pieces_per_word=None,
        top=top,
        sentence_ends=propose_sentence_ends(top, documents=number),
    )


def _learn_wordpiece(
    documents: Callable[[], Iterator[Document]],
    *,
    vocab_size: int | None,
    min_count: int | None,
    lowercase: bool,
) -> tuple[Tokenizer, VocabularyReport]:
    least = WORDPIECE_MIN_COUNT if min_count is None else min_count
    backend = wordpiece_backend(SPECIAL_TOKENS, do_lower_case=lowercase)

    def pieces() -> Iterator[str]:
        return (part for document in documents() for p in document.pieces for part in _parts(p))

    characters: Counter[str] = Counter()
    for piece in without_long_words(pieces(), backend):
        characters.update(piece)
    largest = WORDPIECE_SIZE if vocab_size is None else vocab_size
    room = min(int(ALPHABET_SHARE * largest), largest - len(SPECIAL_TOKENS))
    strip_accents = False if lowercase and _has_vowel_signs(characters) else None
    backend = wordpiece_backend(
        SPECIAL_TOKENS, do_lower_case=lowercase, strip_accents=strip_accents
    )
    alphabet, continued = choose_alphabet(characters, backend, room=room, min_count=least)
    size = vocab_size
    if size is None:
        learnable = characters.total() // CHARACTERS_PER_ENTRY
        size = max(SMALL_SIZE, len(alphabet) + len(continued) + learnable)
        size = min(WORDPIECE_SIZE, size)
    if not alphabet:
        words = long = 0
        for piece in pieces():
            found = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(piece))
            words += len(found)
            long += sum(len(word) > LONGEST_WORD for word, _ in found)
        if 2 * long > words:
            raise InputError(_too_long(long, words))
        raise InputError(
            "no character occurs {least} times or more in the corpus: give more text", least
        )
    vocabulary = train_wordpiece(backend, pieces(), alphabet, continued, size=size, min_count=least)
    tokenizer = Tokenizer.wordpiece(
        vocabulary, do_lower_case=lowercase, strip_accents=strip_accents
    )
    return tokenizer, _wordpiece_report(tokenizer, documents(), min_count=least)


def _has_vowel_signs(characters: Counter[str]) -> bool:
    """Whether stripping accents would make different words equal."""
    signs = sum(
        count
        for character, count in characters.items()
        if any(map(_is_vowel_sign, normalize("NFD", character)))
    )
    return signs > _VOWEL_SIGNS * characters.total()


def _is_vowel_sign(character: str) -> bool:
    if category(character) != "Mn":
        return False
    words = name(character, "").split(" ")
    return words[0] not in _ACCENTS or words[1:2] == ["KATAKANA-HIRAGANA"]


def _too_long(long: int, words: int) -> str:
    return Message(
        "{long:,} of {words:,} words have over {longest_word} characters, which BERT "
        "tokenizers do not read as words: separate words, ids or codes by spaces",
        long,
        words,
        LONGEST_WORD,
    )


def _wordpiece_report(
    tokenizer: Tokenizer, documents: Iterator[Document], *, min_count: int
) -> VocabularyReport:
    import numpy as np

    by_id = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    ends_by_id = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    number, last = 0, None
    for batch in _batches(documents):
        encoded = tokenizer.encode_batch([text for text, _ in batch])
        ids = np.fromiter(chain.from_iterable(encoded), np.int64)
        by_id += np.bincount(ids, minlength=len(by_id))
        for token_ids, (_, is_end) in zip(encoded, batch, strict=True):
            last = token_ids[-1] if token_ids else last
            if is_end:
                number += 1
                if last is not None:
                    ends_by_id[last] += 1
                last = None
    counts, ends = _by_token(tokenizer, by_id), _by_token(tokenizer, ends_by_id)
    running = counts.total()
    # Every word starts with one token that is not a continuation.
    continuing = sum(n for token, n in counts.items() if token.startswith(CONTINUATION))
    words = max(1, running - continuing)
    unknown = int(by_id[tokenizer.unk_id]) / words
    return VocabularyReport(
        kind="wordpiece",
        documents=number,
        running_tokens=running,
        distinct_tokens=len(counts),
        vocabulary_size=tokenizer.vocab_size,
        min_count=min_count,
        coverage=1 - unknown,
        out_of_vocabulary_rate=unknown,
        pieces_per_word=running / words,
        top=most_frequent(counts, ends, documents=number),
        sentence_ends=[],
    )


def _parts(text: str) -> Iterator[str]:
    """Split a text into parts of at most ``LONGEST_PIECE`` characters, at a space if possible."""
    start = 0
    while len(text) - start > LONGEST_PIECE:
        stop = max(text.rfind(space, start + 1, start + LONGEST_PIECE) for space in " \t\n\u3000")
        stop = stop if stop > 0 else start + LONGEST_PIECE
        yield text[start:stop]
        start = stop
    yield text[start:]


def _batches(documents: Iterable[Document]) -> Iterator[list[tuple[str, bool]]]:
    """Batches of about ``ENCODE_CHARACTERS`` of document parts, each with whether it is the last
    part."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for document in documents:
        previous = None
        for part in (part for piece in document.pieces for part in _parts(piece)):
            if previous is not None:
                batch.append((previous, False))
            previous, size = part, size + len(part) + 1
            if size >= ENCODE_CHARACTERS:
                yield batch
                batch, size = [], len(part)
        batch.append((previous or "", True))
    if batch:
        yield batch


def _by_token(tokenizer: Tokenizer, by_id: "np.ndarray") -> Counter[str]:
    used = by_id.nonzero()[0].tolist()
    return Counter(dict(zip(tokenizer.tokens(used), by_id[used].tolist(), strict=True)))


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
