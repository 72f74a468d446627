"""Tests for L{admission.names}."""

from __future__ import annotations

from sys import getsizeof

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.names import MAX_NAME_BYTES, boundedName


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
