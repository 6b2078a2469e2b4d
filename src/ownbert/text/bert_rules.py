"""BERT's rules and WordPiece, assembled from the parts of the ``tokenizers`` library.

Clean-up, Chinese characters separated, lower case, accents stripped, punctuation separated, then
the longest pieces of the vocabulary from the left (google-research/bert ``tokenization.py``).
"""

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import NormalizedString, PreTokenizedString, normalizers

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
# Google's limit: a longer word is [UNK] regardless of its pieces.
LONGEST_WORD = 100
# Replaces a word that is kept whole and is in no vocabulary: it must become the unknown token and
# not pieces. A code point that Unicode will never assign to a character.
_NONCHARACTER = "\U0010ffff"


def wordpiece_backend(
    vocabulary: Sequence[str],
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> "tokenizers.Tokenizer":
    """A tokenizer with BERT's rules and special tokens.

    Args:
        vocabulary: the tokens in the order of their ids.
        do_lower_case, tokenize_chinese_chars: as in Transformers' BertTokenizer.
        strip_accents: None follows ``do_lower_case``, as in Google's code.
    """
    backend = wordpiece_rules(
        {token: index for index, token in enumerate(vocabulary)},
        do_lower_case=do_lower_case,
        strip_accents=strip_accents,
        tokenize_chinese_chars=tokenize_chinese_chars,
    )
    return add_special_tokens(backend)


def wordpiece_rules(
    ids: Mapping[str, int],
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    do_basic_tokenize: bool = True,
    unk_token: str = UNK,
) -> "tokenizers.Tokenizer":
    """``wordpiece_backend`` for any ids and without special tokens.

    Args:
        ids: the id of each token.
        do_lower_case, strip_accents, tokenize_chinese_chars: as for ``wordpiece_backend``.
        do_basic_tokenize: if false, text is split at whitespace only, and nothing is cleaned up.
        unk_token: the token for unknown words.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = models.WordPiece(
        dict(ids),
        unk_token=unk_token,
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=CONTINUATION,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenize_chinese_chars,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend if do_basic_tokenize else split_at_whitespace(backend)


def split_at_whitespace(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """``backend`` without BERT's rules: words are separated by whitespace and not changed."""
    from tokenizers import normalizers, pre_tokenizers

    backend.normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def add_special_tokens(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Mark BERT's special tokens, and put [CLS] and [SEP] around one text or two."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    present = [token for token in SPECIAL_TOKENS if backend.token_to_id(token) is not None]
    backend.add_special_tokens([AddedToken(token, special=True) for token in present])
    if CLS in present and SEP in present:
        backend.post_processor = TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (CLS, SEP)],
        )
    return backend


def keep_whole(backend: "tokenizers.Tokenizer", words: Iterable[str]) -> "tokenizers.Tokenizer":
    """A copy of a WordPiece ``backend`` that leaves ``words`` as they are (``never_split``).

    Such a word between whitespace keeps its accents and punctuation, and it is one token; so is a
    word that equals one of them after the rules were applied. One that is not in the vocabulary is
    unknown. Lower-casing comes first, as in Transformers, so that words with capitals are useful to
    cased vocabularies only. The copy runs Python code for every text and cannot be saved.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    copy = Tokenizer.from_str(backend.to_str())
    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return copy
    whole = frozenset(words)
    unknown = frozenset(word for word in whole if backend.token_to_id(word) is None)
    copy.normalizer = normalizers.Sequence([])
    copy.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(WordRules(normalizer, whole, unknown))
    return copy


def _strips_accents(normalizer: "normalizers.BertNormalizer") -> bool:
    strips = normalizer.strip_accents
    return normalizer.lowercase if strips is None else strips


class WordRules:
    """BERT's rules except for some words, as a pre-tokenizer of the ``tokenizers`` library.

    Args:
        normalizer: BERT's rules.
        whole: the words that are kept.
        unknown: those of them that are not in the vocabulary.
        lower_first: whether words are lower-cased, if at all, before they are compared with
            ``whole``.
        split_punctuation: whether punctuation is separated.
    """

    def __init__(
        self,
        normalizer: "normalizers.BertNormalizer",
        whole: Collection[str],
        unknown: Collection[str] = (),
        *,
        lower_first: bool = True,
        split_punctuation: bool = True,
    ):
        from tokenizers import normalizers, pre_tokenizers

        self.whole, self.unknown = whole, unknown
        self.clean = normalizers.BertNormalizer(
            clean_text=normalizer.clean_text,
            handle_chinese_chars=normalizer.handle_chinese_chars,
            strip_accents=False,
            lowercase=normalizer.lowercase and lower_first,
        )
        self.fold = normalizers.BertNormalizer(
            clean_text=False,
            handle_chinese_chars=False,
            # As the library decides where it is not set.
            strip_accents=_strips_accents(normalizer),
            lowercase=normalizer.lowercase and not lower_first,
        )
        self.whitespace = pre_tokenizers.WhitespaceSplit()
        self.parts = pre_tokenizers.BertPreTokenizer() if split_punctuation else self.whitespace

    def pre_tokenize(self, text: "PreTokenizedString") -> None:
        text.normalize(self.clean.normalize)
        text.split(self._words)

    def words(self, text: str) -> list[str]:
        """The words of ``text``, before they are split into pieces."""
        from tokenizers import PreTokenizedString

        found = PreTokenizedString(text)
        self.pre_tokenize(found)
        return [word for word, _, _ in found.get_splits() if word]

    def _words(self, _: int, text: "NormalizedString") -> list["NormalizedString"]:
        found = []
        for _word, place in self.whitespace.pre_tokenize_str(text.normalized):
            word = text.slice(place)
            if unicodedata.normalize("NFC", word.normalized) in self.whole:
                word.nfc()
                found.append(word)
                continue
            self.fold.normalize(word)
            parts = self.parts.pre_tokenize_str(word.normalized)
            found += [word.slice(part) for _part, part in parts]
        for word in found:
            if word.normalized in self.unknown:
                # One for each character, so that the offsets stay those of the word.
                word.map(lambda _: _NONCHARACTER)
        return found
