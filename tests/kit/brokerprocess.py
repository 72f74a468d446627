"""The broker of this tree in processes of its own, as an operator would run it."""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar, Self
from urllib.request import urlopen

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

PATIENCE_SECONDS = 60.0
"""How long to wait for what must happen."""

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


class ServerProcess:
    """
    A plug-in of C{twistd} with a directory of its own.  It can be started,
    ended and started again.

    @cvar command: what to run the plug-in with.
    @cvar plugin: its name.
    """

    command = TWISTD
    plugin: ClassVar[str]

    def __init__(self, *options: str) -> None:
        """@param options: those of the plug-in."""
        self._directory = tempfile.mkdtemp(prefix=f"{self.plugin}-")
        self._options = [*options]
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        atexit.register(self.remove)

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process that was started last."""
        assert self._process is not None, "it was never started"
        return self._process

    def start(self) -> None:
        """
        Start it and wait until it serves.

        @raise AssertionError: if it does not, with its log.
        """
        assert self._process is None or self._process.poll() is not None, "it runs already"
        begin = self.mark()
        self._process = self._spawn(self._options)
        self._reader = threading.Thread(target=self._read, args=(self._logOf(self._process),), daemon=True)
        self._reader.start()
        self._waitUntilServing(begin)

    def stop(self) -> int:
        """
        Ask it to end, as C{kill} does.

        @return: its exit status.
        """
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with no chance to do anything about it."""
        self._end(signal.SIGKILL)

    def startedFor(self, case: Any) -> Self:
        """Start it, have it removed when a test ends, and return it."""
        case.addCleanup(self.remove)
        self.start()
        return self

    def remove(self) -> None:
        """Leave nothing of it behind."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
        atexit.unregister(self.remove)

    def isRunning(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None

    def mark(self) -> int:
        """How many lines the log has so far."""
        return len(self._lines)

    def log(self, begin: int = 0) -> str:
        """What all its processes have written, from line C{begin} on."""
        return "".join(self._lines[begin:])

    def waitForLog(self, pattern: str, begin: int = 0) -> str:
        """
        Wait for a line that C{pattern} is found in.

        @param begin: the line of the log to begin at.
        @return: the line.
        @raise AssertionError: if it does not come, with the log.
        """
        expression = re.compile(pattern)
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while True:
                for line in self._lines[begin:]:
                    if expression.search(line):
                        return line
                remaining = deadline - time.monotonic()
                hasEnded = self._reader is None or not self._reader.is_alive()
                if remaining <= 0 or hasEnded:
                    raise AssertionError(f"no {pattern!r} in the log of {self.plugin}:\n{self.log(begin)}")
                # The reader's end is not announced.
                self._changed.wait(min(remaining, 1.0))

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

    def _waitUntilServing(self, begin: int) -> None:
        """
        Wait for what tells that it serves.

        @param begin: the line of the log that it was started at.
        """
        raise NotImplementedError

    def _spawn(self, options: list[str]) -> subprocess.Popen[str]:
        return self._run([*self.command, self.plugin, *options], subprocess.DEVNULL, subprocess.STDOUT)

    def _run(self, command: list[str], stdin: int, stderr: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self._directory,
            env=ENVIRONMENT,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="backslashreplace",
        )

    def _logOf(self, process: subprocess.Popen[str]) -> IO[str]:
        assert process.stdout is not None
        return process.stdout

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        process.send_signal(number)
        try:
            status = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{number.name} did not end {self.plugin}:\n{self.log()}") from None
        if self._reader is not None:
            self._reader.join(PATIENCE_SECONDS)
        return status


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


class MeasuredProcess(ServerProcess):
    """
    The same service, run by a module of ours, which tells what it holds.

    @cvar module: what runs it.
    """

    module: ClassVar[str]

    def report(self) -> dict[str, Any]:
        """What it holds, as it is now."""
        return self._asked("")

    def remove(self) -> None:
        """Leave nothing of it behind."""
        super().remove()
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()

    def _asked(self, question: str) -> dict[str, Any]:
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{question}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"{self.plugin} has gone:\n{self.log()}"
        report: dict[str, Any] = json.loads(line)
        return report

    def _spawn(self, options: list[str]) -> subprocess.Popen[str]:
        return self._run([sys.executable, "-m", self.module, *options], subprocess.PIPE, subprocess.PIPE)

    def _logOf(self, process: subprocess.Popen[str]) -> IO[str]:
        assert process.stderr is not None
        return process.stderr


class MeasuredBroker(MeasuredProcess, BrokerProcess):
    """A broker that tells its sensors, its memory pool and the ledger; see L{tests.kit.memorybroker}."""

    module = "tests.kit.memorybroker"

    def watch(self) -> dict[str, Any]:
        """
        The same, and then begin to note anew the largest values, which reports
        have as well from now on; see L{tests.kit.memorybroker.Watch}.
        """
        return self._asked("watch")

    def audit(self, isCollected: bool = False) -> dict[str, Any]:
        """
        The same as L{report}, and what is there by another count; see L{tests.kit.memorybroker.auditOf}.

        @param isCollected: whether to look for garbage before.
        """
        return self._asked("collect" if isCollected else "audit")

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
