"""Tests for L{admission.kafka.serving.propertyfile}."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.property import Given, SettingsError
from admission.kafka.serving.propertyfile import readPropertyFile


class ReadPropertyFileTests(SynchronousTestCase):
    """L{readPropertyFile} reads what C{java.util.Properties} reads."""

    def setUp(self) -> None:
        self.path = self.mktemp()

    def assertReads(self, text: str, *expected: tuple[int, str, str]) -> None:
        """Check what C{text} is read as: line, name and value."""
        Path(self.path).write_bytes(text.encode())
        read = [Given(name, value, f"{self.path}:{line}") for line, name, value in expected]
        self.assertEqual(list(readPropertyFile(self.path)), read)

    def test_separators(self) -> None:
        """An equals sign, a colon or white space parts name and value; white space around a value does not count."""
        self.assertReads(
            "a=1\nb:2\nc 3\n d = 4 \nf==6\ng=h:i\n",
            *((1, "a", "1"), (2, "b", "2"), (3, "c", "3"), (4, "d", "4"), (5, "f", "=6"), (6, "g", "h:i")),
        )

    def test_lines(self) -> None:
        """Places count natural lines: with comments, blank lines, and lines that continue the one before."""
        self.assertReads(
            "# x=1\n\n  ! y=2 \\\na=1,\\\n   2 # no comment\r\nb=\\\\\rc=3\x85\x0b4\nd=\\",
            *((4, "a", "1,2 # no comment"), (6, "b", "\\"), (7, "c", "3\x85\x0b4"), (8, "d", "")),
        )

    def test_continued(self) -> None:
        """A line that is continued is one from its first, whatever the others begin with; so is one of 20,000."""
        self.assertReads(
            "\\\n \\\n#x=1\n\\\n\na=b\\\\\\\n\\\n !c\n# d\\\ne=\\\\", (1, "#x", "1"), (6, "a", "b\\!c"), (10, "e", "\\")
        )
        self.assertReads(
            "a=b\n" + "c\\\n" * 20_000 + "d=e\nf=g\n", (1, "a", "b"), (2, "c" * 20_000 + "d", "e"), (20_003, "f", "g")
        )

    def test_text(self) -> None:
        """The file is in UTF-8, with a byte order mark or without, and may have Java's escapes."""
        self.assertReads("\ufeffname=Z\u00fcrich", (1, "name", "Z\u00fcrich"))
        self.assertReads("a\\ b\\=c = x\\ty\\u00e9\\z\\:\\ud83d\\ude00", (1, "a b=c", "x\ty\u00e9z:\U0001f600"))

    def test_noSuchFile(self) -> None:
        """What may never end is refused before it is read: the reactor reads it when SIGHUP says so."""
        os.mkfifo(self.path)
        for path, reason in ((self.path, "it is not a regular file"), ("/dev/zero", "it is not a regular file")):
            error = self.assertRaises(SettingsError, list, readPropertyFile(path))
            self.assertEqual(str(error), f"--config: {path} cannot be read: {reason}")
        os.unlink(self.path)
        Path(self.path).write_bytes(b"a=" + b"x" * (8 << 20))
        error = self.assertRaises(SettingsError, list, readPropertyFile(self.path))
        self.assertEqual(str(error), f"--config: {self.path} cannot be read: it has more than 64KiB")

    def test_refused(self) -> None:
        """A file that cannot be read is named, with the place of the mistake."""
        for content, message in [
            (None, " cannot be read: No such file or directory"),
            (b"a=\xff", " is not UTF-8 at byte 2"),
            (b"a=1\n#\nb=\\u12", ":3: \\u12 is not a character: write \\u and four hex digits"),
            (b"a=1\nb=\\ude00x", ":2: \\ude00 is half of a character: write both"),
            (b"a\\ud83d=1", ":1: \\ud83d is half of a character: write both"),
        ]:
            if content is not None:
                Path(self.path).write_bytes(content)
            error = self.assertRaises(SettingsError, list, readPropertyFile(self.path))
            self.assertEqual(str(error).removeprefix("--config: "), self.path + message)


class ImportTests(SynchronousTestCase):
    """What importing the module takes."""

    def test_withoutLibrary(self) -> None:
        """C{admission doctor} can tell that the library is missing: only reading a file needs it."""
        program = "import sys; sys.modules['javaproperties'] = None; import admission.commands.kafka.doctorcommand"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
