"""Somebody else's server in a process of its own, started as its users start it, plain or protected."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Protocol

from attrs import define, frozen

from tests.attacks.test_sites import anonymousBytes
from tests.clients.servers.conversations import Ask
from tests.kit.attack import MIB
from tests.kit.brokerprocess import DYING_WITH_US, PATIENCE_SECONDS, until
from tests.kit.checkout import ROOT
from tests.kit.fairclock import FairClock
from tests.kit.goodclient import quantile

POOL_BYTES = 64 * MIB
BEYOND_BYTES = 64 * MIB
"""How much may be in memory beside the pool and the largest write."""
PROMISED_SECONDS = 0.1

_PREFIX = f"admission:tcp:$port:interface=127.0.0.1:name=all:pool=bounded\\:{POOL_BYTES}"
_EVERY_SECONDS = 0.01
_BEFORE_REQUESTS = 20


class Attacks(Protocol):
    """What many clients do, given the port, until they are killed."""

    def run(self, port: int, tlsPort: int) -> object: ...


@frozen
class Overload:
    """
    What makes a server work too much.

    @ivar attack: what many clients do.
    @ivar largestBytes: the largest write of the server under it.
    @ivar port: the number of the port that is attacked.
    """

    attack: Attacks
    largestBytes: int = 0
    port: int = 0


@frozen(kw_only=True)
class Server:
    """
    How a server is started, and what is done to it.  C{$$bin} is where its commands are, C{$$listen} the description of
    its port, C{$$port} and C{$$port2} and so on are its ports.

    @ivar packages: of the registry.
    @ivar command: what starts it.
    @ivar asks: makes the client of good manners, given a port.
    @ivar uses: what its users do, and what they see of it, given its ports.
    @ivar attacks: what is too much for it, by name.
    @ivar ports: how many it has.
    @ivar before: commands that come first.
    @ivar beside: what runs beside it.
    @ivar files: what its users write.
    @ivar protecting: what they write besides, or in place of it, to have it protected.
    @ivar protectedCommand: what starts it then, if it is something else.
    @ivar suite: its own tests, if they are in its packages.
    @ivar tested: packages that these need besides.
    """

    packages: Sequence[str] = ()
    command: str
    asks: Callable[[int], Ask]
    uses: Callable[..., Iterator[str]]
    attacks: Mapping[str, Overload]
    ports: int = 1
    before: Sequence[str] = ()
    beside: str = ""
    files: Mapping[str, str] = {}
    protecting: Mapping[str, str] = {}
    protectedCommand: str = ""
    suite: str = ""
    tested: Sequence[str] = ()

    @property
    def lines(self) -> int:
        """How many lines of code or configuration protect it."""
        have = {(name, line) for name, text in self.files.items() for line in text.splitlines()}
        return sum(
            (name, line) not in have for name, text in self.protecting.items() for line in text.split("\n") if line
        )


def prepared(name: str, packages: Sequence[str]) -> Path:
    """An environment with some packages and this tree, made once; or that of the tests if there are none."""
    if not packages:
        return Path(sys.executable).parent
    directory = ROOT / "build" / "servers" / name.replace(" ", "-")
    if not (directory / "done").exists():
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        command = [directory / "bin" / "pip", "install", "--quiet", "--editable", f"{ROOT}[web]", *packages]
        subprocess.run(command, check=True)
        (directory / "done").touch()
    return directory / "bin"


def version(name: str, server: Server) -> str:
    """The version of the first of a server's packages."""
    first = (server.packages or ["twisted"])[0].partition("[")[0]
    program = f"import importlib.metadata; print(importlib.metadata.version({first!r}))"
    command = [prepared(name, server.packages) / "python", "-c", program]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@define
class Figures:
    """What an attack has cost."""

    growthBytes: int
    latencies: list[float]
    failures: list[str]
    largestBytes: int

    def __str__(self) -> str:
        p50, p99 = (1000 * quantile(self.latencies, each) for each in (0.5, 0.99))
        failed = f", {len(self.failures)} of {len(self.latencies)} failed" if self.failures else ""
        return f"+{self.growthBytes / MIB:.0f}; {p50:.1f} / {p99:.0f}{failed}"

    def broken(self) -> str:
        """Which promises are not kept, in words."""
        isLarge = self.growthBytes > POOL_BYTES + BEYOND_BYTES + self.largestBytes
        isSlow = bool(self.failures) or quantile(self.latencies, 0.99) > PROMISED_SECONDS
        return " and ".join(["memory"] * isLarge + ["time"] * isSlow)


class Running:
    """A server that runs."""

    def __init__(self, name: str, server: Server, isProtected: bool) -> None:
        self._name, self._server = name, server
        self._directory = Path(tempfile.mkdtemp(prefix="admission-servers-"))
        binaries = prepared(name, server.packages)
        self.ports = _freePorts(server.ports)
        words = {f"port{each + 1}" if each else "port": str(port) for each, port in enumerate(self.ports)}
        words |= {"bin": str(binaries), "directory": str(self._directory)}
        plain = "tcp:$port:interface=127.0.0.1"
        for each in ("", *map(str, range(2, server.ports + 1))):
            listen = _PREFIX if isProtected else plain
            words[f"listen{each}"] = Template(listen.replace("$port", f"$port{each}")).substitute(words)
        files = {**server.files, **(server.protecting if isProtected else {})}
        for path, text in files.items():
            (self._directory / path).parent.mkdir(parents=True, exist_ok=True)
            (self._directory / path).write_text(Template(text).substitute(words))
        for command in server.before:
            subprocess.run(self._words(command, words), cwd=self._directory, capture_output=True, check=True)
        paths = [str(self._directory)] * (server.protecting.keys() >= {"sitecustomize.py"} and isProtected)
        command = (isProtected and server.protectedCommand) or server.command
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        self._processes = []
        for each in filter(None, (command, server.beside)):
            with (self._directory / "printed").open("ab") as printed:
                self._processes.append(
                    subprocess.Popen(
                        [*DYING_WITH_US, *self._words(each, words)],
                        cwd=self._directory,
                        env=environment,
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                    )
                )
            until(self._isThere)

    def use(self) -> list[str]:
        """Do what its users do."""
        return list(self._server.uses(*self.ports))

    def stop(self) -> str:
        """Have it stop, with a connection that does nothing."""
        with socket.create_connection(("127.0.0.1", self.ports[0])):
            begun = time.monotonic()
            self._processes[0].send_signal(signal.SIGTERM)
            code = self._processes[0].wait(PATIENCE_SECONDS)
        self.seconds = time.monotonic() - begun
        return f"stops with {code}"

    def remove(self) -> None:
        """Kill it, and forget what it wrote."""
        for each in reversed(self._processes):
            each.kill()
            each.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def attacked(self, name: str, seconds: float) -> Figures:
        """Attack it for a while."""
        pid, overload = self._processes[0].pid, self._server.attacks[name]
        port = self.ports[overload.port]
        good = _Good(pid, self._server.asks, self.ports[0])
        for _ in range(_BEFORE_REQUESTS):
            good.ask()
        before = peak = anonymousBytes(pid)
        isOver = threading.Event()
        thread = threading.Thread(target=good.run, args=(isOver,))
        command = [sys.executable, "-m", "tests.clients.servers", "--attack", self._name, name, str(port)]
        attacker = subprocess.Popen([*DYING_WITH_US, *command], cwd=ROOT)
        try:
            thread.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                peak = max(peak, anonymousBytes(pid))
                time.sleep(_EVERY_SECONDS)
            assert attacker.poll() is None, "the attackers have given up"
        finally:
            isOver.set()
            thread.join()
            attacker.kill()
            attacker.wait()
        return Figures(peak - before, good.latencies, good.failures, overload.largestBytes)

    def printed(self) -> str:
        """What it has printed."""
        return (self._directory / "printed").read_text("utf-8", "replace")

    def _isThere(self) -> bool:
        assert self._processes[0].poll() is None, self.printed()
        return not any(self._tried(port) for port in self.ports)

    @staticmethod
    def _tried(port: int) -> int:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port))

    @staticmethod
    def _words(command: str, words: Mapping[str, str]) -> list[str]:
        return [Template(each).substitute(words) for each in command.split()]


class _Good:
    def __init__(self, pid: int, asks: Callable[[int], Ask], port: int) -> None:
        self._pid, self._asks, self._port = pid, asks, port
        self._ask: Ask | None = None
        self.latencies: list[float] = []
        self.failures: list[str] = []

    def ask(self) -> None:
        self._ask = self._ask or self._asks(self._port)
        self._ask()

    def run(self, isOver: threading.Event) -> None:
        clock = FairClock("thread-self", f"{self._pid}/task/{self._pid}")
        while not isOver.wait(_EVERY_SECONDS):
            begun = clock.seconds()
            try:
                self.ask()
            except OSError as error:
                self.failures.append(repr(error))
                self._ask = None
            self.latencies.append(max(clock.seconds() - begun, 0.0))


def _freePorts(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
