"""
A server that answers a byte with much, protected by L{admission.wrapFactory}.

C{python -m tests.attacks.wrappedserver POOL ANSWER} prints its port, answers each
byte with ANSWER bytes, but C{.} with one, and ends with its standard input.
"""

from __future__ import annotations

import sys

from twisted.internet import reactor, stdio
from twisted.internet.protocol import Factory, Protocol

from admission import wrapFactory

SMALL = b"."
"""What is answered with a byte."""


class Generous(Protocol):
    """Writes all of its answer at once."""

    answerBytes = 0

    def dataReceived(self, data: bytes) -> None:
        """Answer."""
        assert self.transport is not None
        for number in range(len(data)):
            each = data[number : number + 1]
            self.transport.write(each if each == SMALL else bytes(self.answerBytes))


class _UntilTheEnd(Protocol):
    def connectionLost(self, reason: object = None) -> None:
        if reactor.running:
            reactor.stop()


def main(poolBytes: int, answerBytes: int) -> None:
    """Serve."""
    Generous.answerBytes = answerBytes
    factory = wrapFactory(Factory.forProtocol(Generous), pool=f"bounded:{poolBytes}", maxUnsentBytes=2 * answerBytes)
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    print(port.getHost().port, flush=True)
    stdio.StandardIO(_UntilTheEnd())
    reactor.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
