"""
A broker process that can be given faults: what L{tests.kit.memorybroker} runs,
and some more lines that it understands on standard input.

  - C{hang}: from now on no flush to the disk ends, until C{release}.
  - C{jump SECONDS}: the machine's clock is set, by so much.
  - C{stall SECONDS}: nothing else is done for so long, as if a policy took that.
"""

from __future__ import annotations

import os
import threading
import time
from unittest.mock import patch

from twisted.internet.base import ReactorBase

from admission.kafka.broker.log import segmentlog
from admission.kafka.storage.disk import LocalDisk, LocalFile
from tests.kit.memorybroker import Reporter, main

_timeOfDay = time.time


class SettableClock:
    """The time of day of a machine whose clock is set."""

    def __init__(self) -> None:
        self.aheadSeconds = 0.0

    def seconds(self) -> float:
        """Seconds since 1970."""
        return _timeOfDay() + self.aheadSeconds


class HangingDisk(LocalDisk):
    """
    The disk of this machine, whose flushes can be made to hang.

    @cvar mayFlush: set while they do not.
    """

    mayFlush = threading.Event()

    def open(self, path: str, create: bool = False) -> HangingFile:
        """As the disk does."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return HangingFile(os.open(path, flags, 0o644))

    def flushDirectory(self, path: str) -> None:
        """Flush, when it may."""
        self.mayFlush.wait()
        super().flushDirectory(path)


class HangingFile(LocalFile):
    """A file on a L{HangingDisk}."""

    __slots__ = ()

    def flush(self) -> None:
        """Flush, when it may."""
        HangingDisk.mayFlush.wait()
        super().flush()


class FaultReporter(Reporter):
    """
    Gives the faults.

    @cvar clock: of the machine.
    """

    clock = SettableClock()

    def lineReceived(self, line: bytes) -> None:
        """Give a fault, then report."""
        word, _, argument = line.partition(b" ")
        if word == b"hang":
            HangingDisk.mayFlush.clear()
        elif word == b"release":
            HangingDisk.mayFlush.set()
        elif word == b"jump":
            self.clock.aheadSeconds += float(argument)
        elif word == b"stall":
            time.sleep(float(argument))
        super().lineReceived(line)


if __name__ == "__main__":
    HangingDisk.mayFlush.set()
    with (
        patch.object(segmentlog, "LocalDisk", HangingDisk),
        patch.object(time, "time", FaultReporter.clock.seconds),
        # It has taken hold of the other one.
        patch.object(ReactorBase, "seconds", staticmethod(FaultReporter.clock.seconds)),
    ):
        main(FaultReporter)
