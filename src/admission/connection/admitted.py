# -*- test-case-name: tests.unit.connection.test_admitted -*-
"""
A server of requests in frames, each of which the quota policies admit.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from ..interfaces import Decision, Refusal
from ..names import boundedName
from ..request import ServerRequest
from .driver import FAILED
from .protocol import FrameProtocol

REQUEST = "request"
"""The kind of a request whose protocol says nothing else."""


class AdmittedProtocol(FrameProtocol):
    """
    A protocol of requests in frames: the quota policies admit each of them, and are charged with what it used.

    A subclass works on a request in L{requestReceived}, which returns the answer.  The next request is read after that.
    L{identify} says what a request is and who asks, and L{requestRefused} how a refusal is told.
    """

    # What a subclass says

    def identify(self, request: Any) -> None:
        """
        Say what a whole request is, from its bytes, which are C{request.frame}: set its C{kind}, one of a few dozen
        words at most; its C{clientId}, if it says who sends it; and its C{traits}, if not all of its bytes count or it
        may wait for other clients.  May be called again for a request that had to wait.  An exception is logged, and
        closes the connection.

        Without this the kind is C{"request"}, and the client id that of the connection or else the client's address.

        @param request: what C{makeRequest} made.
        """

    def requestReceived(self, request: Any) -> Any:
        """
        Work on a whole request; its bytes are C{request.frame}.  An exception is logged, and closes the connection.

        @param request: what C{makeRequest} made.
        @return: the body of its answer, as bytes, which is framed; or a coroutine or a L{Deferred} of that, for which
            it waits without its bytes and its turn, and which is cancelled if the client hangs up.  L{None} where an
            answer has been sent by L{respond} or will be, or where L{finish} says that none is wanted.
        """
        raise NotImplementedError

    def requestRefused(self, request: Any, decision: Decision) -> Any:
        """
        The policies refuse a request: answer it so that its client knows.  Where a subclass does not say how, requests
        are served nevertheless, and the client waits for as long before the next one.

        @param decision: why, in C{message}, and after how many seconds to come again, in C{delaySeconds}; nothing is
            read of the client before that.
        @return: as L{requestReceived} returns it.
        """
        raise NotImplementedError

    # What a subclass calls

    def respond(self, parts: Sequence[bytes], delaySeconds: float = 0.0) -> None:
        """
        Answer the request by hand: send C{parts}, whole frames, charge what the request used, and read the next one
        after the delay that its client is given.

        @param delaySeconds: the shortest delay.
        """
        request = self.request
        if request is not None:
            request.responseBytes = sum(map(len, parts))
            decision = request.decision
            if not decision.admitted:
                delaySeconds = max(delaySeconds, decision.delaySeconds)
            elif request.view is not None:
                now = self.factory.clock.seconds()
                usage = self.driver.usageOf(request, request.responseBytes, now)
                delaySeconds = max(delaySeconds, self.driver.charge(request, usage, now))
        super().respond(parts, delaySeconds)

    # The way of one request

    def frameReceived(self, request: Any) -> None:
        request.kind, request.principal, request.clientId = REQUEST, self.principal, self.clientId
        self.identify(request)
        # Names that clients choose are kept, by policies and recordings, and may have any length.
        request.kind, request.clientId = boundedName(request.kind), boundedName(request.clientId)
        if not request.clientId:
            request.clientId = self.factory.clientIdAt(self.host)
        driver = self.driver
        if not driver.owesNothing and self.holdBack(request):
            return
        if self.factory.control.wants.usage:
            isTold = type(self).requestRefused is not AdmittedProtocol.requestRefused
            decision = driver.admit(request, Refusal.ERROR if isTold else Refusal.DELAY)
            if not decision.admitted:
                self._awaitAnswer(request, self.requestRefused(request, decision))
                return
            driver.begin(request)
        self._awaitAnswer(request, self.requestReceived(request))

    def _awaitAnswer(self, request: ServerRequest, answer: Any) -> None:
        if isinstance(answer, Coroutine):
            answer = Deferred.fromCoroutine(answer)
        if not isinstance(answer, Deferred):
            if answer is not None:
                self._answer(request, answer)
            return
        if self.request is request and (not answer.called or answer.paused):
            self.park()
            request.step = answer
        answer.addBoth(self._stepOver, request)
        answer.addCallback(partial(self._answer, request))
        answer.addErrback(self._stepFailed, request)
        if self.hasPeerGone:
            request.cancel()

    def _stepOver(self, result: Any, request: ServerRequest) -> Any:
        request.step = None
        if request.parked is not None and request.ended is None:
            request.resume(self.factory.clock.seconds())
        return result

    def _stepFailed(self, failure: Failure, request: ServerRequest) -> None:
        if self.request is not request:
            return
        if isinstance(failure.value, CancelledError):
            self.finish()
            return
        self.factory.log.failure("a request of {peer} failed", failure, peer=self.peer)
        self.finish()
        self.close(FAILED)

    def _answer(self, request: ServerRequest, body: bytes | None) -> None:
        if self.request is not request:
            # It has been answered by hand.
            return
        if body is None:
            self.finish()
        else:
            framing = self.framing
            self.respond([framing.prefix(len(body)), body, framing.suffix])
