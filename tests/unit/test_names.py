"""Tests for L{admission.names}."""

from __future__ import annotations

from sys import getsizeof

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.names import MAX_IDENTITY_BYTES, MAX_NAME_BYTES, IdentityNumbers, boundedName, canonicalAddress


class BoundedNameTests(SynchronousTestCase):
    """L{boundedName} decides how much of a client's name is kept."""

    @given(st.text(alphabet="aé€😀", max_size=80))
    def test_short(self, name: str) -> None:
        """A name that fits stays as it is, and any other fits afterwards, in what a recording has room for."""
        bounded = boundedName(name)
        fits = len(name.encode()) <= MAX_NAME_BYTES
        self.assertEqual(bounded == name, fits)
        self.assertLessEqual(len(bounded.encode()), MAX_NAME_BYTES)
        self.assertEqual(boundedName(bounded), bounded)

    def test_long(self) -> None:
        """
        The longest name that a client can send takes little, begins as it did, and differs from
        others that begin so.
        """
        for character in ("a", "é", "€", "😀"):
            name = character * (32767 // len(character.encode()))
            bounded = boundedName(name)
            self.assertLess(getsizeof(bounded), 1200)
            self.assertTrue(bounded.startswith(character * 40), bounded)
            others = {boundedName(name[:-1]), boundedName(name + "a"), boundedName(f"{name[:-1]}b"), bounded}
            self.assertEqual(len(others), 4)

    def test_surrogates(self) -> None:
        """What cannot be encoded can be a name all the same."""
        self.assertLessEqual(len(boundedName("\udcff" * 1000).encode("utf-8", "surrogatepass")), MAX_NAME_BYTES)


class CanonicalAddressTests(SynchronousTestCase):
    """L{canonicalAddress} writes addresses as connections have them."""

    def test_written(self) -> None:
        """The shortest form; IPv4 in IPv6 is IPv4; a link keeps its name; what is no address is refused."""
        for written, canonical in (
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("::FFFF:c000:201", "192.0.2.1"),
            ("2001:DB8:0::1", "2001:db8::1"),
            ("::192.0.2.1", "::192.0.2.1"),
            ("FE80:0::1%eth0", "fe80::1%eth0"),
        ):
            self.assertEqual(canonicalAddress(written), canonical)
        for written in ("", "localhost", "192.0.2.1:80", "[::1]", "192.0.2.0/24"):
            self.assertRaises(ValueError, canonicalAddress, written)


class IdentityNumbersTests(SynchronousTestCase):
    """What is kept of identities."""

    def test_numbers(self) -> None:
        """Numbers stay what they are."""
        self.assertEqual(IdentityNumbers()([0, 7, 2**63 - 1]), (0, 7, 2**63 - 1))

    @given(st.lists(st.binary(min_size=1, max_size=MAX_IDENTITY_BYTES), min_size=2, max_size=4, unique=True))
    def test_bytes(self, identities: list[bytes]) -> None:
        """Bytes become numbers that differ where they do, that a recording has room for, and that the key decides."""
        numbers = IdentityNumbers(b"k" * 32)(identities)
        self.assertEqual(len(set(numbers)), len(identities))
        self.assertTrue(all(0 <= each < 2**63 for each in numbers))
        self.assertEqual(IdentityNumbers(b"k" * 32)(identities), numbers)
        self.assertNotEqual(IdentityNumbers()(identities), numbers)

    def test_mistakes(self) -> None:
        """What is neither, or out of range, is refused."""
        for identity, kind in (("text", TypeError), (True, TypeError), (-1, ValueError), (2**63, ValueError)):
            self.assertRaises(kind, IdentityNumbers(), [identity])
        for identity in (b"", bytes(MAX_IDENTITY_BYTES + 1)):
            self.assertRaises(ValueError, IdentityNumbers(), [identity])
