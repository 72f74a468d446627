"""The rules for servers on the driver, for a site over HTTP/1.1 and over HTTP/2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar

import hpack
import twisted.internet
import twisted.internet.reactor
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from admission import Admission
from admission.connection.factory import AdmittedFactory
from admission.interfaces import Refusal
from admission.testing.faketransport import FakeTransport
from admission.testing.servercontract import REFUSED, SERVED, AdmittedServerContract, WatchedPolicy
from admission.web import byHeader, protectSite

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

ANSWERS = {200: SERVED, 429: REFUSED, 503: REFUSED}


class Desk(Resource):
    """Answers at once, or under C{/waiting} when it is told to; it forgets those that have left."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []

    def render_PUT(self, request: Any) -> Any:
        """An answer that is not empty."""
        if request.path != b"/waiting":
            return b"here"
        self.waiting.append(request)
        request.notifyFinish().addErrback(self._left, request)
        return NOT_DONE_YET

    def release(self) -> None:
        """Answer those that wait."""
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            request.write(b"here")
            request.finish()

    def _left(self, _: Failure, request: Any) -> None:
        self.waiting.remove(request)


class SiteContract(AdmittedServerContract):
    """A site; a client that is to wait is answered 429 meanwhile."""

    refusalOf: ClassVar[Callable[[Any], Refusal] | None] = None

    def buildServer(self, clock: Clock, policy: WatchedPolicy) -> AdmittedFactory:
        """One whose clients say who they are; Twisted's connections of HTTP/2 take the reactor that there is."""
        self.patch(twisted.internet, "reactor", clock)
        self.desk = Desk()
        self.admission = Admission(pool="bounded:16MiB", quota=policy, reactor=MemoryReactorClock(), clock=clock)
        factory = protectSite(
            self.admission,
            Site(self.desk, reactor=clock),
            nameOf=byHeader("client", isSecret=False),
            refusalOf=self.refusalOf,
            random=Random(1),
            inThread=lambda function: succeed(function()),
        )
        factory.doStart()
        self.addCleanup(factory.doStop)
        return factory

    def stop(self) -> Deferred[Any]:
        """With all servers of its process."""
        return self.admission.stop()

    def waiting(self) -> int:
        """What the desk knows."""
        return len(self.desk.waiting)

    def release(self) -> None:
        """It answers."""
        self.desk.release()


class Http1Contract(SiteContract):
    """By a connection for one request after the other."""

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """With a body, which is memory."""
        path = "waiting" if isWaiting else f"{number}"
        return f"PUT /{path} HTTP/1.1\r\nHost: site\r\nClient: {client}\r\nContent-Length: 4\r\n\r\nbody".encode()

    def answersIn(self, received: bytes) -> Sequence[str]:
        """By their first lines."""
        return [ANSWERS[int(each[:3])] for each in received.split(b"HTTP/1.1 ")[1:]]


class Http2Contract(SiteContract):
    """By a connection with a stream for each request."""

    def connect(self) -> FakeTransport:
        """With what every connection begins with."""
        transport = super().connect()
        transport.negotiatedProtocol = b"h2"  # type: ignore[attr-defined]
        transport.peerSends(PREFACE + SettingsFrame().serialize())
        self.settle()
        return transport

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """With a body; each is encoded by itself, so that the connection does not matter."""
        path = "/waiting" if isWaiting else f"/{number}"
        pseudo = [(":method", "PUT"), (":path", path), (":authority", "site"), (":scheme", "https")]
        stream = 2 * number + 1
        headers = HeadersFrame(stream, hpack.Encoder().encode([*pseudo, ("client", client)]), flags=["END_HEADERS"])
        return headers.serialize() + DataFrame(stream, b"body", flags=["END_STREAM"]).serialize()

    def answersIn(self, received: bytes) -> Sequence[str]:
        """By the frames that end streams."""
        decoder, statuses, answers = hpack.Decoder(), {}, []
        while received:
            frame, sizeBytes = Frame.parse_frame_header(memoryview(received[:9]))
            frame.parse_body(memoryview(received[9 : 9 + sizeBytes]))
            received = received[9 + sizeBytes :]
            if isinstance(frame, HeadersFrame):
                statuses[frame.stream_id] = int(dict(decoder.decode(frame.data))[":status"])
            if "END_STREAM" in frame.flags:
                answers.append(ANSWERS[statuses[frame.stream_id]])
        return answers


class Http1Tests(Http1Contract, SynchronousTestCase):
    """Over HTTP/1.1."""


class Http2Tests(Http2Contract, SynchronousTestCase):
    """Over HTTP/2."""


class DelayingContract(SiteContract):
    """A site whose clients wait instead."""

    def refusalOf(self, request: Any) -> Refusal:  # type: ignore[override]
        """All but what is refused by other words than a delay."""
        return Refusal.DELAY if self.policy.decision.admitted else Refusal.ERROR

    def test_answeredLater(self) -> None:
        """What its client asks meanwhile is answered then, and by nothing but an answer."""
        transport = self.connect()
        self.policy.delaySeconds = 2.0
        self.send(transport, self.encode("alice", 1))
        self.policy.delaySeconds = 0.0
        self.assertEqual(self.send(transport, self.encode("alice", 2)), [SERVED])
        self.clock.advance(2.1)
        self.settle()
        self.assertEqual(self.answersIn(bytes(transport.received)), [SERVED] * 2)
        self.assertNothingHeld()

    def test_drainWaiting(self) -> None:
        """When the server stops, what waits for that is refused at once."""
        transport = self.connect()
        self.policy.delaySeconds = 2.0
        self.send(transport, self.encode("alice", 1))
        self.assertEqual(self.send(transport, self.encode("alice", 2)), [SERVED])
        emptied = self.stop()
        self.settle()
        self.assertEqual(self.answersIn(bytes(transport.received)), [SERVED, REFUSED])
        self.settle()
        self.successResultOf(emptied)
        self.assertNothingHeld()


class DelayingHttp1Tests(DelayingContract, Http1Contract, SynchronousTestCase):
    """Over HTTP/1.1."""


class DelayingHttp2Tests(DelayingContract, Http2Contract, SynchronousTestCase):
    """Over HTTP/2."""
