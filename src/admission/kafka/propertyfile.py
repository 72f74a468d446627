# -*- test-case-name: tests.unit.kafka.test_propertyfile -*-
"""
Files of C{name=value} lines as C{java.util.Properties} reads them, in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .property import Given, SettingsError

_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile(r"\r\n|\r|\n")


def readPropertyFile(path: str) -> Iterator[Given]:
    """
    Read a file.  White space at the end of values, which Java keeps, is removed.

    @raise SettingsError: if the file cannot be read.
    """
    # Imported here, because admission doctor has to run where a package is missing.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 at byte {error.start}") from error
    line = 1
    try:
        for each in parse(text):
            if isinstance(each, KeyValue):
                surrogate = _SURROGATE.search(each.key + each.value)
                if surrogate is not None:
                    raise SettingsError(f"{path}:{line}: \\u{ord(surrogate[0]):04x} is half of a character: write both")
                yield Given(each.key, each.value.strip(), f"{path}:{line}")
            line += len(_LINE_END.findall(each.source))
    except InvalidUEscapeError as error:
        raise SettingsError(
            f"{path}:{line}: {error.escape} is not a character: write \\u and four hex digits"
        ) from error
