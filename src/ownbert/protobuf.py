"""The wire format of protocol buffers, read without their library.

Source: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator

# Kinds of fields: a number; as many bytes as a number before them says; and eight or four bytes.
_VARINT, _BYTES, _WIDTHS = 0, 2, {1: 8, 5: 4}


class DamagedError(ValueError):
    """What is wrong with the bytes, without the name of their file."""


class Reader:
    """Bytes from the front, none beyond the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def take(self, count: int) -> bytes:
        left = len(self.data) - self.at
        if count > left:
            raise DamagedError(f"{count:,} bytes are to follow, and {left:,} do")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        """A whole number of at most 64 bits, seven in each byte, the lowest first."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (2**64 - 1)
        raise DamagedError("a number does not end")

    def fields(self) -> Iterator[tuple[int, int | bytes]]:
        """The fields of a message: their numbers, and a number or the bytes."""
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
                raise DamagedError(f"a field is of kind {kind}")
