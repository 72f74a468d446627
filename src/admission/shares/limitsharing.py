# -*- test-case-name: tests.unit.shares.test_limitsharing -*-
"""
One limit over several servers: each tells the others what its clients have taken, and counts what they tell.

A bucket fills at all of the limit at each server, and what is taken anywhere is taken from all of them.  So over T
seconds clients get, for a limit L with a burst of b seconds at N servers that tell each other every I seconds, which
takes t, C{L T + L (b + (N - 1)(I + t) + I / 2)} at most, and what is in progress: a server lets through what is left
when all that others took until I + t ago is counted, others take C{L b / N + L (I + t)} each meanwhile, and what is too
little to be told is less than C{L I / 2N} at each.  Each time that messages stop coming and come again, it may be
C{L (N - 1)(D + I + t)} more, with D the two seconds until that is noticed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from math import nan
from typing import Any, Final

from attrs import astuple
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..clock import wholeMicroseconds
from ..control import AdmissionControl
from ..interfaces import ISensorRegistry, IUsageExchange, QuotaEntity, Taken
from ..policyfailure import FAILURES, raiseInterrupt
from .usagemessages import MAX_ROWS, NotUnderstood, SetLimits, UsageMessage, fitting

LOST_SECONDS: Final = 2.0
"""After so long without hearing what it has told, a server enforces its part of each limit alone."""

HEARTBEAT_SECONDS: Final = 5.0
"""How often a server that has nothing to tell says that it is there."""

SEARCHING_SECONDS: Final = 0.5
"""How often one does that does not hear itself."""

PEER_SECONDS: Final = 15.0
"""A server that is silent for so long is not counted any more.  Its own silence is noticed earlier: or one that hears
nobody would take itself for the only one."""

ROWS_PER_SECOND: Final = 1000
"""How many rows a server tells at most: so many of seven others take a twenty-fifth of a processor to take in."""

MAX_SERVERS: Final = 1000
"""How many are counted; messages of others are ignored."""

LOGGED_SECONDS: Final = 60.0


class LimitSharing:
    """
    Tells other servers what clients have taken here, and policies what they have taken there.

    Where nothing comes back of what is told, each server enforces an Nth of every limit.  N is the largest number of
    what has been heard of lately, what is remembered of an earlier run, and what the operator says there are.

    @ivar count: how many servers there are, as far as is known.
    @ivar isLive: whether this server hears itself.
    @ivar fraction: how much of each limit is enforced here.
    @ivar whenTaken: called with what others have taken, whether it is old, and when policies were told.
    @ivar whenLimits: called with limits that were set at one of the servers, this one included, in the order that all
        have.
    @ivar whenShared: called with the fraction, the count, and when policies were told.
    @ivar tripSeconds: how long the last own message took until it came back; L{None} if none has.
    @ivar toldRows: how many rows others were told.
    @ivar heardRows: how many they have told.
    @ivar misunderstood: how many messages made no sense.
    """

    _log = Logger()

    def __init__(
        self,
        exchange: IUsageExchange,
        control: AdmissionControl,
        clock: IReactorTime,
        server: str,
        atLeast: int = 1,
        remembered: int = 1,
        remember: Callable[[int], object] = lambda count: None,
    ) -> None:
        """
        @param clock: monotonic.
        @param server: what it is called; another name at each start.
        @param atLeast: how many servers there are, if the operator says so.
        @param remembered: what C{remember} was called with last, in an earlier run.
        @param remember: stores how many there are.
        """
        self._exchange = exchange
        self._control = control
        self._clock = clock
        self._server = server
        self._atLeast = atLeast
        self._remembered = remembered
        self._remember = remember
        self._turns = LoopingCall(self._turn)
        self._turns.clock = clock
        self._numbers = {False: 0, True: 0}
        self._lastLimits = 0
        # Own messages that have not come back: their numbers, and when they were sent.
        self._sent: deque[tuple[int, float]] = deque()
        self._sentSeconds = float("-inf")
        # Limits that were set here and have not come back: with the number of their message, and when that was sent.
        self._untoldLimits: dict[QuotaEntity, tuple[SetLimits, int, float]] = {}
        # By name and channel the last number that was heard; by name when that was.
        self._lastNumbers: dict[tuple[str, bool], int] = {}
        self._heard: dict[str, float] = {}
        self._lostSeconds: float | None = None
        self._loggedSeconds = self._failedSeconds = float("-inf")
        self.isLive = False
        self.count = max(atLeast, remembered, 1)
        self.fraction = 1 / self.count
        self.tripSeconds: float | None = None
        self.toldRows = self.heardRows = self.misunderstood = 0
        self.whenLimits: Callable[[SetLimits], object] = lambda _: None
        self.whenTaken: Callable[[Taken, bool, float], object] = lambda *_: None
        self.whenShared: Callable[[float, int, float], object] = lambda *_: None

    def start(self) -> None:
        """
        Begin; limits are enforced in part until this server hears itself.
        """
        self._lostSeconds = self._clock.seconds()
        self._enforce()
        self._exchange.start(self.deliver)
        self._turns.start(self._exchange.intervalSeconds).addErrback(
            lambda failure: self._log.failure("nobody is told any more what clients take", failure)
        )

    def stop(self) -> Deferred[None]:
        """
        Tell what is untold, and stop.
        """
        if self._turns.running:
            self._turns.stop()
            if self.isLive:
                self._tell(self._clock.seconds())
        return self._exchange.stop()

    # Telling

    def setLimits(self, limits: SetLimits) -> None:
        """
        Limits were set here: tell the others, again and again until they know.
        """
        self._publishLimits(limits, self._clock.seconds())

    def _publishLimits(self, limits: SetLimits, now: float) -> None:
        self._lastLimits += 1
        self._untoldLimits[limits.entity] = limits, self._lastLimits, now
        self._send(
            UsageMessage(self._server, self._lastLimits, (), limits), True, now, json.dumps(astuple(limits.entity))
        )

    def _turn(self) -> None:
        now = self._clock.seconds()
        self._look(now)
        self._tell(now)
        for limits, _, sentSeconds in [*self._untoldLimits.values()]:
            if now - sentSeconds >= LOST_SECONDS:
                self._publishLimits(limits, now)

    def _tell(self, now: float) -> None:
        intervalSeconds = self._exchange.intervalSeconds
        untold = self._control.untold(intervalSeconds / (2 * self.count), now)
        if self.isLive:
            told = list(fitting(untold, max(round(ROWS_PER_SECOND * intervalSeconds), 1)))
        else:
            # Each enforces its own part, and what is told later would be taken twice.  Identities are known ever after.
            told = [each for each in untold if each.identities]
        self.toldRows += len(told)
        identities = iter([each for each in told if each.identities])
        # While amounts are left out there may be more than one message has room for.
        while kept := [*fitting(identities, MAX_ROWS)]:
            self._publish(kept, True, now)
        amounts = [each for each in told if not each.identities] if self.isLive else []
        if amounts or now - self._sentSeconds >= (HEARTBEAT_SECONDS if self.isLive else SEARCHING_SECONDS):
            self._sentSeconds = now
            self._publish(amounts, False, now)
        self._share()

    def _publish(self, taken: list[Taken], isKept: bool, now: float) -> None:
        number = self._numbers[isKept] = self._numbers[isKept] + 1
        if not isKept:
            # It may come back at once.
            self._sent.append((number, now))
        self._send(UsageMessage(self._server, number, taken), isKept, now)

    def _send(self, message: UsageMessage, isKept: bool, now: float, key: str | None = None) -> None:
        try:
            self._exchange.publish(message.encoded(), isKept, key)
        except FAILURES:
            raiseInterrupt()
            # As if it were lost: that nothing comes back is noticed.
            if now - self._failedSeconds >= LOGGED_SECONDS:
                self._failedSeconds = now
                self._log.failure("a message about what clients take cannot be sent")

    # Hearing

    def deliver(self, encoded: bytes, isOld: bool) -> None:
        """
        A message has come.
        """
        now = wholeMicroseconds(self._clock.seconds())
        try:
            message = UsageMessage.of(encoded)
        except NotUnderstood as error:
            self.misunderstood += 1
            if now - self._loggedSeconds >= LOGGED_SECONDS:
                self._loggedSeconds = now
                self._log.warn("a message about what clients take is ignored: {error}", error=error)
            return
        if message.limits is not None:
            self._limitsHeard(message.limits, message, isOld)
            return
        isKept = any(each.identities for each in message.taken)
        if message.server == self._server:
            # Kept ones go another way, and have numbers of their own.
            if not isKept:
                self._heardSelf(message.number, now)
            return
        place = message.server, isKept
        if not isOld and message.server not in self._heard and len(self._heard) >= MAX_SERVERS:
            return
        if message.number <= self._lastNumbers.get(place, 0):
            # It was told twice.
            return
        if not isOld:
            self._heard[message.server] = now
            self._lastNumbers[place] = message.number
        for taken in message.taken:
            self.heardRows += 1
            # One by one, as they are recorded.
            for each in [taken._replace(amount=1.0, identities=(each,)) for each in taken.identities] or [taken]:
                self._control.takenElsewhere(each, isOld, now)
                self.whenTaken(each, isOld, now)
        self._share()

    def _limitsHeard(self, limits: SetLimits, message: UsageMessage, isOld: bool) -> None:
        if message.server == self._server and not isOld:
            untold = self._untoldLimits.get(limits.entity)
            if untold is not None and untold[1] > message.number:
                # They have been set again since.
                return
            self._untoldLimits.pop(limits.entity, None)
        self.whenLimits(limits)

    def _heardSelf(self, number: int, now: float) -> None:
        sent = self._sent
        sentSeconds = None
        while sent and sent[0][0] <= number:
            _, sentSeconds = sent.popleft()
        if sentSeconds is None or now - sentSeconds > LOST_SECONDS:
            return
        self.tripSeconds = now - sentSeconds
        self._lostSeconds = None
        if not self.isLive:
            self.isLive = True
            # They were silent for as long as nothing was heard.
            self._heard = dict.fromkeys(self._heard, now)
            self._log.info("limits are shared: {count} servers enforce them together", count=self._known())
            self._share()

    def _look(self, now: float) -> None:
        """
        See who is silent.
        """
        sent = self._sent
        # What was told first of what has not come back was taken in the turn before, and at the next it is too late.
        if self.isLive and sent and now - sent[0][1] > LOST_SECONDS - 2 * self._exchange.intervalSeconds:
            self.isLive = False
            self._lostSeconds = sent[0][1]
            self._log.error(
                "limits are not shared: nothing has come back for {seconds:g} s{why}; each of {count} servers enforces "
                "1/{count} of them",
                seconds=round(now - self._lostSeconds, 1),
                count=self.count,
                why=self._why(),
            )
        if self.isLive:
            for name in [name for name, heard in self._heard.items() if now - heard > PEER_SECONDS]:
                del self._heard[name]
                for isKept in (False, True):
                    self._lastNumbers.pop((name, isKept), None)
        while len(sent) > 1 and now - sent[0][1] > PEER_SECONDS:
            sent.popleft()

    def _known(self) -> int:
        return max(len(self._heard) + 1, self._atLeast)

    def _share(self) -> None:
        count = self._known() if self.isLive else max(self.count, self._known(), self._remembered)
        fraction = 1.0 if self.isLive else 1 / count
        if self.isLive and count != self._remembered:
            self._remembered = count
            self._remember(count)
        if (fraction, count) != (self.fraction, self.count):
            self.fraction, self.count = fraction, count
            self._enforce()

    def _enforce(self) -> None:
        now = wholeMicroseconds(self._clock.seconds())
        self._control.share(self.fraction, self.count, now)
        self.whenShared(self.fraction, self.count, now)

    # For people

    def troubles(self, now: float) -> Iterator[str]:
        """
        What is wrong, in sentences.
        """
        if self._lostSeconds is not None and now - self._lostSeconds > LOST_SECONDS:
            yield (
                f"limits are not shared: nothing has come back for {now - self._lostSeconds:.0f} s{self._why()}; each "
                f"of {self.count} servers enforces 1/{self.count} of them"
            )

    def fields(self, now: float) -> dict[str, Any]:
        """
        How it stands, for the status page.
        """
        heard = self._heard.values()
        return {
            "servers": self.count,
            "isLive": self.isLive,
            "fraction": self.fraction,
            "heardSeconds": now - max(heard) if heard else None,
            "tripSeconds": self.tripSeconds,
            "told": self.toldRows,
            "heard": self.heardRows,
            "trouble": next(self.troubles(now), None),
        }

    def addSensors(self, registry: ISensorRegistry) -> None:
        """
        Publish how many servers there are, how much of each limit is enforced here, how long a message takes, and how
        many rows were told and heard.

        @raise ValueError: if there are sensors of these names.
        """
        registry.addGauge("SharedLimitsServers", lambda now: self.count)
        registry.addGauge("SharedLimitsFraction", lambda now: self.fraction)
        registry.addGauge("SharedLimitsTripSeconds", lambda now: nan if self.tripSeconds is None else self.tripSeconds)
        registry.addCounter("SharedLimitsTold", lambda now: self.toldRows)
        registry.addCounter("SharedLimitsHeard", lambda now: self.heardRows)

    def _why(self) -> str:
        try:
            reason = self._exchange.trouble()
        except FAILURES:
            raiseInterrupt()
            reason = "the exchange cannot say why"
        return "" if reason is None else f" ({reason})"
