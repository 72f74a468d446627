"""
Find a memory leak.

A server counts the words of the lines that it gets, and by mistake keeps every
line it has ever seen.  Its ledger knows of none of that: it gives back each
request's memory as it should.  A snapshot before a few thousand requests, and
one after them, tell what has grown.

Run it:  python examples/find_a_leak.py
"""

import os

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Protocol
from twisted.internet.task import react

from admission import Admission, AdmittedProtocol, IMemoryPool, ServerRequest
from admission.clock import wallSeconds
from admission.interfaces import CONNECTIONS, FRAMES, ILease
from admission.profiling import Group, Grouping, Profiler, implementing, subclassOf, textOf

REQUESTS = 3000
LINE = b"the quick brown fox jumps over the lazy dog " * 20


class RememberedLine:
    """
    What the mistake keeps of a request.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text


class WordCount(AdmittedProtocol):
    """
    Answers each request with its number of words.
    """

    seen: list[RememberedLine] = []

    def requestReceived(self, request: ServerRequest) -> bytes:
        """
        Count, and forget to forget.
        """
        line = RememberedLine(bytes(request.frame))
        self.seen.append(line)
        return len(line.text.split()).to_bytes(4, "big")


class Client(Protocol):
    """
    Sends one request after the other.
    """

    def ask(self, count: int) -> "Deferred[None]":
        """
        Send C{count} requests; fires with the last answer.
        """
        self.missing = 8 * count
        self.done = Deferred()
        self.transport.write((len(LINE).to_bytes(4, "big") + LINE) * count)
        return self.done

    def dataReceived(self, data: bytes) -> None:
        """
        Every answer has eight bytes.
        """
        self.missing -= len(data)
        if not self.missing:
            self.done.callback(None)


@inlineCallbacks
def main(reactor):
    """
    Serve, look, ask, look again.
    """
    admission = Admission(pool="bounded:8MiB", reactor=reactor)
    factory = admission.frames(WordCount)
    shared = (Admission, type(factory), type(admission.gate))
    # What belongs together, what the ledger calls it, and what all connections share.
    grouping = Grouping(
        [
            Group("leases", implementing(ILease), (FRAMES,)),
            Group("connections", subclassOf(WordCount), (CONNECTIONS,)),
        ],
        lambda kind: issubclass(kind, shared) or implementing(IMemoryPool)(kind),
    )
    ledger = admission.gate.ledger
    profiler = Profiler(grouping, lambda: ledger.usedBytes, admission.clock, wallSeconds, str(os.getpid()))
    port = yield serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
    endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{port.getHost().port}")
    client = yield connectProtocol(endpoint, Client())

    # Once before, or what every server makes at its first request would look like a leak.
    yield client.ask(10)
    yield profiler.take()
    yield client.ask(REQUESTS)
    print(textOf((yield profiler.take())))

    client.transport.loseConnection()
    yield factory.closeAll()
    yield port.stopListening()


if __name__ == "__main__":
    react(main)
