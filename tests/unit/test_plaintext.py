"""Tests for L{admission.plaintext}."""

from __future__ import annotations

from io import BytesIO, StringIO, TextIOWrapper

from twisted.trial.unittest import SynchronousTestCase

from admission.plaintext import escapeUnencodable, printable, table


class PrintableTests(SynchronousTestCase):
    """What is written is fit for a terminal."""

    def test_printable(self) -> None:
        """Letters of all kinds pass; what a terminal would obey does not."""
        self.assertEqual(printable("na\u00efve \u65e5\u672c"), "na\u00efve \u65e5\u672c")
        self.assertEqual(printable("a\x1b[0m\n\u202eb"), r"a\x1b[0m\n\u202eb")


class EscapeTests(SynchronousTestCase):
    """L{escapeUnencodable} has every name written."""

    def test_escaped(self) -> None:
        """What an encoding lacks is written as an escape, and what it has as it is."""
        written = BytesIO()
        stream = TextIOWrapper(written, "latin-1", write_through=True)
        self.assertRaises(UnicodeEncodeError, stream.write, "\u20ac")
        # Streams of other kinds take any text, or are not there where a program has no terminal.
        escapeUnencodable(stream, StringIO(), None)
        stream.write("\u00fc\u20ac")
        self.assertEqual(written.getvalue(), b"\xfc\\u20ac")


class TableTests(SynchronousTestCase):
    """Rows are written in columns."""

    def test_left(self) -> None:
        """Columns are as wide as their widest cell, and no line ends with a space."""
        self.assertEqual(table([("A", "B"), ("long", "x"), ("", "y")]), "A     B\nlong  x\n      y\n")

    def test_right(self) -> None:
        """Numbers are aligned to the right where that is asked for, and lines are indented."""
        rows = [("", "count", "what"), ("a", "10", "x"), ("long", "7", "")]
        self.assertEqual(table(rows, "<>", indent="  "), "        count  what\n  a        10  x\n  long      7\n")

    def test_printable(self) -> None:
        """Cells are escaped before they are measured."""
        self.assertEqual(table([("\x07", "b"), ("a", "c")]), "\\x07  b\na     c\n")
