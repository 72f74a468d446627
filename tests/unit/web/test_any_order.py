"""Requests of a site that do anything in any order: in the end nothing is held."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import ConnectionLimits
from admission.interfaces import DEFAULT, QuotaEntity
from tests.kit.website import Visitor, WebServer

KIB = 1 << 10

ACTIONS = (
    "get",
    "later",
    "put",
    "some",
    "more",
    "chunks",
    "form",
    "finish",
    "write",
    "close",
    "abort",
    "limits",
    "time",
    "stop",
)


class AnyOrderTests(SynchronousTestCase):
    """By HTTP/1.1; threads that write files take their time."""

    @settings(max_examples=150, deadline=None)
    @given(
        steps=st.lists(
            st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.sampled_from(ACTIONS), st.booleans()), max_size=40
        ),
        quota=st.sampled_from(
            [
                [],
                ["concurrency:total=2:queue=2:wait=1s"],
                ["requests:rate=2:burst=4", "client-bytes:received=100k:algorithm=bucket"],
            ]
        ),
        poolKiB=st.sampled_from([128, 1024]),
    )
    def test_any(self, steps: list[tuple[str, int, str, bool]], quota: list[str], poolKiB: int) -> None:
        """Each request is answered once at most, and gives back memory, files and places whatever becomes of it."""
        server = WebServer(
            self,
            pool=f"bounded:{poolKiB}KiB",
            quota=quota,
            spoolBytes=64 * KIB,
            maxSpooledBytes=400 * KIB,
            maxBodyBytes=300 * KIB,
            limits=ConnectionLimits(receiveSeconds=3, sendSeconds=3),
        )
        server.writes = []
        server.factory.doStart()
        visitors: list[Visitor] = [server.connect()]
        unsent: dict[Visitor, int] = {}
        stopped: list[Deferred[Any]] = []
        leaving: set[Visitor] = set()

        def visitorAt(which: int) -> Visitor:
            visitor = visitors[which % len(visitors)]
            if visitor.transport.isLost or (which == 5 and len(visitors) < 6):
                visitor = server.connect(f"192.0.2.{which}")
                visitors.append(visitor)
            return visitor

        def do(action: str, which: int) -> None:
            visitor = visitorAt(which)
            sizeBytes = (10, 5_000, 70_000, 200_000, 290_000, 400_000)[which]
            if action in ("get", "later"):
                visitor.send("GET /later" if action == "later" else "GET /")
            elif action == "put":
                visitor.send("PUT /later" if which % 2 else "PUT /", body=bytes(sizeBytes))
            elif action == "some":
                visitor.send("PUT /", f"Content-Length: {sizeBytes}", "Expect: 100-continue")
                unsent[visitor] = sizeBytes
            elif action == "more":
                part = min(unsent.pop(visitor, 0), 50_000)
                visitor.raw(bytes(part))
            elif action == "chunks":
                visitor.send(
                    "PUT /", "Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n" % (sizeBytes, bytes(sizeBytes))
                )
            elif action == "form":
                form = "Content-Type: application/x-www-form-urlencoded"
                visitor.send("POST /later", form, body=b"a=1&" * (sizeBytes // 100 + 1))
            elif action in ("finish", "write"):
                later = [each for each in server.pages.requests if each.path == b"/later" and not each.finished]
                if later:
                    answer(later[which % len(later)], action)
            elif action == "close":
                visitor.transport.peerCloses()
            elif action == "abort":
                if not visitor.transport.isLost:
                    visitor.transport.abortConnection()
            elif action == "stop":
                if which == 0:
                    stopped.append(server.admission.stop())
                    leaving.update(visitors)
            elif action == "limits" and quota:
                names = server.admission.control.limitNames
                server.admission.setLimits(QuotaEntity(clientId=DEFAULT), {names[which % len(names)]: float(which + 1)})
            else:
                while server.writes:
                    server.writes.pop(0)()
                server.clock.advance(which / 2)

        for action, which, then, isSettled in steps:
            do(action, which)
            if isSettled:
                server.settle()
            do(then, (which + 1) % 6)
        for _ in range(3):
            do("time", 5)
        self.assertTrue(all(visitor.transport.isLost for visitor in leaving))
        server.close(self)
        for each in stopped:
            self.successResultOf(each)
        server.factory.doStop()


def answer(request: Any, action: str) -> None:
    """As a site does that does not look whether its client has gone."""
    try:
        if action == "write":
            request.write(b"some")
        else:
            request.finish()
    except RuntimeError:
        # It has gone.
        pass
