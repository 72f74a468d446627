# -*- test-case-name: tests.unit.kafka.serving.test_propertyfile -*-
"""
Files of C{name=value} lines as C{java.util.Properties} reads them, in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from admission.boundedfile import readBounded

from ..property import Given, SettingsError

MAX_FILE_BYTES: Final = 64 << 10
"""
The largest file, in bytes: one with every property has less than half of that.  The reactor reads it while nobody is
served.
"""

_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile(r"\r\n|\r|\n")
_COMMENT = re.compile(r"[ \t\f]*[#!]")
_BLANKS = " \t\f"


def readPropertyFile(path: str) -> Iterator[Given]:
    """
    Read a file.  White space at the end of values, which Java keeps, is removed.

    @raise SettingsError: if the file cannot be read.
    """
    # Imported here, because admission doctor has to run where a package is missing.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    try:
        text = readBounded(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"--config: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 at byte {error.start}") from error
    lines = list(_joined(text))
    elements = parse("\n".join(line for _, line in lines))
    for number, _ in lines:
        place = f"{path}:{number}"
        try:
            each = next(elements, None)
        except InvalidUEscapeError as error:
            raise SettingsError(f"{place}: {error.escape} is not a character: write \\u and four hex digits") from error
        if isinstance(each, KeyValue):
            surrogate = _SURROGATE.search(each.key + each.value)
            if surrogate is not None:
                raise SettingsError(f"{place}: \\u{ord(surrogate[0]):04x} is half of a character: write both")
            yield Given(each.key, each.value.strip(), place)


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """
    The lines of a file, each with what continues it, and the number of its first.  The library would look at the whole
    line again for each one that is added.
    """
    lines = enumerate(_LINE_END.split(text), 1)
    for number, line in lines:
        if not _isContinued(line) or _COMMENT.match(line):
            yield number, line
            continue
        parts = []
        while _isContinued(line):
            parts.append(line[:-1])
            line = next(lines, (0, ""))[1].lstrip(_BLANKS)
        whole = "".join([*parts, line]).lstrip(_BLANKS)
        # What begins so in a later line is no comment.
        yield number, f"\\{whole}" if whole.startswith(("#", "!")) else whole


def _isContinued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
