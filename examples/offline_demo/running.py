"""
A broker for the duration of a block, recorded.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_SECONDS = 60.0
_TWISTD = "from twisted.scripts.twistd import run; run()"


class DemoFailed(Exception):
    """
    It cannot go on, in words for the user who has started it.
    """


@contextmanager
def recordedBroker(directory: Path, *options: str) -> Iterator[int]:
    """
    Run C{twistd admission}, and record it to C{directory/recording}, which is complete when the block is left.

    @param directory: for all that the broker writes; where there is nothing yet.
    @param options: of C{twistd admission}, further ones.
    @return: its port on 127.0.0.1.
    @raise DemoFailed: if it does not start or does not end.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise DemoFailed(f"{directory} is there already; remove it, or name another place with --out") from None
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    command = [
        *(sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "admission"),
        *("--listen", f"tcp:{port}:interface=127.0.0.1"),
        *("--data", "data", "--export", "spark:recording"),
        *options,
    ]
    log = directory / "broker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _awaitPort(port, process, log)
        yield port
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the broker does not end; {log} says what it does") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _awaitPort(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    lines = log.read_text(errors="replace").splitlines()
    raise DemoFailed(f"the broker does not start: {lines[-1] if lines else 'it does not say why'}")
