"""
A gateway for the duration of a block.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from attrs import frozen

from .cluster import NODE_IDS, DemoFailed, freePorts

_PATIENCE_SECONDS = 30.0
_TWISTD = "from twisted.scripts.twistd import run; run()"


@frozen
class RunningGateway:
    """
    A gateway that serves.

    @ivar port: where clients begin.
    @ivar page: the address of its status page.
    """

    port: int
    page: str

    @property
    def address(self) -> str:
        """
        Where clients begin.
        """
        return f"127.0.0.1:{self.port}"

    def status(self) -> Any:
        """
        What the page shows.
        """
        with urlopen(f"{self.page}status.json", timeout=_PATIENCE_SECONDS) as response:
            return json.load(response)


@contextmanager
def gatewayTo(upstream: str, directory: Path, *options: str) -> Iterator[RunningGateway]:
    """
    Run C{twistd admission-gateway}.

    @param upstream: where the nodes are.
    @param directory: for all that it writes; exists.
    @param options: further ones.
    @raise DemoFailed: if it does not start.
    """
    count = 1 + len(NODE_IDS)
    port = freePorts(count + 1)
    gateway = RunningGateway(port, f"http://127.0.0.1:{port + count}/")
    log = directory / "gateway.log"
    command = [
        *(sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "admission-gateway"),
        *("--upstream", upstream, "--listen", f"tcp:{port}:interface=127.0.0.1"),
        *("--node-ids", f"{NODE_IDS[0]}-{NODE_IDS[-1]}"),
        *("--data", str(directory / "gateway-data"), "--status", f"tcp:{port + count}:interface=127.0.0.1"),
        *options,
    ]
    with log.open("wb") as output:
        # In a session of its own, or Ctrl-C would end it before us.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _awaitPage(gateway, process, log)
        yield gateway
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the gateway does not end; {log} says what it does") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _awaitPage(gateway: RunningGateway, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            gateway.status()
            return
        except (URLError, ConnectionError):
            time.sleep(0.05)
    lines = log.read_text(errors="replace").splitlines()
    raise DemoFailed(f"the gateway does not start: {lines[-1] if lines else 'it does not say why'}")
