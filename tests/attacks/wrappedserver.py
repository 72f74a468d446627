"""
A server that answers a byte with much, protected by L{admission.wrapFactory}.

C{python -m tests.attacks.wrappedserver POOL ANSWER [QUOTA]} prints its port, and ends with its standard input.  It
answers C{.} with a byte, C{x} with ANSWER bytes at once, C{p} with as many in pieces of 1 MiB, each in a turn of its
own; a line of C{w} takes it 150 microseconds.
"""

from __future__ import annotations

import sys
import time

from twisted.internet import reactor, stdio
from twisted.internet.protocol import Factory, Protocol

from admission import wrapFactory

SMALL = b"."
LARGE = b"x"
PIECES = b"p"
WORK = b"w" * 35 + b"\n"

_WORK_SECONDS = 150e-6
_PIECE_BYTES = 1 << 20


class Generous(Protocol):
    """Answers whatever it is asked."""

    answerBytes = 0

    def dataReceived(self, data: bytes) -> None:
        """Answer."""
        assert self.transport is not None
        for number in range(len(data)):
            each = data[number : number + 1]
            if each == SMALL:
                self.transport.write(each)
            elif each == LARGE:
                self.transport.write(bytes(self.answerBytes))
            elif each == PIECES:
                self._writeLater(self.answerBytes)
            elif each == b"\n":
                until = time.perf_counter() + _WORK_SECONDS
                while time.perf_counter() < until:
                    pass

    def _writeLater(self, leftBytes: int) -> None:
        if leftBytes > 0 and self.connected:
            assert self.transport is not None
            self.transport.write(bytes(_PIECE_BYTES))
            reactor.callLater(0, self._writeLater, leftBytes - _PIECE_BYTES)


class _UntilTheEnd(Protocol):
    def connectionLost(self, reason: object = None) -> None:
        if reactor.running:
            reactor.stop()


def main(poolBytes: int, answerBytes: int, *quota: str) -> None:
    """Serve."""
    Generous.answerBytes = answerBytes
    factory = wrapFactory(Factory.forProtocol(Generous), pool=f"bounded:{poolBytes}", quota=quota)
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    print(port.getHost().port, flush=True)
    stdio.StandardIO(_UntilTheEnd())
    reactor.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
