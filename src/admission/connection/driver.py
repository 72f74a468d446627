# -*- test-case-name: tests.unit.connection.test_driver -*-
"""
What drives the requests of one connection through the rule that admits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..clock import wholeMicroseconds
from ..control import AdmissionControl
from ..gate.gate import Gate
from ..gate.placequeue import AwaitedPlace, PlaceQueue
from ..interfaces import ADMITTED, CONNECTION, CONNECTION_TRAITS, NOTHING, Decision, Places, Refusal, Request, Usage
from ..request import HUNG_UP, ServerRequest
from ..units import roundedSeconds
from .debts import Debts
from .trustedproxies import TrustedProxies

FAILED = "its request could not be answered"


class DrivenFactory(Protocol):
    """
    What a driver asks of the factory of its connection.
    """

    gate: Gate
    clock: IReactorTime
    control: AdmissionControl
    debts: Debts

    @property
    def places(self) -> PlaceQueue | None: ...

    @property
    def trustedProxies(self) -> TrustedProxies | None: ...

    @property
    def observers(self) -> Sequence[Any]: ...

    def clientIdAt(self, host: str) -> str:
        """
        The client id of a client at an address that has not said who it is.
        """


class DrivenConnection(Protocol):
    """
    What a driver asks of its connection, and tells it.
    """

    host: str
    hasPeerGone: bool

    @property
    def holder(self) -> str: ...

    @property
    def factory(self) -> DrivenFactory: ...

    @property
    def principal(self) -> str | None: ...

    @property
    def isLost(self) -> bool: ...

    @property
    def isClosing(self) -> bool: ...

    @property
    def whyClosed(self) -> str | None: ...

    def makeRequest(self, *arguments: Any) -> ServerRequest:
        """
        A request of the connection, given what L{ServerRequest} is given.
        """

    def close(self, reason: str) -> None:
        """
        The policies refuse the connection.
        """

    def throttled(self, delaySeconds: float) -> None:
        """
        Begin no request for so long.
        """

    def throttleOver(self) -> None:
        """
        The delay has passed.
        """


class RequestDriver:
    """
    Takes the requests of one connection through the rule: the opening of the
    connection, L{admit}, L{begin}, L{charge}, L{over}, and what its client has to wait.

    It knows no protocol, no transport and no order of requests: any number of them may
    be in progress.  All methods are for the reactor's thread.

    @ivar throttledUntilSeconds: when the last delay of L{throttle} ends or ended, in seconds of the factory's clock.
    @ivar openRequests: how many requests have arrived and are not over.
    @ivar heldSeconds: since when a request is held back because its client owes time; L{None} if none is.
    @ivar owesNothing: whether the client is known not to owe any time from before, so that L{holdBack} need not be
        called.
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_control",
        "_debts",
        "_factory",
        "_gate",
        "_lastAdmitted",
        "_pool",
        "_throttleCall",
        "heldSeconds",
        "openRequests",
        "owesNothing",
        "throttledUntilSeconds",
    )

    def __init__(self, connection: DrivenConnection) -> None:
        factory = connection.factory
        self._connection = connection
        self._factory = factory
        self._control = factory.control
        self._debts = factory.debts
        self._clock = factory.clock
        self._gate = factory.gate
        self._pool = factory.gate.pool
        self.openRequests = 0
        self.throttledUntilSeconds = 0.0
        self._throttleCall: IDelayedCall | None = None
        # The last request that was not refused, as the policies see it.
        self._lastAdmitted: Request | None = None
        self.owesNothing = False
        self.heldSeconds: float | None = None

    # The way of one request

    def opened(self) -> None:
        """
        Ask the policies about the connection itself.  It may be throttled from the beginning, or closed.
        """
        control, proxies = self._control, self._factory.trustedProxies
        if not control.wants.decision or (proxies is not None and self._connection.host in proxies):
            # A proxy is no client.
            return
        connection = self._connection
        opening = self.arrived(0)
        opening.begin(opening.arrived)
        opening.kind, opening.principal = CONNECTION, connection.principal or ""
        opening.clientId = self._factory.clientIdAt(connection.host)
        opening.traits = CONNECTION_TRAITS
        opening.serviceSeconds = 0.0
        isAdmitted = self.admit(opening, Refusal.ERROR).admitted
        now = self._clock.seconds()
        if isAdmitted:
            delaySeconds = self.charge(opening, Usage(connections=1), now)
            if delaySeconds > 0:
                self.throttle(delaySeconds)
            opening.answer(now)
        else:
            connection.close(opening.decision.message)
        self.over(opening, now)

    def arrived(self, sizeBytes: int) -> ServerRequest:
        """
        A request has been announced.

        @param sizeBytes: its size on the wire, without what says so.
        """
        self.openRequests += 1
        return self._connection.makeRequest(
            self._connection, sizeBytes, self._clock.seconds(), self.openRequests, self._pool.availableBytes
        )

    def admit(
        self, request: ServerRequest, refusal: Refusal, isAtHead: bool = False, mayWait: bool = False
    ) -> Decision:
        """
        Ask the policies whether a request may go ahead.  Its kind, principal, client id and identities are known.

        @param refusal: how the protocol can refuse it.
        @param isAtHead: whether its body has yet to come, and this is asked again then: if it would have to wait for a
            place, there may be one by then.
        @param mayWait: whether it can wait for a place; if it has to, the decision has C{places}, and L{awaitPlace} is
            to be called.
        """
        if not self._control.wants.usage:
            # No policy and no observer wants to know of it.
            return ADMITTED
        queue = self._factory.places
        hasRoom = None
        if queue is not None and (isAtHead or mayWait):
            hasRoom = partial(queue.hasRoom, holder=self._connection.holder, sizeBytes=request.sizeBytes)
        decision = self._ask(request, refusal, hasRoom)
        return ADMITTED if isAtHead and decision.places is not None else decision

    def _ask(self, request: ServerRequest, refusal: Refusal, hasRoom: Callable[[Places], bool] | None) -> Decision:
        assert request.kind is not None
        lagSeconds = request.lagSeconds
        if lagSeconds is None:
            lagSeconds = request.lagSeconds = round(self._gate.turns.waitedSeconds + self._gate.lag.standingSeconds, 6)
        request.view = Request(
            request.kind,
            request.principal or "",
            request.clientId or "",
            self._connection.host,
            request.sizeBytes,
            request.identities,
            request.traits,
            lagSeconds,
            request.poolAvailableBytes / self._pool.sizeBytes,
        )
        now = wholeMicroseconds(self._clock.seconds())
        decision = self._control.admitRequest(request, now, refusal, hasRoom)
        if decision.places is not None:
            # Neither admitted nor refused: nothing is charged if it goes no further.
            request.view = None
        elif not (decision.admitted or decision.isForAll):
            view = request.view
            self._debts.refused(view.principal, view.clientId, view.peer, now, decision.policy)
        # A refusal, even one that became a delay, is no debt: it does not end when limits change.
        self._lastAdmitted = request.view if decision.admitted and not decision.delays else None
        return decision

    def awaitPlace(
        self,
        request: ServerRequest,
        decision: Decision,
        refusal: Refusal,
        decided: Callable[[Decision], None],
        gone: Callable[[], None],
    ) -> None:
        """
        Let a request wait for a place, as L{admit} has said.

        @param decided: called when it is admitted or refused.
        @param gone: called if the request is cancelled before.
        """
        queue, places, latest = self._factory.places, decision.places, decision
        assert queue is not None and places is not None

        def waits() -> bool:
            nonlocal latest
            latest = self._ask(request, refusal, lambda _: True)
            return latest.places is not None

        def over(decision: Decision) -> None:
            request.step = None
            decided(decision)

        def expired() -> None:
            over(self._ask(request, refusal, None))

        request.postpone()
        heldBytes = 0 if request.lease is None else request.lease.sizeBytes
        holder = self._connection.holder
        awaited = request.step = AwaitedPlace(places, holder, heldBytes, waits, lambda: over(latest), expired, gone)
        queue.add(awaited, places)

    def begin(self, request: ServerRequest) -> None:
        """
        The work on a request begins, which the policies have admitted.
        """
        if request.view is not None:
            request.admitted = now = wholeMicroseconds(self._clock.seconds())
            self._control.beginRequest(request, now)

    def usageOf(self, request: ServerRequest, responseBytes: int, now: float) -> Usage:
        """
        What a request has used by C{now}.  The time worked on it is what a recording has, or sums of it would not be
        the same.
        """
        serviceSeconds = request.serviceSeconds = wholeMicroseconds(request.workedSeconds(now))
        return Usage(request.sizeBytes, responseBytes, serviceSeconds)

    def chargeAnswered(self, request: ServerRequest, now: float) -> float:
        """
        Charge what a request has used by C{now}, whose C{responseBytes} are known; see L{charge}.
        """
        if request.view is None:
            return 0.0
        return self.charge(request, self.usageOf(request, request.responseBytes, now), now)

    def charge(
        self,
        request: ServerRequest,
        usage: Usage,
        now: float,
        maxRefusalSeconds: float = inf,
        isHeldBack: bool = True,
    ) -> float:
        """
        Charge what a request used to its client, once.

        @param maxRefusalSeconds: the longest delay in place of a refusal.
        @param isHeldBack: whether the client waits on other connections, too, see L{holdBack}.
        @return: the delay that the client is given, in seconds; L{throttle} imposes it.
        """
        if request.view is None:
            # Nobody limited it when it began.
            return 0.0
        delaySeconds = self._control.chargeRequest(request, usage, wholeMicroseconds(now), maxRefusalSeconds)
        if delaySeconds > 0:
            principal, clientId = request.principal or "", request.clientId or ""
            host = self._connection.host
            self._debts.owes(principal, clientId, host, now + delaySeconds, request.policy, isHeldBack)
        return delaySeconds

    def park(self, request: ServerRequest) -> float:
        """
        A request waits for an event, without its memory.

        @return: the time, in seconds.
        """
        now = self._clock.seconds()
        self._control.parkRequest(request, now)
        if self._factory.places is not None:
            self._factory.places.freed()
        return now

    def answered(self, request: ServerRequest, now: float, delaySeconds: float = 0.0) -> None:
        """
        The answer to a request was sent, or would have been if the client were still there; or it wants none.

        @param delaySeconds: the delay that the client is told.
        """
        if self._connection.isClosing:
            request.expire(self.whyExpired)
        else:
            request.answer(now, delaySeconds)
        self.over(request, now)

    def over(self, request: ServerRequest, now: float) -> float:
        """
        A request is over, whatever has become of it: tell the policies and the observers, once.  If it was admitted and
        has not been charged, it is charged now.

        @return: the delay that its client is given for that, in seconds.
        """
        self.openRequests -= 1
        delaySeconds = 0.0
        if request.charge is None and request.view is not None and request.rejectReason is None:
            delaySeconds = self.chargeAnswered(request, now)
        if request.answered is None and request.rejectReason is None and request.expireReason is None:
            request.expire(self.whyExpired)
        self._control.endRequest(request, now)
        if self._factory.places is not None:
            self._factory.places.freed()
        for observer in self._factory.observers:
            observer.requestOver(request)
        return delaySeconds

    @property
    def whyExpired(self) -> str:
        """
        Why a request was not answered.
        """
        connection = self._connection
        return connection.whyClosed or (HUNG_UP if connection.isLost or connection.hasPeerGone else FAILED)

    # Delays

    @property
    def isThrottled(self) -> bool:
        """
        Whether a delay of L{throttle} has not passed yet.
        """
        return self._throttleCall is not None

    def throttle(self, delaySeconds: float) -> None:
        """
        Let the client wait, because it is over its quota.  Of two delays the one that ends later holds.
        """
        connection = self._connection
        untilSeconds = self._clock.seconds() + delaySeconds
        if untilSeconds > self.throttledUntilSeconds and not connection.isClosing:
            self.throttledUntilSeconds = untilSeconds
            if self._throttleCall is not None:
                self._throttleCall.cancel()
            self._throttleCall = self._clock.callLater(delaySeconds, self._throttleOver)
        if self._throttleCall is not None:
            self._debts.throttled.add(self)
            connection.throttled(delaySeconds)

    def throttleLess(self, delaySeconds: float) -> None:
        """
        Shorten the rest of the delay of L{throttle} to C{delaySeconds}, if it is longer.
        """
        untilSeconds = self._clock.seconds() + max(delaySeconds, 0.0)
        if self._throttleCall is not None and untilSeconds < self.throttledUntilSeconds:
            self.throttledUntilSeconds = untilSeconds
            self._throttleCall.reset(max(delaySeconds, 0.0))

    def limitsChanged(self, now: float) -> None:
        """
        Shorten the delay to what the limits that now hold ask for.
        """
        if self._lastAdmitted is not None:
            self.throttleLess(self._control.charge(self._lastAdmitted, NOTHING, now).delaySeconds)
        elif self.heldSeconds is not None:
            # What it owed is forgotten.  A client that was refused waits on.
            self.throttleLess(0.0)

    def _throttleOver(self) -> None:
        self._throttleCall = None
        self._debts.throttled.discard(self)
        self._connection.throttleOver()

    # Debts from before

    def owedSeconds(self, request: ServerRequest) -> float:
        """
        For how long the client of a request has still to wait because of earlier connections; not positive if it need
        not.
        """
        return self._debts.heldSeconds(request.principal or "", request.clientId or "", self._clock.seconds())

    def holdBack(self, request: ServerRequest) -> bool:
        """
        Hold a request back, the first of its connection, while its client has to wait: or clients that are told to wait
        would connect anew.  C{throttleOver} of the connection is when it may go on; L{letGo} goes before.

        @return: whether it is held back.
        """
        if self.owesNothing:
            return False
        delaySeconds = self.owedSeconds(request)
        self.owesNothing = delaySeconds <= 0
        if self.owesNothing:
            return False
        if not self._connection.hasPeerGone:
            self.heldSeconds = self._clock.seconds()
            request.postpone()
            self.throttle(delaySeconds)
        return True

    def refuseOwing(self, request: ServerRequest, waitSeconds: float) -> Decision:
        """
        Refuse a request whose client has still to wait for C{waitSeconds}, in the name of the policy that asked for it.
        """
        principal, clientId = request.principal or "", request.clientId or ""
        request.policy = self._debts.policyOf(principal, clientId)
        policyName = request.policy or ""
        self._control.countRefusal(policyName)
        self._debts.refused(principal, clientId, self._connection.host, self._clock.seconds(), policyName)
        words = f"the client was told to wait, and that is over in {roundedSeconds(waitSeconds)}"
        request.reject(words)
        return Decision(False, waitSeconds, words, policyName)

    def letGo(self, isForgiven: bool = False) -> bool:
        """
        Hold no request back any more.

        @param isForgiven: whether what its client owes does not count any more.
        @return: whether one was held back.
        """
        isHeld = self.heldSeconds is not None
        self.heldSeconds = None
        self.owesNothing = self.owesNothing or (isHeld and isForgiven)
        return isHeld

    def lost(self) -> None:
        """
        The connection is lost: nobody is throttled any more.
        """
        self.heldSeconds = None
        self._debts.throttled.discard(self)
        if self._throttleCall is not None:
            self._throttleCall.cancel()
            self._throttleCall = None
