# -*- test-case-name: tests.unit.kafka.broker.api.test_refusals -*-
"""
How the APIs report refusals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from ..broker import Answer, Work
from ..log.interface import ILog, LogRefusal

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


def onceFlushed(
    log: ILog, changed: Sequence[dict[str, Any]], response: Mapping[str, Any]
) -> Answer | Deferred[Answer | Work]:
    """
    A response that tells of changes, once the disk has them.

    @param changed: its parts that tell of a change; if the disk does not get it, they tell of the error instead.
    """
    if not changed:
        return response
    answer: Deferred[Answer | Work] = Deferred()

    def flushed(error: Exception | None) -> None:
        if error is not None:
            for each in changed:
                each |= errorOf(error) if isinstance(error, LogRefusal) else {"error_code": -1}
        answer.callback(response)

    log.whenFlushed(flushed)
    return answer


def repeated(named: Iterable[T]) -> set[T]:
    """
    The elements that a request names more than once.  An element is small and
    its answer may be large, so no element is answered twice.
    """
    return {each for each, count in Counter(named).items() if count > 1}
