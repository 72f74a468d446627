# -*- test-case-name: tests.unit.kafka.broker.api.test_onceflushed -*-
"""
How requests are refused in Kafka's answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from ..storage.itable import LogRefusal
from ..wire.codec import Rows
from .kafkarequest import KafkaRequest

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


def refusedProducerId(request: KafkaRequest) -> Mapping[str, Any]:
    """
    The answer to InitProducerId that a policy has refused.
    """
    return {"error_code": ErrorCode.throttling_quota_exceeded.value, "producer_id": -1, "producer_epoch": -1}


def repeated(named: Iterable[T]) -> set[T]:
    """
    The elements that a request names more than once.  An element is small and
    its answer may be large, so no element is answered twice.
    """
    return {each for each, count in Counter(named).items() if count > 1}


def refusedEach(things: Iterable[T], describe: Callable[[T], dict[str, Any]], reason: str) -> Rows[T]:
    """
    The rows of an answer that refuses all C{things}.  The first has the reason as well, and the others have not: an
    answer must not grow with the length of the reason for each part.
    """
    listed = list(things)

    def explained(thing: T) -> dict[str, Any]:
        described = describe(thing)
        if thing is listed[0]:
            described["error_message"] = reason
        return described

    return Rows(listed, explained)
