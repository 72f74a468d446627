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
from ..names import nameIn
from ..request import ServerRequest
from .driver import FAILED
from .protocol import FrameProtocol

REQUEST = "request"
"""The kind of a request whose protocol says nothing else."""


class AdmittedProtocol(FrameProtocol):
    """
    A protocol of requests in frames: the quota policies admit each request, and it is charged with what it used.

    A subclass works on a request in L{requestReceived}, which returns the answer.  The next request is read after that.
    L{identify} says what a request is and who asks, and L{requestRefused} how a refusal is told.

    @cvar maxInFlight: how many requests of a connection may wait for what L{requestReceived} returns at the same time.
        With more than one, the next is read meanwhile, and answers leave as they come, so that they have to say which
        request they are for.
    """

    # What a subclass says

    def identify(self, request: Any) -> None:
        """
        Say what a whole request is, from its bytes, which are C{request.frame}: set its C{kind}, one of a few dozen
        words at most; its C{clientId}, if it says who sends it; its C{identities}, if it carries others whose new ones
        C{producer-ids} limits, each a whole number, or bytes, 64 at most, of which a number is kept (see L{Admission
        <admission.admission.Admission>}); and its C{traits}, if not all of its bytes count or it may wait for other
        clients.  May be called again for a request that had to wait.  An exception is logged, and closes the
        connection.

        Without this the kind is C{"request"}, and the client id that of the connection, the principal once that is
        known, or else the client's address.

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
        The policies refuse a request: answer it so that its client knows.  Where a subclass does not override this,
        requests are served nevertheless, and the client waits that long before the next one.

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
        if not (isinstance(parts, list | tuple) and all(isinstance(each, bytes) for each in parts)):
            raise TypeError(f"parts={parts!r:.100}: give a list of bytes, whole frames; requestReceived returns a body")
        if self.request is not None:
            delaySeconds = max(delaySeconds, self._charge(self.request, parts))
        super().respond(parts, delaySeconds)

    def finish(self, delaySeconds: float = 0.0) -> None:
        """
        End the request without an answer.

        @param delaySeconds: the shortest delay before the next one.
        """
        if not isinstance(delaySeconds, int | float):
            raise TypeError(f"delaySeconds={delaySeconds!r:.100}: finish takes no request, but a delay if anything")
        super().finish(delaySeconds)

    # The way of one request

    _decision: Decision | None = None

    def frameReceived(self, request: Any) -> None:
        decision, self._decision = self._decision, None
        if decision is not None:
            # It has waited for its place.
            self._serve(request, decision)
            return
        request.kind, request.principal, request.clientId = REQUEST, None, self.clientId
        request.identities = ()
        if self.identify(request) is not None:  # type: ignore[func-returns-value]
            raise TypeError("identify sets what a request is, and returns nothing; it cannot wait")
        principal = request.principal = self.principal if request.principal is None else request.principal
        # Names that clients choose are kept, by policies and recordings, and may have any length.
        request.kind, request.clientId = nameIn("kind", request.kind), nameIn("clientId", request.clientId)
        if request.identities:
            request.identities = self.factory.identityNumbers(request.identities)
        if not request.clientId:
            request.clientId = principal or self.factory.clientIdAt(self.host)
        driver = self.driver
        if not driver.owesNothing and self.holdBack(request):
            return
        if self.factory.control.wants.usage:
            isTold = type(self).requestRefused is not AdmittedProtocol.requestRefused
            refusal = Refusal.ERROR if isTold else Refusal.DELAY
            decision = driver.admit(request, refusal, mayWait=True)
            if decision.places is not None:
                self._awaitPlace(request, decision, refusal)
            else:
                self._serve(request, decision)
        else:
            self._awaitAnswer(request, self.requestReceived(request))

    def _serve(self, request: ServerRequest, decision: Decision) -> None:
        if decision.admitted:
            self.driver.begin(request)
            self._awaitAnswer(request, self.requestReceived(request))
        else:
            self._awaitAnswer(request, self.requestRefused(request, decision))

    def _awaitPlace(self, request: ServerRequest, decision: Decision, refusal: Refusal) -> None:
        """
        Let a request wait for a place, with its memory.  It stays the current request, so that no other is read
        meanwhile.
        """
        placed, left = partial(self._placed, request), partial(self._leftQueue, request)
        self.driver.awaitPlace(request, decision, refusal, placed, left)
        self.endTurn()
        if self.hasPeerGone or self.isLost:
            request.cancel()

    def _placed(self, request: ServerRequest, decision: Decision) -> None:
        if self.request is request:
            self._decision = decision
            self.workAgain()

    def _leftQueue(self, request: ServerRequest) -> None:
        if self.request is request and not self.isLost:
            self.finish()
            self.closeGracefully()

    def _awaitAnswer(self, request: ServerRequest, answer: Any) -> None:
        if isinstance(answer, Coroutine):
            answer = Deferred.fromCoroutine(answer)
        if not isinstance(answer, Deferred):
            if answer is not None:
                self._answer(request, answer)
            return
        if self.request is request and (not answer.called or answer.paused):
            request.step = answer
            if self.maxInFlight > 1:
                self.request = None
                self.driver.park(request)
                self.setAside(request)
                self.finish()
            else:
                self.park()
        answer.addBoth(self._stepOver, request)
        answer.addCallback(partial(self._answer, request))
        answer.addErrback(self._stepFailed, request)
        if self.hasPeerGone or self.isLost:
            request.cancel()

    def _stepOver(self, result: Any, request: ServerRequest) -> Any:
        request.step = None
        if request.parked is not None and request.ended is None:
            request.resume(self.factory.clock.seconds())
        return result

    def _stepFailed(self, failure: Failure, request: ServerRequest) -> None:
        if not self._isUnderWay(request):
            return
        isCancelled = isinstance(failure.value, CancelledError)
        if not isCancelled:
            self.factory.log.failure("a request of {peer} failed", failure, peer=self.peer)
        self._end(request)
        if not isCancelled:
            self.close(FAILED)

    def _answer(self, request: ServerRequest, body: bytes | None) -> None:
        if not self._isUnderWay(request):
            # It has been answered by hand.
            return
        if body is None:
            self._end(request)
            return
        if not isinstance(body, bytes):
            raise TypeError(
                f"the answer to a request has to be bytes, a Deferred or a coroutine of them, not {body!r:.100}"
            )
        framing = self.framing
        parts = [framing.prefix(len(body)), body, framing.suffix]
        if self.request is request:
            self.respond(parts)
            return
        delaySeconds = self._charge(request, parts)
        self.send(parts)
        self.requestAnswered(request, self.factory.clock.seconds(), delaySeconds)
        self._goOn(delaySeconds)

    def _charge(self, request: ServerRequest, parts: Sequence[bytes]) -> float:
        """
        @return: the delay that the client of the request whose answer is C{parts} is given, in seconds.
        """
        request.responseBytes = sum(map(len, parts))
        if request.view is None or not request.decision.admitted:
            return request.decision.delaySeconds
        return self.driver.chargeAnswered(request, self.factory.clock.seconds())

    def _isUnderWay(self, request: ServerRequest) -> bool:
        return self.request is request or request in self.unanswered

    def _end(self, request: ServerRequest) -> None:
        """
        End a request without an answer.
        """
        if self.request is request:
            self.finish()
        else:
            self._goOn(self.abandon(request))

    def _goOn(self, delaySeconds: float) -> None:
        if delaySeconds > 0:
            self.throttle(delaySeconds)
        self.readOn()
