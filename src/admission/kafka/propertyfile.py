# -*- test-case-name: tests.unit.kafka.test_propertyfile -*-
"""
Files of C{name=value} lines as C{java.util.Properties} reads them, in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_NAME = re.compile(r"(?:\\.|[^\\=:\s])*")
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")


def parseProperties(text: str) -> Iterator[tuple[int, str, str]]:
    """
    Read a file's text.  C{#} or C{!} begin a comment line; C{=}, C{:} or white
    space part the name from the value; a line that ends in a backslash goes on
    in the next; backslashes escape as in Java.

    @return: for each property the number of its first line, its name and its
        value, white space around the value removed.
    """
    for number, line in _logicalLines(text):
        match = _NAME.match(line)
        assert match is not None, "the pattern matches nothing as well"
        separator = _SEPARATOR.match(line, match.end())
        assert separator is not None, "the pattern matches nothing as well"
        yield number, _unescape(match.group()), _unescape(line[separator.end() :]).strip()


def _logicalLines(text: str) -> Iterator[tuple[int, str]]:
    # Only these end a line for Java; str.splitlines knows more.
    lines = enumerate(re.split(r"\r\n|\r|\n", text), start=1)
    for number, natural in lines:
        line = natural.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            _, following = next(lines, (0, ""))
            line = line[:-1] + following.lstrip(" \t\f")
        yield number, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code, character = match.groups()
        return chr(int(code, 16)) if code else _ESCAPES.get(character, character)

    return _ESCAPED.sub(replace, text)
