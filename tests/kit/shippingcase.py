"""What tests of C{admission recording ship} have in common, wherever files go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
from pyarrow import parquet
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS

HOUR = "dt=2026-03-01/hour=07"


def complaints(errors: str) -> list[str]:
    """What a command has said that is no progress."""
    return [line for line in errors.splitlines() if not line.startswith("shipping: ")]


class ShippingCase(SynchronousTestCase):
    """
    Tests with a recording and the command.

    @ivar directory: of the recording; it is made when its first file is sealed.
    @ivar url: where it is shipped to.
    @ivar environment: of the command.
    """

    def setUp(self) -> None:
        self.directory = os.path.abspath(self.mktemp())
        self.environment = dict(os.environ)
        self.url = ""

    def here(self) -> dict[str, bytes]:
        """What readers of the recording see."""
        paths = [path for path in Path(self.directory).rglob("*.parquet") if not path.name.startswith(".")]
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in paths}

    def seal(self, name: str) -> None:
        """Have a file of the recording, as a server does."""
        hour = Path(self.directory, "requests", HOUR)
        hour.mkdir(parents=True, exist_ok=True)
        unfinished = hour / f".{name}.parquet.tmp"
        numbers = list(range(200))
        Random(name).shuffle(numbers)
        parquet.write_table(pa.table({"seq": numbers, "client_id": [f"client {name}"] * 200}), unfinished)
        unfinished.rename(hour / f"{name}.parquet")

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the command."""
        command = [sys.executable, "-m", "admission", "recording", "ship", self.directory, self.url, *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def until(self, isTrue: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not isTrue():
            self.assertLess(time.monotonic(), deadline, "it takes too long")
            time.sleep(0.05)
