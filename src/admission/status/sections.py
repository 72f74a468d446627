# -*- test-case-name: tests.unit.status.test_document -*-
"""
A server's additions to its status page: sections, health checks, and
values that JSON can hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

LONGEST_NAME = 120
"""How many characters of a client's or group's name are shown; names may have thousands."""

_UNBOUNDED_BYTES = 1 << 62


@frozen
class Section:
    """
    A part of the document that the status page shows.

    @ivar name: its key in the document.
    @ivar read: given the time, in seconds of the server's monotonic clock, returns
        a value for JSON, of bounded size however many clients there are, or L{None}
        to be left out.  Called once a second at most.
    """

    name: str
    read: Callable[[float], Any]


HealthCheck = Callable[[float], Iterable[str]]
"""
Given the time, like L{Section.read}, returns why no client should be sent to the
server now: a sentence for each reason, none if the server is healthy.
"""


def finite(value: float) -> float | None:
    """
    C{value}, or L{None} if JSON cannot hold it.
    """
    return value if math.isfinite(value) else None


def bounded(sizeBytes: int) -> int | None:
    """
    C{sizeBytes}, or L{None} if it stands for no limit.
    """
    return sizeBytes if sizeBytes < _UNBOUNDED_BYTES else None


def shortened(name: str) -> str:
    """
    The first L{LONGEST_NAME} characters of C{name}.
    """
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
