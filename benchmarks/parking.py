"""
Ways in which requests can wait for their completion or their timeout, each doing as little as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, Protocol

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from admission.clock import MonotonicClock
from admission.interfaces import IPurgatory
from admission.operations import DelayedOperation
from admission_plugins.purgatory import CallLaterPurgatory, WheelPurgatory
from admission_plugins.wheel import TimingWheel

from .loops import AsyncioLoop, EpollLoop, Loop

TIMEOUT_SECONDS = 0.2

Keys = Collection[Hashable]
Expired = Callable[[float], object]
"""What to call with its deadline when a request has timed out."""


class Park(Protocol):
    """
    Make a request that waits, and return what C{complete} wants.
    """

    def __call__(self, number: int, data: bytes, keys: Keys, deadline: float, /) -> Any: ...


@frozen
class Parking:
    """
    A way to wait.

    @ivar loop: the loop that it needs.
    @ivar park: makes a request wait.
    @ivar complete: completes a request, unless it has timed out.
    @ivar timesOut: whether requests time out at all.
    """

    loop: Loop
    park: Park
    complete: Callable[[Any], object]
    timesOut: bool = True


def nothing(expired: Expired) -> Parking:
    """
    Nothing waits: what remains is the cost of the measurement.
    """

    def park(number: int, data: bytes, keys: Keys, deadline: float) -> int:
        return number

    def complete(number: int) -> None:
        pass

    return Parking(EpollLoop(), park, complete, timesOut=False)


def inDictionary(loop: EpollLoop | AsyncioLoop, expired: Expired) -> Parking:
    """
    A timer of the loop for each request, and a dictionary of those that wait.  Nobody could find them by their keys.
    """
    callLater: Callable[..., Any] = loop.callLater
    waiting: dict[int, tuple[bytes, Any]] = {}

    def park(number: int, data: bytes, keys: Keys, deadline: float) -> int:
        waiting[number] = data, callLater(TIMEOUT_SECONDS, expire, number, deadline)
        return number

    def expire(number: int, deadline: float) -> None:
        del waiting[number]
        expired(deadline)

    def complete(number: int) -> None:
        waiter = waiting.pop(number, None)
        if waiter is not None:
            waiter[1].cancel()

    return Parking(loop, park, complete)


def callLater(expired: Expired) -> Parking:
    """
    C{reactor.callLater} for each request.
    """
    return inDictionary(EpollLoop(), expired)


def asyncioCallLater(expired: Expired) -> Parking:
    """
    C{loop.call_later} for each request.
    """
    return inDictionary(AsyncioLoop(), expired)


def addTimeout(expired: Expired) -> Parking:
    """
    A L{Deferred} with a timeout for each request, and a dictionary of those that wait.
    """
    loop = EpollLoop()
    clock = IReactorTime(loop.reactor)
    waiting: dict[int, tuple[bytes, Deferred[None]]] = {}

    def park(number: int, data: bytes, keys: Keys, deadline: float) -> int:
        deferred: Deferred[None] = Deferred()
        deferred.addTimeout(TIMEOUT_SECONDS, clock).addErrback(expire, number, deadline)
        waiting[number] = data, deferred
        return number

    def expire(failure: Failure, number: int, deadline: float) -> None:
        del waiting[number]
        expired(deadline)

    def complete(number: int) -> None:
        waiter = waiting.pop(number, None)
        if waiter is not None:
            waiter[1].callback(None)

    return Parking(loop, park, complete)


def inPurgatory(purgatoryOn: Callable[[IReactorTime], IPurgatory], expired: Expired) -> Parking:
    """
    An operation for each request, watched under its keys.
    """
    loop = EpollLoop()
    watch = purgatoryOn(MonotonicClock(IReactorTime(loop.reactor))).tryCompleteElseWatch

    class Request(DelayedOperation):
        __slots__ = ("data", "deadline")

        def __init__(self, data: bytes, deadline: float) -> None:
            super().__init__(TIMEOUT_SECONDS)
            self.data = data
            self.deadline = deadline

        def onExpiration(self) -> None:
            expired(self.deadline)

    def park(number: int, data: bytes, keys: Keys, deadline: float) -> Request:
        request = Request(data, deadline)
        watch(request, keys)
        return request

    return Parking(loop, park, Request.forceComplete)


def wheelPurgatory(expired: Expired) -> Parking:
    """
    The default purgatory.
    """
    return inPurgatory(lambda clock: WheelPurgatory(TimingWheel(clock)), expired)


def callLaterPurgatory(expired: Expired) -> Parking:
    """
    The plain one.
    """
    return inPurgatory(CallLaterPurgatory, expired)


NOTHING = "nothing"
CALL_LATER = "callLater"
ADD_TIMEOUT = "addTimeout"
ASYNCIO = "asyncio"

WAYS: dict[str, Callable[[Expired], Parking]] = {
    NOTHING: nothing,
    CALL_LATER: callLater,
    ADD_TIMEOUT: addTimeout,
    ASYNCIO: asyncioCallLater,
    "CallLaterPurgatory": callLaterPurgatory,
    "WheelPurgatory": wheelPurgatory,
}
