"""
The encodings that several messages share: varints, lengths, tagged fields.

Readers take any bytes-like object that yields integers when indexed, and an
offset; they return the value and the offset after it.  They do not check
against the buffer's end: an offset past it makes the next read raise
L{IndexError} or C{struct.error}, which each caller turns into one
L{MalformedRequest} that names the message.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from attrs import frozen

#: What requests are read from: C{bytes}, C{bytearray} or a C{memoryview} of bytes.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: The exceptions with which reading past a buffer's end announces itself.
PAST_THE_END: Final = (IndexError, struct.error)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_MAX_VARINT_BYTES: Final = 5
_MAX_VARLONG_BYTES: Final = 10

MAX_TAGS: Final = 32
"""How many tagged fields a structure may have; no message of Kafka's has more than six."""

# Made once: every name and list of a response begins with one.
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))

#: The encoding of "no tagged fields follow".
NO_TAGS: Final = b"\x00"


class MalformedRequest(ValueError):
    """
    A request breaks the protocol; its connection cannot be trusted any longer.

    The message is a sentence for the log.
    """


class MalformedResponse(ValueError):
    """
    A response breaks the protocol; its connection cannot be trusted any longer.

    The message is a sentence for the log.
    """


def readUnsignedVarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """
    Read an unsigned varint of at most five bytes.

    @raise MalformedRequest: if a sixth byte would be needed.
    """
    return _readVarint(buffer, offset, _MAX_VARINT_BYTES)


def readSignedVarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """
    Read a zig-zag varint of at most five bytes.

    @raise MalformedRequest: if a sixth byte would be needed.
    """
    value, offset = _readVarint(buffer, offset, _MAX_VARINT_BYTES)
    return (value >> 1) ^ -(value & 1), offset


def readSignedVarlong(buffer: Buffer, offset: int) -> tuple[int, int]:
    """
    Read a zig-zag varint of at most ten bytes.

    @raise MalformedRequest: if an eleventh byte would be needed.
    """
    value, offset = _readVarint(buffer, offset, _MAX_VARLONG_BYTES)
    return (value >> 1) ^ -(value & 1), offset


def _readVarint(buffer: Buffer, offset: int, maxBytes: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * maxBytes, 7):
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise MalformedRequest(f"a varint runs over {maxBytes} bytes")


def unsignedVarint(value: int) -> bytes:
    """
    Encode a non-negative integer, seven bits a byte, lowest first.
    """
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def signedVarint(value: int) -> bytes:
    """
    Encode a signed integer of up to 64 bits, zig-zagged; short for small
    magnitudes.
    """
    return unsignedVarint((value << 1) ^ (value >> 63))


def skipTags(buffer: Buffer, offset: int) -> int:
    """
    Skip the tagged fields at C{offset}, known or not.

    @return: the offset after them, which lies beyond the buffer if a field's
        size does.
    @raise MalformedRequest: if there are more than L{MAX_TAGS}: two bytes make one, and nothing has been counted yet.
    """
    if not buffer[offset]:
        return offset + 1
    count, offset = readUnsignedVarint(buffer, offset)
    if count > MAX_TAGS:
        raise MalformedRequest(f"there are {count} tagged fields where {MAX_TAGS} may be")
    for _ in range(count):
        _, offset = readUnsignedVarint(buffer, offset)
        sizeBytes, offset = readUnsignedVarint(buffer, offset)
        offset += sizeBytes
    return offset


def _skipNothing(buffer: Buffer, offset: int) -> int:
    return offset


def _readCompactLength(buffer: Buffer, offset: int) -> tuple[int, int]:
    value = buffer[offset]
    if value < 0x80:
        return value - 1, offset + 1
    value, offset = readUnsignedVarint(buffer, offset)
    return value - 1, offset


def _readInt16Length(buffer: Buffer, offset: int) -> tuple[int, int]:
    length: int = _INT16.unpack_from(buffer, offset)[0]
    return length, offset + 2


def _readInt32Length(buffer: Buffer, offset: int) -> tuple[int, int]:
    length: int = _INT32.unpack_from(buffer, offset)[0]
    return length, offset + 4


def _compactLength(length: int) -> bytes:
    return _ONE_BYTE[length + 1] if length < 0x7F else unsignedVarint(length + 1)


@frozen
class Dialect:
    """
    One of Kafka's two encodings of lengths and of the ends of structures.

    A length of -1 stands for null, in both directions.

    @ivar readStringLength: the length of a string, in bytes.
    @ivar readLength: the length of bytes or records, or an array's count.
    @ivar skipTags: skip the tagged fields that end a structure.
    @ivar stringLength: encode the length of a string.
    @ivar length: encode the length of bytes or records, or an array's count.
    @ivar tags: the bytes that end a structure without tagged fields.
    """

    readStringLength: Callable[[Buffer, int], tuple[int, int]]
    readLength: Callable[[Buffer, int], tuple[int, int]]
    skipTags: Callable[[Buffer, int], int]
    stringLength: Callable[[int], bytes]
    length: Callable[[int], bytes]
    tags: bytes

    def string(self, text: str | None) -> bytes:
        """
        Encode a string that may be null.

        @raise struct.error: if a classic string has more than 32767 bytes.
        """
        if text is None:
            return self.stringLength(-1)
        encoded = text.encode()
        return self.stringLength(len(encoded)) + encoded


#: Lengths of two and four bytes, no tagged fields: every API's older versions.
CLASSIC: Final = Dialect(_readInt16Length, _readInt32Length, _skipNothing, _INT16.pack, _INT32.pack, b"")

#: Varint lengths off by one and tagged fields (KIP-482): the flexible versions.
FLEXIBLE: Final = Dialect(_readCompactLength, _readCompactLength, skipTags, _compactLength, _compactLength, NO_TAGS)


def sizeOf(parts: Sequence[bytes]) -> int:
    """
    The total size of C{parts}, in bytes.
    """
    return sum(map(len, parts))
