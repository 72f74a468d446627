# -*- test-case-name: tests.contracts.test_usageexchangecontract -*-
"""
Servers that tell each other what clients take, without a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from ..interfaces import IUsageExchange


@define
class ScriptedLine:
    """
    What all servers write to and read, in one order.  It may be told at any time to be slow, to lose messages, to
    deliver them twice, or to carry none.

    @ivar clock: where messages wait.
    @ivar tripSeconds: called for each message: how long it takes, at least; none overtakes another.
    @ivar copies: called for each message: how often it arrives.
    @ivar isCut: whether nothing gets through.
    @ivar kept: the messages that servers which start later are told first, each by its key, or by a number.
    @ivar ends: those that have started and not stopped.
    """

    clock: IReactorTime
    tripSeconds: Callable[[], float] = lambda: 0.03
    copies: Callable[[], int] = lambda: 1
    isCut: bool = False
    kept: dict[str | int, bytes] = field(factory=dict)
    ends: list[ScriptedExchange] = field(factory=list)
    _underWay: deque[tuple[bytes, bool, str | None]] = field(factory=deque)
    _lastSeconds: float = 0.0

    def send(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        """
        Have all servers hear a message later, unless nothing gets through.
        """
        if self.isCut:
            return
        for _ in range(self.copies()):
            now = self.clock.seconds()
            self._lastSeconds = max(self._lastSeconds, now + self.tripSeconds())
            self._underWay.append((message, isKept, key))
            self.clock.callLater(self._lastSeconds - now, self._arrived)

    def _arrived(self) -> None:
        message, isKept, key = self._underWay.popleft()
        if isKept:
            place = len(self.kept) if key is None else key
            # The last of its key comes where it was sent.
            self.kept.pop(place, None)
            self.kept[place] = message
        for end in list(self.ends):
            end.hear(message, False)


@implementer(IUsageExchange)
class ScriptedExchange:
    """
    One server's end of a L{ScriptedLine}.
    """

    def __init__(self, line: ScriptedLine, intervalSeconds: float = 0.1) -> None:
        self.intervalSeconds = intervalSeconds
        self.line = line
        self._deliver: Callable[[bytes, bool], object] | None = None

    def hear(self, message: bytes, isOld: bool) -> None:
        """
        Deliver a message unless this end is closed.
        """
        if self._deliver is not None:
            self._deliver(message, isOld)

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        self._deliver = deliver
        for message in list(self.line.kept.values()):
            self.hear(message, True)
        if self._deliver is not None:
            self.line.ends.append(self)

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        if self._deliver is not None:
            self.line.send(message, isKept, key)

    def stop(self) -> Deferred[None]:
        self._deliver = None
        if self in self.line.ends:
            self.line.ends.remove(self)
        return succeed(None)

    def trouble(self) -> str | None:
        return "the line is cut" if self.line.isCut else None
