"""Requests of a site, served in virtual time, against the replay of their recording."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.web import byHeader, byRoutes
from tests.kit.admitted import advanceTo
from tests.kit.identitygate import assertAsRecorded, gate, readRecording
from tests.kit.keptevents import Kept
from tests.kit.recordings import writeRecording
from tests.kit.website import Visitor, WebServer

SECONDS = 10.0


def finish(request: Any) -> None:
    """Answer a request whose client is still there; of another one nothing is kept."""
    if not request.finished and not request._disconnected:
        request.setHeader(b"Content-Length", b"0")
        request.finish()


class SiteTests(SynchronousTestCase):
    """Each replay of the policies in force says what the site said."""

    def serve(self, policies: list[str], visitors: int, seed: int, isPressed: bool = False) -> tuple[Any, list[int]]:
        """
        Serve visitors for a while, and replay that; what is said of each policy, and what was answered.

        @param isPressed: whether the reactor is late now and then, and little memory free.
        """
        kept, random = Kept(), Random(seed)
        server = WebServer(
            self,
            quota=policies,
            export=kept,
            kindOf=byRoutes("/later", "/..."),
            nameOf=byHeader("x-key", isSecret=False),
        )
        clock: Any = server.clock

        def ticking() -> float:
            # A recording tells which of two began first only by the time.
            clock.rightNow += 1e-6
            return float(clock.rightNow)

        clock.seconds = ticking
        server.factory.doStart()
        connected: dict[int, Visitor] = {}
        statuses: list[int] = []
        taken = ExitStack()
        for step in range(int(SECONDS * 20)):
            advanceTo(clock, step / 20)
            clock.rightNow += random.uniform(1e-4, 1e-2)
            taken.close()
            if isPressed and step // 20 % 3 == 1:
                clock.rightNow += random.uniform(0.05, 0.1)
            elif isPressed and step // 20 % 3 == 2:
                taken.callback(server.pool.charge(15 << 20, "elsewhere").release)
            number = random.randrange(visitors)
            visitor = connected.get(number)
            if visitor is None or visitor.transport.isLost or visitor.isWaiting:
                visitor = connected[number] = server.connect(f"192.0.2.{number}")
            path, body = random.choice(
                [("GET /later", b""), ("GET /", b""), ("PUT /", bytes(random.randrange(1, 9000)))]
            )
            if body and random.random() < 0.3:
                # It leaves before all of it has come.
                visitor.send(path, f"X-Key: {number % 3}", f"Content-Length: {len(body) + 1}", body=body)
                clock.rightNow += 1e-3
                visitor.transport.abortConnection()
                server.settle()
                continue
            visitor.send(path, f"X-Key: {number % 3}", body=body)
            while server.pages.requests and random.random() < 0.4:
                clock.rightNow += 1e-3
                finish(server.pages.requests.pop(0))
                server.settle()
            statuses += [answer.status for answer in visitor.answers()]
        taken.close()
        for visitor in connected.values():
            visitor.transport.abortConnection()
        server.pages.requests.clear()
        server.settle()
        clock.advance(3.0)
        server.connect("192.0.2.99").ask("GET /", "X-Key: bystander")
        for visitor in server.visitors:
            if not visitor.transport.isLost:
                visitor.transport.abortConnection()
        # What began last is over, too, before the recording ends, or it would not be there.
        server.pages.requests.clear()
        gc.collect()
        server.settle()
        server.factory.doStop()
        directory = self.mktemp()
        for seq, event in enumerate(kept.events, 1):
            event.seq = seq
        writeRecording(directory, kept.events, kept.origin)
        return gate(readRecording(directory)), statuses

    @settings(max_examples=20, deadline=None)
    @given(
        st.sampled_from(
            [
                ["requests:rate=3:burst=6"],
                ["client-bytes:received=5k:algorithm=bucket"],
                ["concurrency:limit=2:queue=5:wait=1s"],
                ["concurrency:limit=2:queue=5:wait=1s", "requests:rate=3:burst=6"],
                ["concurrency:limit=1", "requests:rate=3:burst=6", "client-bytes:received=5k:algorithm=bucket"],
            ]
        ),
        st.integers(1, 6),
        st.integers(0, 1000),
    )
    def test_any(self, policies: list[str], visitors: int, seed: int) -> None:
        """So it is for rates, for bytes and for places, alone and together, whoever waits and leaves."""
        judged, _ = self.serve(policies, visitors, seed)
        assertAsRecorded(self, judged)

    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 6), st.integers(0, 1000))
    def test_shed(self, visitors: int, seed: int) -> None:
        """So it is for what is refused since the reactor is late, or memory short."""
        policies = ["shed:kinds=GET /later:clients=2:lag=20ms:free=10%"]
        judged, statuses = self.serve(policies, visitors, seed, isPressed=True)
        self.assertIn(503, statuses)
        assertAsRecorded(self, judged)

    def test_refused(self) -> None:
        """There is something to say."""
        judged, statuses = self.serve(["requests:rate=2:burst=4"], 4, 1)
        self.assertTrue({200, 429} <= set(statuses), set(statuses))
        assertAsRecorded(self, judged)
