"""Sentences are such that an engineer would say them aloud: a part of "Plain English" in CONTRIBUTING.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.kit.checkout import ROOT

# Only up to a full stop: titles may begin so, and questions.  Nothing goes beyond a paragraph or a string.
_UNSAID = re.compile(
    r"""(?:(?<![\w`])(?:(?:Who(?:m|se)?|Nor)\s|[Ww]hom?ever\b(?!")|(?:for|from|than|to|with|;)[\s#]+who\s)"""
    r"""|(?<="{3})\s*(?:That|Those)\s(?:of|that|who)\s)"""
    r"""(?:[^?"\n]|\n(?!\s*\n)|"(?![",)\n]))*?\.(?=["\s)*]|$)"""
)


def _texts() -> Iterator[tuple[str, str]]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        try:
            yield name, (ROOT / name).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            # It was removed, or is no text.
            continue


class EnglishTests(SynchronousTestCase):
    """Code and documents are read."""

    def test_subjects(self) -> None:
        """Only questions begin with "Who", and no docstring with a pronoun for what its reader has yet to learn."""
        if shutil.which("git") is None or not (ROOT / ".git").exists():
            raise SkipTest("git lists the files of a checkout, and is not installed or this is no checkout")
        found = [
            f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())}"
            for name, text in _texts()
            for match in _UNSAID.finditer(text)
        ]
        self.assertEqual(found, [], "\n".join(["", *found]))
