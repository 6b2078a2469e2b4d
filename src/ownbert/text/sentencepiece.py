"""SentencePiece's .model file, read without its library.

The file is a protocol buffer (``ModelProto`` of google/sentencepiece,
``sentencepiece_model.proto``). The part of the wire format that is needed: a key is
``field << 3 | type``, and a type is 0 (varint: seven bits per byte, the lowest first), 1 (eight
bytes), 2 (a length and so many bytes) or 5 (four bytes).
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ownbert.errors import InputError
from ownbert.files import refuse_unreadable

UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary.

    Args:
        kind: its type in the protocol buffer, such as ``CONTROL``.
    """

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a .model file.

    Args:
        pieces: in the order of their ids.
        charsmap: the normaliser's compiled table of characters, or empty.
    """

    pieces: tuple[Piece, ...]
    model_type: int
    unk_id: int
    unk_piece: str
    charsmap: bytes


def read_model(path: str | os.PathLike[str]) -> SentencePieceModel:
    """Read a .model file; ``InputError`` for a file that is missing, damaged, empty or none."""
    source = Path(path)
    refuse_unreadable(source)
    try:
        model = _model(source.read_bytes())
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise InputError(f"{source} is damaged or no SentencePiece model") from error
    if not model.pieces:
        raise InputError(f"{source} is no SentencePiece model: it holds no pieces")
    if model.model_type not in (UNIGRAM, BPE):
        kind = MODEL_TYPES.get(model.model_type, str(model.model_type))
        raise InputError(f"{source} is a SentencePiece model of type {kind}, not Unigram or BPE")
    return model


def _model(data: bytes) -> SentencePieceModel:
    pieces = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in _fields(data):
        if field == 1:
            pieces.append(_piece(_as_bytes(value)))
        elif field == 2:
            trainer |= dict(_fields(_as_bytes(value)))
        elif field == 3:
            normalizer |= dict(_fields(_as_bytes(value)))
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=_as_number(trainer.get(3, UNIGRAM)),
        unk_id=_as_number(trainer.get(40, 0)),
        unk_piece=_as_bytes(trainer.get(45, b"<unk>")).decode("utf-8"),
        charsmap=_as_bytes(normalizer.get(2, b"")),
    )


def _piece(data: bytes) -> Piece:
    values = dict(_fields(data))
    (score,) = struct.unpack("<f", _as_bytes(values.get(2, bytes(4))))
    return Piece(_as_bytes(values.get(1, b"")).decode("utf-8"), score, _as_number(values.get(3, 1)))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one message: number, and a number or the bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        field, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield field, value
            continue
        if wire == _BYTES:
            width, place = _varint(data, place)
        elif wire in _WIDTHS:
            width = _WIDTHS[wire]
        else:
            raise ValueError(f"wire type {wire}")
        if place + width > len(data):
            raise ValueError("cut short")
        yield field, data[place : place + width]
        place += width


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("number too long")


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("bytes expected")
    return value


def _as_number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise TypeError("number expected")
    return value - (1 << 64) if value >> 63 else value
