"""Subword tokenizers built from components of the ``tokenizers`` library (byte-level BPE,
SentencePiece), and SentencePiece's .model files, read without its library.

Such a file is a protocol buffer (``ModelProto`` of google/sentencepiece,
``sentencepiece_model.proto``).
"""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ownbert.exceptions import InputError
from ownbert.files.text_files import refuse_unreadable
from ownbert.protobuf import Reader
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
UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}


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


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary: its score is a log-probability, or for BPE the priority, and its
    kind the type in the protocol buffer, such as ``CONTROL``."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a .model file.

    Args:
        pieces: pieces in the order of their ids.
        model_type: ``UNIGRAM`` or ``BPE``.
        charsmap: compiled character map of the normaliser; empty if there is none.
    """

    pieces: tuple[Piece, ...]
    model_type: int
    unk_id: int
    unk_piece: str
    charsmap: bytes


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


def read_model(path: str | os.PathLike[str]) -> SentencePieceModel:
    """Read a .model file.

    Raises:
        InputError: the file is missing, damaged, empty or not a supported model.
    """
    source = Path(path)
    refuse_unreadable(source)
    try:
        model = _model(source.read_bytes())
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise InputError("{source} is damaged or not a SentencePiece model", source) from error
    if not model.pieces:
        raise InputError("{source} is not a SentencePiece model: it contains no pieces", source)
    if model.model_type not in (UNIGRAM, BPE):
        kind = MODEL_TYPES.get(model.model_type, str(model.model_type))
        raise InputError(
            "{source} is a SentencePiece model of type {kind}, not Unigram or BPE", source, kind
        )
    return model


def _model(data: bytes) -> SentencePieceModel:
    pieces = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in Reader(data).fields():
        if field == 1:
            pieces.append(_piece(_as_bytes(value)))
        elif field == 2:
            trainer |= dict(Reader(_as_bytes(value)).fields())
        elif field == 3:
            normalizer |= dict(Reader(_as_bytes(value)).fields())
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=_as_number(trainer.get(3, UNIGRAM)),
        unk_id=_as_number(trainer.get(40, 0)),
        unk_piece=_as_bytes(trainer.get(45, b"<unk>")).decode("utf-8"),
        charsmap=_as_bytes(normalizer.get(2, b"")),
    )


def _piece(data: bytes) -> Piece:
    values = dict(Reader(data).fields())
    (score,) = struct.unpack("<f", _as_bytes(values.get(2, bytes(4))))
    return Piece(_as_bytes(values.get(1, b"")).decode("utf-8"), score, _as_number(values.get(3, 1)))


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("bytes expected")
    return value


def _as_number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise TypeError("number expected")
    return value - (1 << 64) if value >> 63 else value
