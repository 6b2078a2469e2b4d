"""Reads .model files of SentencePiece without its library.

The file is a protocol buffer (``ModelProto`` of google/sentencepiece,
``sentencepiece_model.proto``).
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from ownbert.exceptions import InputError
from ownbert.files.text_files import refuse_unreadable
from ownbert.protobuf import Reader

UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}


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
