"""
Tests for L{admission.kafka.propertyfile}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.propertyfile import parseProperties


class ParsePropertiesTests(SynchronousTestCase):
    """
    L{parseProperties} reads what C{java.util.Properties} reads.
    """

    def assertReads(self, text: str, *expected: tuple[int, str, str]) -> None:
        """
        Check what C{text} is read as.
        """
        self.assertEqual(list(parseProperties(text)), list(expected))

    def test_separators(self) -> None:
        """
        An equals sign, a colon or white space parts name and value; only the
        first does.
        """
        self.assertReads(
            "a=1\nb:2\nc 3\n d = 4 \ne\t:\t5\nf==6\ng=h:i\n",
            (1, "a", "1"),
            (2, "b", "2"),
            (3, "c", "3"),
            (4, "d", "4"),
            (5, "e", "5"),
            (6, "f", "=6"),
            (7, "g", "h:i"),
        )

    def test_noValue(self) -> None:
        """
        A name alone has an empty value.
        """
        self.assertReads("a\nb=\n", (1, "a", ""), (2, "b", ""))

    def test_commentsAndBlanks(self) -> None:
        """
        Blank lines and comments count as lines and mean nothing; a comment
        does not go on in the next line.
        """
        self.assertReads("# x=1\n\n  ! y=2 \\\na=1 # not a comment\n", (4, "a", "1 # not a comment"))

    def test_continuation(self) -> None:
        """
        An odd number of backslashes at the end goes on in the next line
        without its leading white space; the number is that of the first line.
        """
        self.assertReads("a=1,\\\n   2,\\\n\t3\nb=\\\\\nc=1", (1, "a", "1,2,3"), (4, "b", "\\"), (5, "c", "1"))

    def test_continuationAtEnd(self) -> None:
        """
        A backslash at the very end continues with nothing.
        """
        self.assertReads("a=1\\", (1, "a", "1"))

    def test_escapes(self) -> None:
        """
        Escapes work in names and in values; an unknown one is the character.
        """
        self.assertReads("a\\ b\\=c = x\\ty\\u00e9\\z\\:", (1, "a b=c", "x\ty\u00e9z:"))

    def test_lineEnds(self) -> None:
        """
        All three line ends of Java count, and no others.
        """
        self.assertReads("a=1\r\nb=2\rc=3\x85\x0b4\n", (1, "a", "1"), (2, "b", "2"), (3, "c", "3\x85\x0b4"))

    def test_unicode(self) -> None:
        """
        Text beyond ASCII needs no escape.
        """
        self.assertReads("name=Zürich", (1, "name", "Zürich"))
