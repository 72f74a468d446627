"""L{admission.testing.servercontract}, for requests in frames and for a protocol with many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from admission.admission import Admission
from admission.connection.admitted import AdmittedProtocol
from admission.connection.factory import AdmittedFactory
from admission.connection.framings import Netstring
from admission.connection.protocol import FrameProtocol
from admission.interfaces import Decision
from admission.request import ServerRequest
from admission.testing.servercontract import REFUSED, SERVED, AdmittedServerContract, WatchedPolicy
from tests.kit.seededfaults import SeededFaultsTestCase


class Server(AdmittedProtocol):
    """Answers C{CLIENT NUMBER HOW}, later if that is C{waiting}."""

    framing = Netstring()
    waiting: list[Deferred[bytes]]

    def identify(self, request: ServerRequest) -> None:
        client, _, how = bytes(request.frame).split(b" ")
        request.clientId, request.kind = client.decode(), how.decode()

    def requestReceived(self, request: ServerRequest) -> Any:
        if request.kind != "waiting":
            return SERVED.encode()
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def requestRefused(self, request: ServerRequest, decision: Decision) -> bytes:
        return REFUSED.encode()


class FramedContract(AdmittedServerContract):
    """A server of netstrings."""

    protocol: type[Server] = Server

    def buildServer(self, clock: Clock, policy: WatchedPolicy) -> AdmittedFactory:
        """One that shares nothing."""
        self.unanswered: list[Deferred[bytes]] = []
        served = type("Served", (self.protocol,), {"waiting": self.unanswered})
        admission = Admission(pool="bounded:1MiB", quota=policy, reactor=MemoryReactorClock(), clock=clock)
        return admission.frames(served)

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """A netstring."""
        body = f"{client} {number} {'waiting' if isWaiting else 'now'}".encode()
        return b"%d:%s," % (len(body), body)

    def answersIn(self, received: bytes) -> Sequence[str]:
        """What is in netstrings."""
        return [each.partition(b":")[2].decode() for each in received.split(b",") if each]

    def waiting(self) -> int:
        """Those without a result."""
        return sum(not each.called for each in self.unanswered)

    def release(self) -> None:
        """Answer."""
        unanswered = self.unanswered[:]
        self.unanswered.clear()
        for each in unanswered:
            if not each.called:
                each.callback(SERVED.encode())


class FramedServerTests(FramedContract, SynchronousTestCase):
    """L{AdmittedProtocol} keeps the rules."""


class Multiplexed(Server):
    """Reads on while requests wait."""

    maxInFlight = 5


class MultiplexedServerTests(FramedContract, SynchronousTestCase):
    """So does one with many requests of a connection at once."""

    protocol = Multiplexed

    def test_many(self) -> None:
        """Requests that come behind one that waits are answered before it, as many as may be in flight."""
        transport = self.connect()
        waiting = [self.encode("alice", number, isWaiting=True) for number in range(4)]
        self.assertEqual(self.send(transport, *waiting, self.encode("alice", 4)), [SERVED])
        self.assertEqual((self.waiting(), self.policy.running), (4, 4))
        more = [self.encode("alice", number, isWaiting=True) for number in range(5, 8)]
        self.assertEqual(self.send(transport, *more, self.encode("alice", 8)), [SERVED])
        self.assertEqual((self.waiting(), self.policy.running), (5, 5))
        self.release()
        self.settle()
        self.release()
        self.assertEqual(self.served(transport), 9)
        self.assertNothingHeld()

    def test_drainAnswersAll(self) -> None:
        """A server that stops answers all that have been read."""
        transport = self.connect()
        self.send(transport, *(self.encode("alice", number, isWaiting=True) for number in range(3)))
        emptied = self.server.closeAll()
        self.settle()
        self.assertNoResult(emptied)
        self.release()
        self.assertEqual(self.served(transport), 3)
        self.settle()
        self.successResultOf(emptied)
        self.assertNothingHeld()


class Uncharged(Server):
    """Charges nothing for what it answers."""

    def respond(self, parts: Sequence[bytes], delaySeconds: float = 0.0) -> None:
        FrameProtocol.respond(self, parts, delaySeconds)


class Impatient(Server):
    """Has nobody wait."""

    def throttle(self, delaySeconds: float) -> None:
        pass


class Forgetful(Server):
    """Lets a client that connects anew go on."""

    def holdBack(self, request: ServerRequest) -> bool:
        return False


class Silent(Server):
    """Serves what it cannot refuse."""

    requestRefused = AdmittedProtocol.requestRefused


class Deaf(Server):
    """Is not told of other limits."""

    def throttled(self, delaySeconds: float) -> None:
        super().throttled(delaySeconds)
        self.factory.debts.throttled.clear()


class Hoarding(Server):
    """Keeps the turn of what waits."""

    def park(self) -> None:
        assert self.request is not None
        self.driver.park(self.request)


class Faithful(Server):
    """Goes on for those who have left."""

    def peerGone(self) -> None:
        pass

    def requestsAbandoned(self) -> None:
        pass


class Hasty(Server):
    """Closes before it has answered."""

    def drain(self) -> None:
        self.abortConnection()


class FaultsTests(SeededFaultsTestCase):
    """Servers with one fault each do not keep the rules."""

    def test_faults(self) -> None:
        """The rule that a fault breaks says so."""
        for protocol, test in (
            (Uncharged, "test_charged"),
            (Impatient, "test_quota"),
            (Forgetful, "test_debtFollowsClient"),
            (Silent, "test_refused"),
            (Deaf, "test_newLimits"),
            (Hoarding, "test_inProgress"),
            (Faithful, "test_hangUp"),
            (Hasty, "test_drain"),
        ):
            self.assertBroken(FramedContract, test, protocol.__name__, protocol=protocol)
