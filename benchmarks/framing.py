"""
Receiving frames: ours beside L{twisted.protocols.basic.IntNStringReceiver}, a copy into preallocated memory, and
nothing but counting bytes.

    python -m benchmarks.framing [--json] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport

from admission.connection.admitted import AdmittedProtocol
from admission.connection.framing import Framer
from admission_plugins.bounded import BoundedPool

from .load import Loader, stream
from .measure import KIB, MIB, Report, cpuSeconds, inTurns, median, noCollections, ratio, run, sizeName, spreadPercent
from .peers import LARGEST_FRAME_BYTES, Counting, Preallocating, Strings, admittedFactory
from .servers import running

SIZES = [KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB]
CHUNKS = [64 * KIB, 16 * KIB]

BASELINE = "preallocated"


class FramerOnly(Protocol):
    """
    L{Framer} with a pool and nothing else around it.
    """

    frames = 0

    def __init__(self) -> None:
        self._pool = BoundedPool(4 * LARGEST_FRAME_BYTES, LARGEST_FRAME_BYTES)
        self._framer = Framer(self._pool.tryAllocate, lambda sizeBytes, head: None)

    def dataReceived(self, data: bytes) -> None:
        """
        Take whole frames, and let go of them.
        """
        framer = self._framer
        framer.feed(data)
        while (lease := framer.advance()) is not None:
            self.frames += 1
            lease.release()


def chunksOf(frameBytes: int, count: int, chunkBytes: int) -> list[bytes]:
    """
    C{count} frames as they come from a socket.
    """
    stream = (frameBytes.to_bytes(4, "big") + bytes(frameBytes)) * count
    return [stream[start : start + chunkBytes] for start in range(0, len(stream), chunkBytes)]


def receivers() -> dict[str, Callable[[], Protocol]]:
    """
    What is measured within this process.
    """
    from twisted.internet import reactor

    factory = admittedFactory(reactor)

    def admitted() -> AdmittedProtocol:
        protocol = factory.buildProtocol(None)
        assert isinstance(protocol, AdmittedProtocol)
        return protocol

    return {
        BASELINE: Preallocating,
        "Framer": FramerOnly,
        "AdmittedProtocol": admitted,
        "Int32StringReceiver": Strings,
        "counting": Counting,
    }


def timeReceiver(make: Callable[[], Protocol], chunks: list[bytes], count: int) -> float:
    """
    @return: CPU seconds for each frame.
    """
    from twisted.internet import reactor

    protocol: Any = make()
    protocol.makeConnection(StringTransport())  # type: ignore[no-untyped-call]
    received = protocol.dataReceived
    # A server reads a chunk in each turn, and begins only so much in one.
    turn = reactor.runUntilCurrent  # type: ignore[attr-defined]
    with noCollections():
        started = cpuSeconds()
        for chunk in chunks:
            received(chunk)
            turn()
        elapsed = cpuSeconds() - started
    if not isinstance(protocol, Counting) and protocol.frames != count:
        raise AssertionError(f"{type(protocol).__name__} received {protocol.frames} of {count} frames")
    if isinstance(protocol, AdmittedProtocol):
        protocol.connectionLost()
    return elapsed / count


def addRows(report: Report, table: str, figures: dict[str, list[float]], **common: Any) -> None:
    """
    A row for each receiver, beside L{BASELINE}.
    """
    for name, seconds in figures.items():
        microseconds = median(seconds) * 1e6
        report.add(
            table,
            **common,
            receiver=name,
            cpuMicroseconds=microseconds,
            cpuMicrosecondsPerMiB=microseconds * MIB / common["frameBytes"],
            ratioToPreallocated=ratio(seconds, figures[BASELINE]),
            spreadPercent=spreadPercent(seconds),
        )


def measureInProcess(report: Report) -> None:
    """
    Chunks handed to C{dataReceived}: the framer's own CPU time, and the framer's alone.
    """
    makers = receivers()
    streamBytes, rounds = (MIB, 2) if report.quick else (16 * MIB, 11)
    for chunkBytes in CHUNKS:
        for frameBytes in SIZES:
            count = max(1, streamBytes // frameBytes)
            chunks = chunksOf(frameBytes, count, chunkBytes)

            def receive(name: str, chunks: list[bytes] = chunks, count: int = count) -> float:
                return timeReceiver(makers[name], chunks, count)

            title = f"in process, frames of {sizeName(frameBytes)} in chunks of {sizeName(chunkBytes)}"
            figures = inTurns(makers, rounds, receive, title)
            addRows(report, "inProcess", figures, frameBytes=frameBytes, chunkBytes=chunkBytes)


def measureSockets(report: Report) -> None:
    """
    Frames through the loopback interface: CPU time of the receiving process, the kernel's share included.
    """
    streamBytes, rounds = (MIB, 2) if report.quick else (32 * MIB, 9)
    with Loader() as loader, running("frames") as server:
        for frameBytes in SIZES:
            count = max(1, streamBytes // (4 + frameBytes))
            frame = frameBytes.to_bytes(4, "big") + bytes(frameBytes)
            # The loader sends as many frames together as make a mebibyte.
            count = max(count // max(1, MIB // len(frame)), 1) * max(1, MIB // len(frame))

            def receive(name: str, frame: bytes = frame, count: int = count) -> float:
                return loader.run(stream, server.pid, server.ports[name], frame, count).cpuSeconds / count

            figures = inTurns(server.ports, rounds, receive, f"sockets, frames of {sizeName(frameBytes)}")
            addRows(report, "sockets", figures, frameBytes=frameBytes)


def measure(report: Report) -> None:
    """
    Everything.
    """
    measureInProcess(report)
    measureSockets(report)


if __name__ == "__main__":
    run("CPU time for each frame, in microseconds", "Receiving length-prefixed frames.", measure)
