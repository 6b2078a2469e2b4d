"""Chinese words, which are written without spaces, found by a segmenter."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.text.bert_rules import CONTINUATION
from ownbert.text.tokenizer import Tokenizer

SEGMENTERS = ("jieba",)
Segmenter = Callable[[str], Iterator[str]]

# Texts tokenised at a time: these encodings include offsets and are large.
_TEXTS = 1024


def require_segmenter(name: str, tokenizer: Tokenizer) -> None:
    """Check that a segmenter is available and suits the tokenizer.

    Raises:
        InputError: the name is unknown, its package is not installed, or the tokenizer's tokens do
            not consist of characters.
    """
    known(*SEGMENTERS)("segmenter", name)
    if tokenizer.kind != "wordpiece":
        raise InputError(
            "segmenter {name}: needs a wordpiece tokenizer, this one is {kind}",
            name,
            tokenizer.kind,
        )
    if importlib.util.find_spec(name) is None:
        raise InputError("the segmenter {name} is not installed: pip install 'ownbert[zh]'", name)


def load_segmenter(name: str) -> Segmenter:
    """A function that splits a text into words, which concatenate to the text."""
    return {"jieba": _jieba}[name]()


def _jieba() -> Segmenter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba's own deprecation warnings
        import jieba
    jieba.setLogLevel(60)  # otherwise it logs loading its dictionary
    jieba.initialize()
    return jieba.cut


class WordBoundaryEncoder:
    """Encodes texts to ids, and marks the tokens that start a segmented word."""

    def __init__(self, tokenizer: Tokenizer, segmenter: Segmenter) -> None:
        self.encoder = tokenizer.encoder
        self.segmenter = segmenter
        names = tokenizer.vocabulary()
        self.continues = np.array([name.startswith(CONTINUATION) for name in names], dtype=bool)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids (T) of all texts, the number of ids of each text (texts), and 1 at word starts
        (T)."""
        all_ids, starts = [], []
        for at in range(0, len(texts), _TEXTS):
            group = texts[at : at + _TEXTS]
            encodings = self.encoder.encode_batch(group, add_special_tokens=False)
            for text, encoding in zip(group, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
                all_ids.append(ids)
                starts.append(self._starts(text, ids, offsets))
        empty = np.empty(0, dtype=np.int32)
        return (
            np.concatenate([empty, *all_ids]),
            np.array([*map(len, all_ids)], dtype=np.int64),
            np.concatenate([empty.astype(np.uint8), *starts]),
        )

    def _starts(self, text: str, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """1 for the first token of each word. Tokens that start inside a word belong to it, as do
        continuation tokens."""
        sizes = [len(word) for word in self.segmenter(text)]
        word_of = np.repeat(np.arange(len(sizes)), sizes)
        if not len(ids):
            return np.empty(0, dtype=np.uint8)
        words = word_of[offsets]
        first = np.concatenate([[True], words[1:] != words[:-1]])
        return (first & ~self.continues[ids]).astype(np.uint8)
