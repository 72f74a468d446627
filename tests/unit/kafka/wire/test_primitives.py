"""Tests for L{admission.kafka.wire.primitives}."""

import io

from hypothesis import given, strategies as st
from kio.serial import writers
from kio.static.primitive import uvarint
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.primitives import (
    CLASSIC,
    FLEXIBLE,
    MAX_TAGS,
    MalformedRequest,
    readSignedVarint,
    readSignedVarlong,
    readUnsignedVarint,
    signedVarint,
    skipTags,
    unsignedVarint,
)
from tests.kit.kioentities import manyExamples


class VarintTests(SynchronousTestCase):
    """Varints are those of Kafka, and bounded."""

    @manyExamples
    @given(st.integers(0, 2**35 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
    def test_comeBack(self, unsigned: int, signed: int, long: int) -> None:
        """Varints without and with a sign, of 32 bits and of 64, are what kio makes of them, and come back."""
        for value, write, made, read in (
            (uvarint(unsigned), writers.write_unsigned_varint, unsignedVarint, readUnsignedVarint),
            (signed, writers.write_signed_varint, signedVarint, readSignedVarint),
            (long, writers.write_signed_varlong, signedVarint, readSignedVarlong),
        ):
            buffer = io.BytesIO()
            write(buffer, value)
            encoded = buffer.getvalue()
            self.assertEqual(made(value), encoded)
            self.assertEqual(read(b"z" + encoded + b"z", 1), (value, 1 + len(encoded)))

    def test_bounds(self) -> None:
        """A varint ends after five bytes, a long one after ten, whatever follows."""
        self.assertEqual(readUnsignedVarint(4 * b"\xff" + b"\x7f", 0), (2**35 - 1, 5))
        self.assertRaises(MalformedRequest, readUnsignedVarint, 100 * b"\xff", 0)
        self.assertRaises(MalformedRequest, readSignedVarint, 100 * b"\xff", 0)
        self.assertRaises(MalformedRequest, readSignedVarlong, 100 * b"\xff", 0)
        self.assertEqual(readSignedVarlong(9 * b"\xff" + b"\x01", 0), (-(2**63), 10))

    def test_endsEarly(self) -> None:
        """A varint without an end raises L{IndexError}, for the caller to name the message."""
        self.assertRaises(IndexError, readUnsignedVarint, b"\xff\xff", 0)


class TagTests(SynchronousTestCase):
    """Tagged fields are stepped over without being understood."""

    def test_skip(self) -> None:
        """The offset behind the last tagged field is found, whatever the tags."""
        self.assertEqual(skipTags(b"z\x00z", 1), 2)
        self.assertEqual(skipTags(b"\x02\x00\x02ab\x81\x01\x00z", 0), 8)

    def test_sizeBeyondTheEnd(self) -> None:
        """The offset lies beyond the end if the last field's size does."""
        self.assertEqual(skipTags(b"\x01\x00\x05ab", 0), 8)

    def test_countBeyondTheEnd(self) -> None:
        """A lie about their number ends with the bytes."""
        self.assertRaises(IndexError, skipTags, b"\x20\x00\x00", 0)

    def test_tooMany(self) -> None:
        """Two bytes make a field, so that no more than a few are stepped over."""
        most = unsignedVarint(MAX_TAGS) + b"\x63\x00" * MAX_TAGS
        self.assertEqual(skipTags(most, 0), len(most))
        for count in (MAX_TAGS + 1, 6_000_000):
            malformed = self.assertRaises(MalformedRequest, skipTags, unsignedVarint(count), 0)
            self.assertEqual(str(malformed), f"there are {count} tagged fields where {MAX_TAGS} may be")


class DialectTests(SynchronousTestCase):
    """Both encodings of lengths say the same."""

    def test_lengths(self) -> None:
        """A length comes back from either encoding, and null as -1."""
        for dialect in CLASSIC, FLEXIBLE:
            for length in -1, 0, 1, 126, 127, 128, 32767:
                encoded = dialect.stringLength(length)
                self.assertEqual(dialect.readStringLength(encoded, 0), (length, len(encoded)))
                encoded = dialect.length(length)
                self.assertEqual(dialect.readLength(encoded, 0), (length, len(encoded)))

    @manyExamples
    @given(st.none() | st.text(max_size=200))
    def test_strings(self, text: str | None) -> None:
        """Strings are what kio makes of them."""
        for dialect, write in (
            (CLASSIC, writers.write_nullable_legacy_string),
            (FLEXIBLE, writers.write_nullable_compact_string),
        ):
            buffer = io.BytesIO()
            write(buffer, text)
            self.assertEqual(dialect.string(text), buffer.getvalue())
