"""Byte-level BPE (RoBERTa) and SentencePiece models (XLM-R, CamemBERT, ALBERT, DeBERTa).

Built from components of the ``tokenizers`` library, with the same ids as Transformers' fast
tokenizers from the same files. ``ownbert.text.folder.build`` adds special tokens and
post-processors.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ownbert.text.folder.sentencepiece import BPE, CONTROL, USER_DEFINED, SentencePieceModel
from ownbert.text.styles import ALBERT, CAMEMBERT, DEBERTA, XLM_ROBERTA, XLNET, Style

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers

SPACE = "▁"
# Penalty for pieces such as "9,", so that "9" and "," are preferred, as in ALBERT's code.
DIGIT_COMMA_PENALTY = 100.0

# First tokens of fairseq's dictionaries, and the number of the model's pieces that they replace.
_FAIRSEQ_FIRST: dict[str, tuple[tuple[tuple[str, float], ...], int]] = {
    XLM_ROBERTA.name: ((("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)), 3),
    CAMEMBERT.name: (
        (
            ("<s>NOTUSED", 0.0),
            ("<pad>", 0.0),
            ("</s>NOTUSED", 0.0),
            ("<unk>", 0.0),
            ("<unk>NOTUSED", -100.0),
        ),
        1,
    ),
}
_FAIRSEQ_UNK = 3


def bpe_backend(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
) -> "tokenizers.Tokenizer":
    """Create a byte-level BPE tokenizer; every byte has a token, so no text is unknown.

    Raises:
        ValueError: a merge refers to a token that is not in the vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    try:
        model = models.BPE(
            vocab=dict(vocabulary),
            merges=list(dict.fromkeys(merges)),
            continuing_subword_prefix="",
            end_of_word_suffix="",
        )
    except Exception as error:  # the library has no narrower exception
        raise ValueError(str(error)) from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def with_prefix_space(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Copy a byte-level ``backend`` so that it prepends a space to texts without one."""
    from tokenizers import Tokenizer, pre_tokenizers

    copy = Tokenizer.from_str(backend.to_str())
    if isinstance(copy.pre_tokenizer, pre_tokenizers.ByteLevel):
        copy.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return copy


def pieces_backend(
    model: SentencePieceModel,
    style: Style,
    *,
    last: tuple[str, ...] = (),
    do_lower_case: bool = True,
    keep_accents: bool = False,
    split_by_punct: bool = False,
) -> "tokenizers.Tokenizer":
    """Create the tokenizer of a SentencePiece model.

    Args:
        style: tokenizer family, which determines the ids and the normaliser.
        last: tokens to append to those of the file.
        do_lower_case: whether to lower-case text (ALBERT, XLNet and DeBERTa).
        keep_accents: whether to keep accents (ALBERT and XLNet).
        split_by_punct: whether to separate punctuation marks (DeBERTa).
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pieces, unk_id = _numbered(model, style)
    pieces += [(token, 0.0) for token in last]
    if model.model_type == BPE:
        ids = {text: index for index, (text, _) in enumerate(pieces)}
        merges = _merges(model, dict(pieces))
        backend = Tokenizer(models.BPE(ids, merges, unk_token=model.unk_piece, fuse_unk=True))
    else:
        backend = Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False))
    backend.add_tokens(
        [
            AddedToken(piece.text, normalized=False, special=piece.kind == CONTROL)
            for piece in model.pieces
            if piece.kind in (CONTROL, USER_DEFINED)
        ]
    )
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.pre_tokenizer = words
    backend.normalizer = _normalizer(model, style, do_lower_case, keep_accents)
    if style is DEBERTA:
        marks = [pre_tokenizers.Punctuation(behavior="isolated")] if split_by_punct else []
        backend.pre_tokenizer = pre_tokenizers.Sequence([*marks, words])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return backend


def _numbered(model: SentencePieceModel, style: Style) -> tuple[list[tuple[str, float]], int]:
    """Text and score of each piece in the order of the ids, and the id of the unknown token."""
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    if style.name in _FAIRSEQ_FIRST:
        first, skip = _FAIRSEQ_FIRST[style.name]
        return [*first, *pieces[skip:], ("<mask>", 0.0)], _FAIRSEQ_UNK
    if style in (ALBERT, XLNET):
        pieces = [
            (text, score - DIGIT_COMMA_PENALTY if _is_digit_comma(text) else score)
            for text, score in pieces
        ]
    return pieces, model.unk_id


def _is_digit_comma(text: str) -> bool:
    return len(text) > 1 and text[-1] == "," and text[-2].isdigit()


def _merges(model: SentencePieceModel, scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges implied by the pieces of a BPE model, highest score first."""
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    merges = []
    for piece, score in scores.items():
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        known = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(score, pair) for pair in known]
    # ``reverse`` preserves the order of equal entries.
    merges.sort(key=lambda entry: (entry[0], len(entry[1][0]), len(entry[1][1])), reverse=True)
    return [pair for _, pair in merges]


def _normalizer(
    model: SentencePieceModel, style: Style, do_lower_case: bool, keep_accents: bool
) -> "normalizers.Normalizer":
    """The rules of the .model file, with the steps that Transformers adds before and after them."""
    from tokenizers import Regex, normalizers

    charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    lower, space = [normalizers.Lowercase()] if do_lower_case else [], " "
    if style in (ALBERT, XLNET):
        quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        accents = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        steps = [*quotes, *accents, *lower, *charsmap]
    elif style is DEBERTA:
        steps = [*lower, normalizers.Strip(), *charsmap]
    else:
        steps, space = [*charsmap, normalizers.Strip(left=False, right=True)], SPACE
    return normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), space)])
