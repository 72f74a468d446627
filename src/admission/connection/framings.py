# -*- test-case-name: tests.unit.connection.test_framing -*-
"""
How frames begin and end: with their size as a number of some bytes, as a varint, or in decimal digits.
"""

from __future__ import annotations

from .framing import FrameRefused

_INTEGER_BYTES = (1, 2, 4, 8)

MAX_NETSTRING_DIGITS = 10

MAX_VARINT_BYTES = 5


class IntPrefix:
    """
    A size of 1, 2, 4 or 8 bytes, big-endian and without a sign, as in Twisted's C{IntNStringReceiver}; then the body.
    """

    suffix = b""

    def __init__(self, prefixBytes: int) -> None:
        """
        @raise ValueError: for another number of bytes.
        """
        if prefixBytes not in _INTEGER_BYTES:
            raise ValueError(f"a size has 1, 2, 4 or 8 bytes, not {prefixBytes!r}")
        self.longestPrefixBytes = prefixBytes

    def parse(self, data: bytes) -> tuple[int, int] | None:
        prefixBytes = self.longestPrefixBytes
        return None if len(data) < prefixBytes else (prefixBytes, int.from_bytes(data, "big"))

    def prefix(self, sizeBytes: int) -> bytes:
        try:
            return sizeBytes.to_bytes(self.longestPrefixBytes, "big")
        except OverflowError:
            raise ValueError(f"{self.longestPrefixBytes} bytes cannot say a size of {sizeBytes}") from None


INT32 = IntPrefix(4)


class VarintPrefix:
    """
    A size of seven bits a byte, the lowest first (LEB128), as before the messages of protocol buffers; then the body.
    """

    suffix = b""
    longestPrefixBytes = MAX_VARINT_BYTES

    def parse(self, data: bytes) -> tuple[int, int] | None:
        sizeBytes = 0
        for index, each in enumerate(data):
            sizeBytes |= (each & 0x7F) << 7 * index
            if each < 0x80:
                return index + 1, sizeBytes
        if len(data) >= MAX_VARINT_BYTES:
            raise FrameRefused(f"a size of more than {MAX_VARINT_BYTES} bytes was announced")
        return None

    def prefix(self, sizeBytes: int) -> bytes:
        if sizeBytes >> 7 * MAX_VARINT_BYTES:
            raise ValueError(f"{MAX_VARINT_BYTES} bytes cannot say a size of {sizeBytes}")
        prefix = bytearray()
        while sizeBytes >= 0x80:
            prefix.append(sizeBytes & 0x7F | 0x80)
            sizeBytes >>= 7
        prefix.append(sizeBytes)
        return bytes(prefix)


class Netstring:
    """
    C{5:hello,} (Bernstein, Netstrings, 1997): a size in decimal digits and a colon, the body, and a comma.
    """

    suffix = b","
    longestPrefixBytes = MAX_NETSTRING_DIGITS + 1

    def parse(self, data: bytes) -> tuple[int, int] | None:
        digits, colon, _ = data.partition(b":")
        if not digits.isdigit() or (digits.startswith(b"0") and digits != b"0"):
            raise FrameRefused(f"a netstring begins with its size, and not with {data!r}")
        if colon:
            return len(digits) + 1, int(digits)
        if len(digits) > MAX_NETSTRING_DIGITS:
            raise FrameRefused(f"a size of more than {MAX_NETSTRING_DIGITS} digits was announced")
        return None

    def prefix(self, sizeBytes: int) -> bytes:
        return b"%d:" % sizeBytes
