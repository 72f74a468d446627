# -*- test-case-name: tests.unit.kafka.broker.api.test_onceflushed -*-
"""
Answers that wait for the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, TimeoutError
from twisted.python.failure import Failure

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import Refused, errorOf
from admission.kafka.storage.itable import LogRefusal
from admission.operations import waitFor

from ..broker import Answer, Broker, Work

FLUSH_SECONDS: Final = 10.0
"""How long an answer waits for the disk if its request sets no time."""

NO_TRANSACTIONS: Final = ErrorCode.transactional_id_authorization_failed
"""The error that ends a transaction at once; after an invalid request clients ask again until their time is up."""

_OVERDUE: Final = "the change is made, and the disk has not confirmed it in time"


def onceFlushed(
    broker: Broker,
    request: KafkaRequest,
    changed: Sequence[dict[str, Any]],
    response: Mapping[str, Any],
    overdueError: ErrorCode = ErrorCode.request_timed_out,
) -> Answer | Deferred[Answer | Work]:
    """
    Answer with a response that tells of changes, once the disk has them.  If the disk has not confirmed them within the
    C{timeout_ms} of the request, or L{FLUSH_SECONDS} if it has none, the response says so; the changes hold all the
    same.

    @param changed: the parts of it that tell of a change; if the disk does not get the change, they tell of the error
        instead.
    @param overdueError: the error that they tell of if the disk has not confirmed the change in time.
    """
    if not changed:
        return response
    verdicts: list[Exception | None] = []

    def flushed(error: Exception | None) -> None:
        verdicts.append(error)
        broker.purgatory.checkAndComplete(key)

    def told(_: None) -> Answer:
        # A purgatory may end the wait before its time.
        error = verdicts[0] if verdicts else Refused(overdueError, _OVERDUE)
        if error is not None:
            for each in changed:
                each |= errorOf(error) if isinstance(error, LogRefusal) else {"error_code": -1}
        return response

    def overdue(failure: Failure) -> Answer:
        failure.trap(TimeoutError)  # type: ignore[no-untyped-call]
        return told(None)

    key = object()
    broker.log.whenFlushed(flushed)
    waiting: Deferred[Any] = waitFor(broker.purgatory, (key,), lambda: bool(verdicts), _patienceSeconds(request))
    return waiting.addCallbacks(told, overdue)


def _patienceSeconds(request: KafkaRequest) -> float:
    asked: timedelta | None = getattr(request.entity, "timeout", None)
    # librdkafka asks for no time at all by default, and then takes it for granted that all is well.
    return FLUSH_SECONDS if asked is None or asked <= timedelta(0) else asked.total_seconds()
