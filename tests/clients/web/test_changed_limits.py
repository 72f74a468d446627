"""
Limits that are raised, lowered and removed while clients of a site wait or are refused: what was recorded of it replays
exactly.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from traceback import format_exc
from urllib.request import Request, urlopen

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from admission.web import digestOf
from tests.clients.web.publicsite import KEY, PATIENT
from tests.clients.web.siteclients import Case, Client, Curl, Site, askAtOnce, askByTreq
from tests.clients.web.test_same_answers import ServedSite
from tests.kit.brokerprocess import PATIENCE_SECONDS, until
from tests.kit.identitygate import delaysUnder, gate, readRecording
from tests.kit.replaymodel import Recording

FIRST, RAISED, LOWERED = 400_000.0, 600_000.0, 300_000.0
CHANGES = (RAISED, LOWERED, None)
"""What becomes of the first limit of each client; L{None} is none any more."""

LIMIT = "sent_byte_rate"

POLICIES = ("client-bytes:algorithm=bucket:burst=50ms", "client-bytes:shadow=yes")
"""The first has clients wait, or refuses them, and both are replayed."""

ANSWER_BYTES = 100_000
"""More than the burst, so that each answer brings a delay, however slow a client is."""

REST_SECONDS = 0.1
"""Between batches of requests, so that refused clients leave the machine to others."""

THROTTLED_TIMES = 2
"""How often a client is throttled under each limit, at least."""

APART_SECONDS = 0.001
"""Delays that end farther apart are two."""


def clients() -> dict[str, tuple[Client, int]]:
    """By name, with how many requests make a batch: many where a process is started for it, few where all are one."""
    return {"curl": (Curl("--http1.1"), 5), "treq": (askByTreq, 20), "streams": (askAtOnce, 3)}


class Visitor:
    """
    A client that asks as often as it can, in a thread of its own.

    @ivar key: its key.
    @ivar isPatient: whether it waits instead of being refused.
    @ivar mistakes: what went wrong.
    @ivar statuses: what it was answered.
    @ivar delayEnd: until when it had to wait at the last look.
    """

    def __init__(self, name: str, client: Client, batch: int, site: Site, isPatient: bool) -> None:
        self.key = f"{name}-patient" if isPatient else name
        self.isPatient = isPatient
        self.mistakes: list[str] = []
        self.statuses: list[int] = []
        self.delayEnd = 0.0
        headers = {KEY: self.key, **({PATIENT: "yes"} if isPatient else {})}
        self._cases = {str(n): Case("GET", f"/produced/{ANSWER_BYTES}", headers=headers) for n in range(batch)}
        self._client = client
        self._site = site
        self._isOver = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Have it end when it can."""
        self._isOver.set()

    def finish(self) -> list[str]:
        """Wait until it has ended, and say what went wrong."""
        self.release()
        self._thread.join(PATIENCE_SECONDS)
        return self.mistakes or [f"{self.key} does not end"] * self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._isOver.wait(REST_SECONDS):
                self.statuses += [each.status for each in self._client(self._site, self._cases).values()]
        except Exception:
            self.mistakes.append(format_exc())


class ChangedLimitsTests(SynchronousTestCase):
    """Limits change while clients wait, or are refused."""

    def test_replayed(self) -> None:
        """
        Each client is throttled under its first limit, a raised one and a lowered one, each of which is set while it
        owes time, and is served again when that is removed.  Replays reproduce every decision, to the microsecond.
        """
        recording = self.record()
        judged = gate(recording)
        self.assertEqual(
            [(each.candidate, each.mode) for each in judged],
            [(f"recorded client-bytes{own}", mode) for own in ("", "#2") for mode in ("closed", "open")],
        )
        print(f"{self.id()}: {[each.inWords() for each in judged]}", file=sys.stderr)
        for each in judged:
            self.assertEqual((each.matchShare, each.meanErrorMs, each.missing), (1.0, 0.0, 0), each.inWords())
            self.assertGreater(each.throttled, 0)

    def record(self) -> Recording:
        """Have all clients ask while their limits change."""
        directory = Path(tempfile.mkdtemp(prefix="admission-recording-"))
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        served = ServedSite(directory, {"quota": POLICIES, "export": f"spark:{directory}"})
        self.addCleanup(served.stop)
        self.site = served.site
        visitors = []
        for name, (client, batch) in clients().items():
            for isPatient in (True, False):
                # Where curl writes what it is answered.
                own = directory / f"{name}-{isPatient}"
                own.mkdir()
                visitors.append(Visitor(name, client, batch, evolve(self.site, files=own), isPatient))
                self.addCleanup(visitors[-1].release)
        for value in (FIRST, *CHANGES):
            for visitor in visitors:
                if value is not FIRST:
                    self.untilDelayEnds(visitor, 0.0)
                self.limit(visitor, value)
                visitor.delayEnd = self.delayEnd(visitor)
            for visitor in visitors if value is not None else ():
                for _ in range(THROTTLED_TIMES):
                    self.untilDelayEnds(visitor, visitor.delayEnd + APART_SECONDS)
        for visitor in visitors:
            self.assertEqual(visitor.finish(), [], visitor.key)
            self.assertIn(200, visitor.statuses)
            # Others are refused, unless they take longer than their delays to come again.
            self.assertLessEqual(set(visitor.statuses), {200} if visitor.isPatient else {200, 429}, visitor.key)
        served.stop()
        self.assertEqual(served.troubles(), [])
        recording = readRecording(str(directory))
        for visitor in visitors:
            self.assertThrottled(recording, digestOf(visitor.key.encode()))
        return recording

    def limit(self, visitor: Visitor, value: float | None) -> None:
        """Set the limit of a client, or remove it."""
        self.ask(visitor, json.dumps([LIMIT, value]).encode())

    def delayEnd(self, visitor: Visitor) -> float:
        """When a client need wait no longer, by the site's clock; 0 if it does not wait."""
        return float(json.loads(self.ask(visitor)))

    def ask(self, visitor: Visitor, body: bytes | None = None) -> bytes:
        """Ask about a client's limits, or change them."""
        request = Request(f"http://127.0.0.1:{self.site.port}/limits/{visitor.key}", body)
        with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            said: bytes = answer.read()
        return said

    def untilDelayEnds(self, visitor: Visitor, afterSeconds: float) -> None:
        """Wait until a client has to wait for longer than until then."""

        def isLater() -> bool:
            visitor.delayEnd = self.delayEnd(visitor)
            return visitor.delayEnd > afterSeconds or bool(visitor.mistakes)

        until(isLater)
        self.assertEqual(visitor.mistakes, [], visitor.key)

    def assertThrottled(self, recording: Recording, clientId: str) -> None:
        """Requests of a client were throttled under each of its limits."""
        held = delaysUnder(recording, clientId, LIMIT)
        self.assertEqual([value for value, _ in held], [FIRST, *CHANGES])
        for value, delays in held:
            self.assertEqual(bool(delays), value is not None, f"{clientId} under {value}: {delays}")
