# -*- test-case-name: tests.unit.test_names -*-
"""
Names that clients choose, and that a server keeps.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

MAX_NAME_BYTES: Final = 240
"""The longest name that is kept as it is, in UTF-8; what a recording has room for."""

_CERTAINLY_SHORT = MAX_NAME_BYTES // 4
_DIGEST_BYTES = 16


def boundedName(name: str) -> str:
    """
    What to keep of a name, so that a client's choice does not decide how much
    that is.  A longer name is represented by its beginning and a digest of all
    of it, so that two different ones stay different.
    """
    if len(name) <= _CERTAINLY_SHORT or (name.isascii() and len(name) <= MAX_NAME_BYTES):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_NAME_BYTES:
        return name
    mark = f"...{blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()}"
    return raw[: MAX_NAME_BYTES - len(mark)].decode("utf-8", "ignore") + mark
