"""The broker of this tree in processes of its own, as an operator would run it."""

from __future__ import annotations

import atexit
import json
import os
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.request import urlopen

from admission.kafka.testing import serverprocess
from tests.kit.certificates import Certificates, makeCertificates
from tests.kit.checkout import ROOT

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in ("src", "plugins", ".")),
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "200",
    # kio imports hypothesis where that is installed, which would make a directory wherever a command runs.
    "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),
}
"""For the tree under test, whatever is installed."""

# When the tests are killed, nothing of theirs may live on: PR_SET_PDEATHSIG is 1.
_DIE_WITH_PARENT = f"import ctypes; ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d}); "

TWISTD = [sys.executable, "-c", _DIE_WITH_PARENT + "from twisted.scripts.twistd import run; run()", "-n", "--pidfile="]
TWIST = [sys.executable, "-c", _DIE_WITH_PARENT + "from twisted.application.twist._twist import Twist; Twist.main()"]

DYING_WITH_US = [sys.executable, "-c", _DIE_WITH_PARENT + "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"]
"""Before any command.  It dies when the I{thread} ends that has started it, which therefore is best the main one."""

PATIENCE_SECONDS = 5 * serverprocess.PATIENCE_SECONDS
"""How long to wait for what must happen, on a slow machine, too.  Only a test that fails waits for so long."""

_PAUSE_SECONDS = 0.005

_TRACEBACK = "Traceback (most recent call last)"


def until(condition: Callable[[], Any]) -> None:
    """
    Call C{condition} again and again until it returns something true.

    @raise AssertionError: if it never does.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{condition} never came true")
        time.sleep(_PAUSE_SECONDS)


@cache
def certificates() -> Certificates:
    """The certificates of this run of the tests."""
    directory = tempfile.mkdtemp(prefix="admission-certificates-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return makeCertificates(Path(directory))


@cache
def strangersAuthority() -> str:
    """The path of an authority's certificate that signed nothing of ours."""
    directory = tempfile.mkdtemp(prefix="admission-certificates-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return str(makeCertificates(Path(directory)).authority)


def freePort(host: str = "127.0.0.1", count: int = 1) -> int:
    """
    A port that nobody listens on, that no other call gets while this process lives, and that the system does not give
    to outgoing connections: a broker can be restarted there.

    @param host: where to look.
    @param count: how many ports in a row are wanted; the first is returned.
    """
    while True:
        port = random.randrange(20_000, 32_000 - count)
        with ExitStack() as probes, ExitStack() as reserved:
            try:
                for number in range(port, port + count):
                    probes.enter_context(socket.socket()).bind((host, number))
                    # UDP at the same port keeps it from other calls, also of other processes of the tests.
                    reserved.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", number))
            except OSError:
                continue
            atexit.register(reserved.pop_all().close)
        return port


def isReadable(file: Any, seconds: float = 0.0) -> bool:
    """Whether there is something to read within so many seconds; for any descriptor, as reserved ports are many."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def endpoint(port: int) -> str:
    """What C{--listen} is given for a plaintext port."""
    return f"tcp:{port}:interface=127.0.0.1"


def tlsEndpoint(port: int) -> str:
    """What C{--listen} is given for a TLS port."""
    files = certificates()
    return f"ssl:{port}:interface=127.0.0.1:privateKey={files.serverKey}:certKey={files.serverCertificate}"


def anonymousBytes(pid: int) -> int:
    """The resident anonymous memory of a process, private and shared; pages of a log's file are the system's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))
    )


class ServerProcess(serverprocess.ServerProcess):
    """
    A plug-in of C{twistd} in a directory of its own.

    @cvar command: what to run the plug-in with.
    @cvar plugin: its name.
    """

    failure = AssertionError
    command = TWISTD
    plugin: ClassVar[str]

    def __init__(self, *options: str) -> None:
        """@param options: those of the plug-in."""
        super().__init__(self.plugin)
        self.workingDirectory = self._directory
        self._options = [*options]

    def startedFor(self, case: Any) -> Self:
        """Start it, have it removed when a test ends, and return it."""
        case.addCleanup(self.remove)
        self.start()
        return self

    def complaints(self, begin: int = 0) -> list[str]:
        """Lines from C{begin} on that no client, however evil, should be able to cause."""
        return [
            line
            for line in self._lines[begin:]
            if _TRACEBACK in line or "this is a bug" in line or "#critical" in line or "Unhandled" in line
        ]

    def anonymousBytes(self) -> int:
        """See L{anonymousBytes}; of one that has several processes, of the first alone."""
        return anonymousBytes(self.process.pid)

    def _command(self) -> list[str]:
        return [*self.command, self.plugin, *self._options]

    def _environment(self) -> dict[str, str]:
        return ENVIRONMENT


class BrokerProcess(ServerProcess):
    """
    C{twistd admission} with a port for TCP, one for TLS and a data directory,
    all of its own.

    @ivar port: for TCP.
    @ivar tlsPort: for TLS.
    @ivar dataPath: the data directory.
    """

    plugin = "admission"

    def __init__(self, *options: str, advertisedHost: str | None = None, advertisedPort: int | None = None) -> None:
        """
        @param options: further options of C{twistd admission}.
        @param advertisedHost: what to advertise for both ports, if anything.
        @param advertisedPort: the port to go with it; by default each its own.
        """
        self.port, self.tlsPort = freePort(), freePort()
        super().__init__("--listen", endpoint(self.port), "--listen", tlsEndpoint(self.tlsPort), *options)
        self.dataPath = os.path.join(self._directory, "data")
        if advertisedHost is not None:
            for port in (self.port, self.tlsPort):
                self._options += ["--advertise", f"{advertisedHost}:{advertisedPort or port}"]
        self._options += ["--data", self.dataPath]

    @property
    def address(self) -> str:
        """Where clients find it without TLS."""
        return f"127.0.0.1:{self.port}"

    @property
    def tlsAddress(self) -> str:
        """Where clients find it with TLS."""
        return f"127.0.0.1:{self.tlsPort}"

    def _waitUntilServing(self, begin: int) -> None:
        self.waitForLog("serving .* from ", begin)


class ObservedBroker(BrokerProcess):
    """
    A broker with a status port.

    @ivar status: the URL of the port.
    """

    def __init__(self, *options: str) -> None:
        statusPort = freePort()
        self.status = f"http://127.0.0.1:{statusPort}"
        super().__init__("--status", endpoint(statusPort), *options)

    def read(self, page: str) -> str:
        """A page of the port."""
        with urlopen(f"{self.status}/{page}", timeout=PATIENCE_SECONDS) as response:
            text: str = response.read().decode()
            return text

    def ask(self, page: str) -> Any:
        """What a page has in JSON."""
        return json.loads(self.read(page))


class MeasuredProcess(serverprocess.AnsweringProcess, ServerProcess):
    """
    The same service, run by a module of ours, which tells what it holds.

    @cvar module: what runs it.
    """

    module: ClassVar[str]

    def report(self) -> dict[str, Any]:
        """What it holds, as it is now."""
        report: dict[str, Any] = self._asked("")
        return report

    def _command(self) -> list[str]:
        return [sys.executable, "-m", self.module, *self._options]


class MeasuredBroker(MeasuredProcess, BrokerProcess):
    """A broker that tells its sensors, its memory pool and the ledger; see L{tests.kit.memorybroker}."""

    module = "tests.kit.memorybroker"

    def watch(self) -> dict[str, Any]:
        """
        The same, and then begin to note anew the largest values, which reports
        have as well from now on; see L{tests.kit.memorybroker.Watch}.
        """
        report: dict[str, Any] = self._asked("watch")
        return report

    def audit(self, isCollected: bool = False) -> dict[str, Any]:
        """
        The same as L{report}, and what is there by another count; see L{tests.kit.memorybroker.auditOf}.

        @param isCollected: whether to look for garbage before.
        """
        report: dict[str, Any] = self._asked("collect" if isCollected else "audit")
        return report

    def waitUntil(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """
        Ask for reports until one fulfils C{condition}, and return it.

        @raise AssertionError: if none does, with the last one.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            report = self.report()
            if condition(report):
                return report
            if time.monotonic() > deadline:
                raise AssertionError(f"the broker did not get there: {report}\n{self.log()}")
            with self._changed:
                # Asking keeps the broker from getting there; news in its log are worth asking at once.
                self._changed.wait(0.02)

    def waitUntilWhole(self) -> None:
        """Wait until nobody is connected and all memory is back."""
        self.waitUntil(
            lambda report: (
                report["sensors"]["Connections"] == 0
                and report["availableBytes"] == report["sizeBytes"]
                and not any(report["ledger"].values())
            )
        )


class SampledBroker(MeasuredBroker):
    """
    A broker whose resident memory is watched from outside.

    @ivar peakAnonymousBytes: the most it had since that was last set.
    """

    def __init__(self, *options: str) -> None:
        super().__init__(*options)
        self.peakAnonymousBytes = 0
        self._isSampling = True
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Start it, and begin to watch."""
        super().start()
        self._sampler.start()

    def stop(self) -> int:
        """Watch no longer, and end it."""
        self._isSampling = False
        self._sampler.join()
        return super().stop()

    def _sample(self) -> None:
        while self._isSampling and self.isRunning():
            # It may have ended just now.
            with suppress(OSError):
                self.peakAnonymousBytes = max(self.peakAnonymousBytes, self.anonymousBytes())
            time.sleep(0.003)


@cache
def sharedBroker(*options: str) -> BrokerProcess:
    """A running broker for tests that do not mind each other: one for each set of options, ended when the tests are."""
    broker = BrokerProcess(*options)
    broker.start()
    return broker


@cache
def sharedMeasuredBroker(*options: str) -> MeasuredBroker:
    """The same, one that tells what it holds."""
    broker = MeasuredBroker(*options)
    broker.start()
    return broker
