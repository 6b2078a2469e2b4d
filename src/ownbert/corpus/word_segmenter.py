"""Chinese words, which are written without spaces: a segmenter finds them, token by token."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from ownbert.errors import InputError
from ownbert.text.bert_rules import CONTINUATION
from ownbert.text.tokenizer import Tokenizer

SEGMENTERS = ("jieba",)
Segmenter = Callable[[str], Iterator[str]]

# Texts tokenised at once: these encodings keep offsets and are large.
_TEXTS = 1024


def require_segmenter(name: str, tokenizer: Tokenizer) -> None:
    """Check that a segmenter is there and fits the tokenizer.

    Raises:
        InputError: the name is unknown, its package is not installed, or the tokenizer's tokens are
            not made of characters.
    """
    if name not in SEGMENTERS:
        raise InputError(f"segmenter {name!r} is not one of: {', '.join(SEGMENTERS)}")
    if tokenizer.kind != "wordpiece":
        raise InputError(
            f"segmenter {name}: needs a wordpiece tokenizer, this one is {tokenizer.kind}"
        )
    if importlib.util.find_spec(name) is None:
        raise InputError(f"the segmenter {name} is not installed: pip install 'ownbert[zh]'")


def load_segmenter(name: str) -> Segmenter:
    """A function from a text to its words, which together are the text."""
    return {"jieba": _jieba}[name]()


def _jieba() -> Segmenter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of its own, which are not ours to fix
        import jieba
    jieba.setLogLevel(60)  # else it reports on standard error that it loads its dictionary
    jieba.initialize()
    return jieba.cut


class WordBoundaryEncoder:
    """Encodes texts to ids, and tells which tokens begin a word of the segmenter."""

    def __init__(self, tokenizer: Tokenizer, segmenter: Segmenter) -> None:
        self.encoder = tokenizer.encoder
        self.segmenter = segmenter
        names = tokenizer.vocabulary()
        self.continues = np.array([name.startswith(CONTINUATION) for name in names], dtype=bool)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Encode texts.

        Returns:
            ids (T), the number of ids of each text (texts), and 1 where a word begins (T).
        """
        all_ids, lengths, starts = [], [], []
        for at in range(0, len(texts), _TEXTS):
            group = texts[at : at + _TEXTS]
            encodings = self.encoder.encode_batch(group, add_special_tokens=False)
            for text, encoding in zip(group, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
                all_ids.append(ids)
                lengths.append(len(ids))
                starts.append(self._starts(text, ids, offsets))
        empty = np.empty(0, dtype=np.int32)
        return (
            np.concatenate([empty, *all_ids]),
            np.array(lengths, dtype=np.int64),
            np.concatenate([empty.astype(np.uint8), *starts]),
        )

    def _starts(self, text: str, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """1 for the first token of each word. A token that begins inside a word belongs to it, and
        so does a piece that continues another."""
        sizes = [len(word) for word in self.segmenter(text)]
        word_of = np.repeat(np.arange(len(sizes)), sizes)
        if not len(ids):
            return np.empty(0, dtype=np.uint8)
        words = word_of[offsets]
        first = np.concatenate([[True], words[1:] != words[:-1]])
        return (first & ~self.continues[ids]).astype(np.uint8)
