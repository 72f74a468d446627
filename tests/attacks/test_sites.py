"""A protected site under each of L{tests.attacks.siteattacks}, and what a client of good manners notices."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from tests.attacks.attackedsite import LARGE_BYTES
from tests.attacks.siteattacks import ATTACKS, CUT_OFF, get
from tests.kit.attack import MIB, WAIT_SECONDS, sized
from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.fairclock import FairClock
from tests.kit.goodclient import HOST, quantile
from tests.kit.longform import isLongForm

POOL_BYTES = 64 * MIB
BEYOND_BYTES = 64 * MIB
"""How much may be in memory beside the pool and the largest write."""

SECONDS = sized(2.0, 10.0)
_EVERY_SECONDS = 0.01
_COUNTER = re.compile(
    r'^admission_(?:connections_(cut_off|refused)|responses)_total(?:\{.*status="(.*)"\})? (.*)$', re.M
)
_REASON = re.compile(r"closing the connection of [^ ]*: (.*)")
_LEFT_OUT = "for such reasons"
"""What the log says of those that it does not name."""

_BEFORE_REQUESTS = 20


class SitesTests(SynchronousTestCase):
    """A site in a process of its own, and a client that asks for a small page at a time."""

    how = "protected"

    def run_(self, name: str) -> None:
        """
        Attack for a while, and judge.

        @param name: of the attack.
        """
        server, ports = self.start("attackedsite", self.how, str(POOL_BYTES), *ATTACKS[name].quota)
        good = Good(server.pid, int(ports.split()[0]))
        for _ in range(_BEFORE_REQUESTS):
            good.ask()
        before = peak = anonymousBytes(server.pid)
        isOver = threading.Event()
        thread = threading.Thread(target=good.run, args=(isOver,))
        self.addCleanup(thread.join)
        self.addCleanup(isOver.set)
        thread.start()
        attacker, _ = self.start("siteattacks", name, *ports.split()[:2])
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            peak = max(peak, anonymousBytes(server.pid))
            time.sleep(_EVERY_SECONDS)
        self.assertIsNone(attacker.poll(), "the attackers have given up")
        isOver.set()
        thread.join()
        seen = json.loads(attacker.communicate()[0])
        with urlopen(f"http://127.0.0.1:{ports.split()[2]}/metrics") as page:
            metrics = page.read().decode()
        p50, p99, most = (1000 * quantile(good.latencies, each) for each in (0.5, 0.99, 1.0))
        print(
            f"\n{self.how}, {name}: grew {(peak - before) / MIB:.1f} MiB; good client p50 p99 max: {p50:.1f} {p99:.1f} "
            f"{most:.1f} ms, {len(good.latencies)} answers, {len(good.failures)} failures {set(good.failures) or ''}"
        )
        self.assertFalse(good.failures)
        if self.how == "protected":
            self.assertExplained(seen, metrics, ATTACKS[name].explained)
        self.assertLess(peak - before, POOL_BYTES + BEYOND_BYTES + LARGE_BYTES)
        self.assertLess(p99, 1000 * (ATTACKS[name].promisedSeconds if isLongForm() else WAIT_SECONDS))

    def assertExplained(self, seen: dict[str, int], metrics: str, explained: Collection[str]) -> None:
        """
        The owner of the site can tell what was refused, and why: all that attackers have seen of it is counted, and
        each sentence of the log is one that explains this attack.

        @param seen: see L{tests.attacks.siteattacks.SEEN}.
        @param metrics: of the site.
        @param explained: see L{tests.attacks.siteattacks.Attack}.
        """
        counted: Counter[str] = Counter()
        for name, status, number in _COUNTER.findall(metrics):
            # Refusals are counted by their own status.
            counted[f"{status[0]}xx" if status else name] += int(float(number))
        log = Path(self._log).read_text()
        refusals = sum(counted[each] for each in ("4xx", "5xx", "cut_off", "refused"))
        print(f"seen {seen}, counted {dict(counted)}, {sorted(set(_REASON.findall(log)))}")
        for status in seen.keys() - {CUT_OFF}:
            self.assertIn(status, explained)
            self.assertGreaterEqual(counted[status], seen[status])
        # An attacker that was answered and sent more may have seen the end of the connection only.
        self.assertGreaterEqual(refusals, seen.get(CUT_OFF, 0))
        for line in log.splitlines():
            self.assertTrue(any(each in line for each in (*explained, _LEFT_OUT)), line)
        hasExplained = any(each in log or counted[each] for each in explained)
        self.assertTrue(hasExplained or not refusals)

    def start(self, module: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        """
        Start a process that ends with the test.

        @return: it, and the first line that it says, when it has begun.
        """
        isSite = module == "attackedsite"
        if isSite:
            self._log = self.mktemp()
        with open(self._log, "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.attacks.{module}", *arguments],
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log if isSite else None,
                text=True,
            )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        return process, process.stdout.readline()


class Good:
    """
    A client of good manners.

    @ivar latencies: how long it waited for each answer, in seconds; if there was none, how long it would have.
    @ivar asked: when it asked for each, in seconds of the monotonic clock.
    """

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port
        self._socket: socket.socket | None = None
        self.latencies: list[float] = []
        self.asked: list[float] = []
        self.failures: list[str] = []

    def ask(self) -> None:
        """
        Ask for the small page.

        @raise OSError: if there is no answer, or another.
        """
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), WAIT_SECONDS, (HOST, 0))
        self._socket.sendall(get("/"))
        answer = b""
        while not answer.endswith(b"\r\n\r\n0"):
            data = self._socket.recv(4096)
            answer += data
            if not data or not answer.startswith(b"HTTP/1.1 200 "[: len(answer)]):
                raise ConnectionError(f"answered {answer[:20]!r}")

    def run(self, isOver: threading.Event) -> None:
        """Ask again and again."""
        clock = FairClock("thread-self", f"{self._pid}/task/{self._pid}")
        while not isOver.wait(_EVERY_SECONDS):
            self.asked.append(time.monotonic())
            begun = clock.seconds()
            try:
                self.ask()
                self.latencies.append(max(clock.seconds() - begun, 0.0))
            except OSError as error:
                self.failures.append(str(error))
                self.latencies.append(WAIT_SECONDS)
                if self._socket is not None:
                    self._socket.close()
                    self._socket = None
        if self._socket is not None:
            self._socket.close()


def anonymousBytes(pid: int) -> int:
    """How much memory a process has of its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def _add(name: str) -> None:
    def test(self: SitesTests) -> None:
        self.run_(name)

    test.__doc__ = f"{name}: memory and the client of good manners stay within what is promised."
    setattr(SitesTests, "test_" + "".join(each for each in name.title() if each.isalnum()), test)


for _name in ATTACKS:
    _add(_name)
