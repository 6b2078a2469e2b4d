"""The two halves of BERT's tokenizer under Transformers' names: text to words, words to pieces."""

import unicodedata
from collections.abc import Iterable, Mapping

from ownbert.text.bert_rules import CONTINUATION, LONGEST_WORD, WordRules


class BasicTokenizer:
    """Text to words: control characters removed, lower-cased, punctuation split off.

    Args:
        never_split: words between spaces that are left unchanged.
        strip_accents: whether to strip accents; None: the same as ``do_lower_case``.
    """

    def __init__(
        self,
        do_lower_case: bool = True,
        never_split: Iterable[str] | None = None,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        do_split_on_punc: bool = True,
    ):
        self.do_lower_case = do_lower_case
        self.never_split = set(never_split or ())
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        self.do_split_on_punc = do_split_on_punc

    def tokenize(self, text: str, never_split: Iterable[str] | None = None) -> list[str]:
        """The words of ``text``; ``never_split`` contains further words that are not split."""
        from tokenizers import normalizers

        normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.tokenize_chinese_chars,
            strip_accents=self.strip_accents,
            lowercase=self.do_lower_case,
        )
        rules = WordRules(
            normalizer,
            self.never_split.union(never_split or ()),
            lower_first=False,
            split_punctuation=self.do_split_on_punc,
        )
        # The slow tokenizer composes characters (NFC); the fast one, and ours, do not.
        return rules.words(unicodedata.normalize("NFC", rules.clean.normalize_str(text)))


class WordpieceTokenizer:
    """Words to pieces: the longest entries of ``vocab`` from the left, else ``unk_token``."""

    def __init__(
        self, vocab: Mapping[str, int], unk_token: str, max_input_chars_per_word: int = LONGEST_WORD
    ):
        from tokenizers import models

        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._model = models.WordPiece(
            {unk_token: len(vocab), **vocab},
            unk_token=unk_token,
            max_input_chars_per_word=max_input_chars_per_word,
            continuing_subword_prefix=CONTINUATION,
        )

    def tokenize(self, text: str) -> list[str]:
        """The pieces of all whitespace-separated words of ``text``."""
        return [token.value for word in text.split() for token in self._model.tokenize(word)]
