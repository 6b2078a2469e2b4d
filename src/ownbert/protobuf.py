"""A reader of the protocol buffer wire format, without the protobuf library.

Source: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator

from ownbert.language.messages import Message

# Wire types: a varint; length-prefixed bytes; and fixed widths of eight or four bytes.
_VARINT, _BYTES, _WIDTHS = 0, 2, {1: 8, 5: 4}


class DamagedError(ValueError):
    """Malformed bytes; the message does not name the file."""


class Reader:
    """Sequential reads from bytes, with bounds checks."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def take(self, count: int) -> bytes:
        left = len(self.data) - self.at
        if count > left:
            raise DamagedError(
                Message("{count:,} bytes should follow, but {left:,} do", count, left)
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        """Read an unsigned integer of at most 64 bits, seven per byte, lowest first."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (2**64 - 1)
        raise DamagedError("a number does not end")

    def fields(self) -> Iterator[tuple[int, int | bytes]]:
        """Yield the fields of a message: field number, and integer or bytes."""
        while self.more:
            tag = self.varint()
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                yield number, self.varint()
            elif kind == _BYTES:
                yield number, self.take(self.varint())
            elif kind in _WIDTHS:
                yield number, self.take(_WIDTHS[kind])
            else:
                raise DamagedError(Message("a field has the unknown type {kind}", kind))
