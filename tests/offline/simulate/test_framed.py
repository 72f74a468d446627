"""Requests in frames, served in virtual time, against the replay of their recording."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from hypothesis import example, given, settings, strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from admission.admission import Admission
from admission.connection.admitted import AdmittedProtocol
from admission.interfaces import DEFAULT, Decision, QuotaEntity, Traits
from admission.request import ServerRequest
from admission.testing.faketransport import FakeTransport
from tests.kit.admitted import advanceTo, framed
from tests.kit.identitygate import assertAsRecorded, gate, readRecording
from tests.kit.keptevents import Kept
from tests.kit.recordings import writeRecording

SECONDS = 20.0


class Server(AdmittedProtocol):
    """Answers C{CLIENT KIND SIZE} with so many bytes: a get later, of which only the answer counts."""

    reactor: Any

    def identify(self, request: ServerRequest) -> None:
        client, kind, _ = bytes(request.frame).split(b" ", 2)
        request.clientId, request.kind = client.decode(), kind.decode()
        if request.kind == "get":
            request.traits = Traits(countsReceived=False, waitsForOthers=True)

    def requestReceived(self, request: ServerRequest) -> Any:
        answer = bytes(int(bytes(request.frame).split(b" ", 3)[2]))
        if request.kind == "put":
            return answer
        later: Deferred[bytes] = Deferred(lambda cancelled: call.cancel())
        call = self.reactor.callLater(0.05, later.callback, answer)
        return later


class Counted(Server):
    """Takes a moment for each request, since a recording tells which of two began first only by the time."""

    def identify(self, request: ServerRequest) -> None:
        self.reactor.rightNow += 20e-6
        super().identify(request)


class Refusing(Counted):
    """Tells those that are refused, which takes a moment, too."""

    def requestRefused(self, request: ServerRequest, decision: Decision) -> bytes:
        self.reactor.rightNow += 5e-3
        return b"no"


class FramedTests(SynchronousTestCase):
    """Each replay of the policies in force says what the server said."""

    def serve(
        self,
        policies: Sequence[str],
        clients: int,
        seed: int,
        changes: Sequence[tuple[float, float]],
        limitName: str = "producer_byte_rate",
        server: type[Server] = Server,
    ) -> Any:
        """Serve clients for a while, and replay that."""
        reactor: Any = MemoryReactorClock()
        reactor.getThreadPool = lambda: None
        kept = Kept()
        admission = Admission(pool="bounded:16MiB", quota=policies, export=kept, reactor=reactor, clock=reactor)
        served = type("Served", (server,), {"reactor": reactor})
        factory = admission.frames(served)
        factory.doStart()
        random = Random(seed)
        transports: list[FakeTransport] = []
        due: list[tuple[float, int]] = [(random.uniform(0.01, 0.5), index) for index in range(clients)]
        due += [(atSeconds, clients + index) for index, (atSeconds, _) in enumerate(changes)]
        due.sort()
        for index in range(clients):
            address = IPv4Address("TCP", f"192.0.2.{index}", 50_000)
            transports.append(FakeTransport(reactor, factory.buildProtocol(address), address))
            transports[-1].connect()
        while due and due[0][0] < SECONDS:
            atSeconds, index = heappop(due)
            advanceTo(reactor, atSeconds)
            if index >= clients:
                admission.setLimits(QuotaEntity(clientId=DEFAULT), {limitName: changes[index - clients][1]})
                continue
            kind = random.choice([b"put", b"get"])
            body = b"client-%d %s %d " % (index % 2, kind, random.randrange(30_000)) + bytes(random.randrange(30_000))
            transports[index].peerSends(framed(body))
            heappush(due, (atSeconds + random.uniform(0.05, 0.7), index))
        for transport in transports:
            transport.abortConnection()
        reactor.advance(0)
        # The recording goes on for a moment, or rounding might put the last request behind its end.
        reactor.advance(1.0)
        last = FakeTransport(reactor, factory.buildProtocol(IPv4Address("TCP", "192.0.2.9", 50_000)))
        last.connect()
        last.peerSends(framed(b"bystander put 1 "))
        reactor.advance(0)
        last.abortConnection()
        reactor.advance(0)
        factory.doStop()
        directory = self.mktemp()
        for seq, event in enumerate(kept.events, 1):
            event.seq = seq
        writeRecording(directory, kept.events, kept.origin)
        return gate(readRecording(directory))

    def test_bothDirections(self) -> None:
        """Bytes count in the directions that a kind says, and clients are throttled for them."""
        judged = self.serve(["client-bytes:produce=40k:fetch=20k"], 3, 1, [(5.0, 80_000.0)])
        self.assertGreater(judged[0].throttled, 3)
        assertAsRecorded(self, judged)

    @settings(max_examples=15, deadline=None)
    @given(
        st.sampled_from(
            [
                ["client-bytes:produce=40k:fetch=30k"],
                ["client-bytes:fetch=20k:algorithm=bucket"],
                ["client-bytes:produce=20k", "request-time:percent=5"],
            ]
        ),
        st.integers(1, 4),
        st.integers(0, 1000),
        st.lists(st.tuples(st.floats(0.5, 18.0), st.sampled_from([10_000.0, 80_000.0, 1e6])), max_size=3),
    )
    # Those whom the first change lets go are served before the second one, which comes at the same moment.
    @example(["client-bytes:produce=20k", "request-time:percent=5"], 3, 499, [(12.5, 1e6), (12.5, 10_000.0)])
    def test_any(self, policies: list[str], clients: int, seed: int, changes: list[tuple[float, float]]) -> None:
        """So it is for all policies, clients that do not wait for answers, and limits that change."""
        assertAsRecorded(self, self.serve(policies, clients, seed, changes))

    def test_kinds(self) -> None:
        """Requests of kinds that do not count are replayed as such."""
        judged = self.serve(["request-time:percent=0.001:kinds=put"], 3, 1, [], server=Counted)
        self.assertGreater(judged[0].throttled, 3)
        self.assertLess(judged[0].throttled, judged[0].compared)
        assertAsRecorded(self, judged)

    @settings(max_examples=15, deadline=None)
    @given(
        st.sampled_from(
            [
                "requests:rate=1:burst=5",
                "requests:rate=3",
                "requests:rate=2:shadow=yes",
                "requests:rate=1:kinds=get",
            ]
        ),
        st.sampled_from([Counted, Refusing]),
        st.integers(1, 4),
        st.integers(0, 1000),
        st.lists(st.tuples(st.floats(0.5, 18.0), st.sampled_from([0.5, 4.0, 100.0])), max_size=3),
    )
    def test_requests(
        self, policy: str, server: type[Server], clients: int, seed: int, changes: list[tuple[float, float]]
    ) -> None:
        """Where requests count as they begin, it is so, too, whether or not refusals are told."""
        assertAsRecorded(self, self.serve([policy], clients, seed, changes, "request_rate", server))
