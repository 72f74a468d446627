# -*- test-case-name: tests.unit.kafka.broker.api.test_refusals -*-
"""
How the APIs report refusals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from ..log.interface import LogRefusal

_LONGEST_REASON = 1000
"""
In characters.  Reasons quote what the client sent, and classic versions have
no room for more than 32767 bytes.
"""

T = TypeVar("T", bound=Hashable)


class Refused(LogRefusal):
    """
    The broker refuses a request before it asks the log.
    """

    def __init__(self, errorCode: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.errorCode = errorCode.value  # type: ignore[misc]


def reasonOf(refusal: Exception) -> str:
    """
    The message for a client, short enough for every response.
    """
    reason = str(refusal)
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def errorOf(refusal: LogRefusal) -> dict[str, Any]:
    """
    The error fields of a response.
    """
    return {"error_code": refusal.errorCode, "error_message": reasonOf(refusal)}


def repeated(named: Iterable[T]) -> set[T]:
    """
    The elements that a request names more than once.  An element is small and
    its answer may be large, so no element is answered twice.
    """
    return {each for each, count in Counter(named).items() if count > 1}
