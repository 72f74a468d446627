"""Requests of a site, served in virtual time, against the replay of their recording."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from operator import itemgetter
from random import Random
from typing import Any

from hypothesis import example, given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity, Refusal
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

    def serve(
        self,
        policies: list[str],
        visitors: int,
        seed: int,
        isPressed: bool = False,
        changes: Sequence[tuple[float, str | None, str, float | None]] = (),
    ) -> tuple[Any, list[int]]:
        """
        Serve visitors for a while, and replay that; what is said of each policy, and what was answered.

        @param isPressed: whether the reactor is late now and then, and little memory free.
        @param changes: when whose limits change, of which client id, to what.
        """
        kept, random = Kept(), Random(seed)
        server = WebServer(
            self,
            quota=policies,
            export=kept,
            kindOf=byRoutes("/later", "/waits", "/..."),
            nameOf=byHeader("x-key", isSecret=False),
            refusalOf=lambda web: Refusal.DELAY if web.path == b"/waits" else Refusal.ERROR,
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
        waiting = sorted(changes, key=itemgetter(0))
        for step in range(int(SECONDS * 20)):
            advanceTo(clock, step / 20)
            while waiting and waiting[0][0] * 20 <= step:
                _, clientId, limitName, value = waiting.pop(0)
                server.admission.setLimits(QuotaEntity(clientId=clientId), {limitName: value})
                server.settle()
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
                [
                    ("GET /later", b""),
                    ("GET /", b""),
                    ("GET /waits", b""),
                    ("PUT /", bytes(random.randrange(1, 9000))),
                    ("PUT /waits", bytes(random.randrange(1, 9000))),
                ]
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
        """So it is for rates, for bytes and for places, alone and together, whichever visitors wait and leave."""
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

    @settings(max_examples=20, deadline=None)
    @given(
        st.sampled_from(
            [
                ("client-bytes:received=5k", "received_byte_rate"),
                ("client-bytes:received=5k:algorithm=bucket", "received_byte_rate"),
                ("requests:rate=3:burst=6", "request_rate"),
            ]
        ),
        st.integers(1, 6),
        st.integers(0, 1000),
        st.lists(
            st.tuples(st.floats(0.5, SECONDS), st.sampled_from(["0", "1", DEFAULT]), st.sampled_from([0.5, 2.0, None])),
            min_size=1,
            max_size=4,
        ),
    )
    # Requests have begun, and counted, when nobody has a limit any more.
    @example(("requests:rate=3:burst=6", "request_rate"), 6, 7821, [(2.15, DEFAULT, None), (4.83, DEFAULT, 2.0)])
    def test_anyChange(
        self, policy: tuple[str, str], visitors: int, seed: int, changes: list[tuple[float, str, float | None]]
    ) -> None:
        """So it is for limits that are raised, lowered and removed, while some visitors are refused or wait."""
        description, limitName = policy
        unit = 3.0 if limitName == "request_rate" else 5000.0
        judged, _ = self.serve(
            [description],
            visitors,
            seed,
            changes=[(at, clientId, limitName, factor and factor * unit) for at, clientId, factor in changes],
        )
        assertAsRecorded(self, judged)

    def test_refused(self) -> None:
        """There is something to say."""
        judged, statuses = self.serve(["requests:rate=2:burst=4"], 4, 1)
        self.assertTrue({200, 429} <= set(statuses), set(statuses))
        assertAsRecorded(self, judged)
