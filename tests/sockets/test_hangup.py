"""L{admission.connection.hangup}, with real descriptors and no reactor."""

from __future__ import annotations

import os
import socket
import struct
from itertools import product
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.connection.hangup import HangUpWatch, filenoOf, unreadBytes
from tests.kit.brokerprocess import isReadable

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER so that closing resets the connection."""


class Readers:
    """
    As much of a reactor as the watch needs.

    @ivar readers: what it reads.
    """

    def __init__(self) -> None:
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        """Read it."""
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """Read it no longer."""
        self.readers.remove(reader)


def tcpPair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection: ours, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname(), timeout=60)
        ours, _ = server.accept()
    return ours, peer


class HangUpWatchTests(SynchronousTestCase):
    """L{HangUpWatch}."""

    def setUp(self) -> None:
        if not HangUpWatch.isSupported:
            raise SkipTest("this system has no epoll")
        self.reactor = Readers()
        self.watch = HangUpWatch(self.reactor)  # type: ignore[arg-type]
        self.addCleanup(self.watch.close)
        self.hungUp: list[tuple[str, bool]] = []

    def pair(self, kind: str, name: str = "it") -> tuple[socket.socket, socket.socket]:
        """Watch our end of a new connection."""
        ours, peer = tcpPair() if kind == "tcp" else socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(peer.close)
        self.watch.add(ours.fileno(), lambda isReset: self.hungUp.append((name, isReset)))
        return ours, peer

    def look(self) -> None:
        """Be the reactor: read the watch once its descriptor is readable."""
        self.assertTrue(isReadable(self.watch.fileno(), 10.0))
        self.watch.doRead()

    def assertSilent(self) -> None:
        """Nothing has happened."""
        self.assertFalse(isReadable(self.watch.fileno()))
        self.watch.doRead()
        self.assertEqual(self.hungUp, [])

    def test_isADescriptor(self) -> None:
        """It is what reactors read, from the first time it is used and only once."""
        self.assertEqual(self.watch.fileno(), -1)
        self.assertEqual(self.reactor.readers, [])
        self.pair("tcp")
        self.pair("unix")
        verifyObject(IReadDescriptor, self.watch)
        self.assertEqual(self.reactor.readers, [self.watch])
        self.assertEqual(self.watch.logPrefix(), "hang-up watch")

    def test_end(self) -> None:
        """
        A peer that closes in order, or only its sending side, is told of as such, once, whether or not it has sent
        something before that nobody has read; the bytes can be counted and read.
        """
        for kind, sizeBytes, isHalf in product(("tcp", "unix"), (0, 1000), (False, True)):
            ours, peer = self.pair(kind, kind)
            peer.sendall(b"x" * sizeBytes)
            peer.shutdown(socket.SHUT_WR) if isHalf else peer.close()
            self.look()
            self.watch.doRead()
            self.assertEqual(self.hungUp.pop(), (kind, False))
            self.assertEqual((self.hungUp, unreadBytes(ours.fileno())), ([], sizeBytes))
            self.assertEqual(ours.recv(2000), b"x" * sizeBytes)

    def test_reset(self) -> None:
        """A connection that is reset is told of as failed, with and without unread bytes."""
        for sizeBytes in (0, 1000):
            _, peer = self.pair("tcp")
            peer.sendall(b"x" * sizeBytes)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            peer.close()
            self.look()
            self.assertEqual(self.hungUp.pop(), ("it", True))

    def test_bytesAreNotNews(self) -> None:
        """A peer that sends and stays causes no events, and so no work."""
        _, peer = self.pair("tcp")
        peer.sendall(b"x" * 1000)
        self.assertSilent()

    def test_discarded(self) -> None:
        """
        Nothing is told of a socket that is no longer watched, and discarding it again, or after it was closed, is
        harmless.
        """
        ours, peer = self.pair("tcp")
        other, otherPeer = self.pair("tcp", "other")
        self.watch.discard(ours.fileno())
        self.watch.discard(ours.fileno())
        peer.close()
        self.assertSilent()
        number = other.fileno()
        other.close()
        self.watch.discard(number)
        self.watch.discard(-1)
        otherPeer.close()
        self.assertSilent()

    def test_numberUsedAgain(self) -> None:
        """
        A descriptor that was closed without our being told first does not
        stand for the connection that gets its number next.
        """
        ours, peer = self.pair("tcp", "old")
        number = ours.fileno()
        ours.close()
        self.watch.discard(number)
        again, againPeer = tcpPair()
        self.addCleanup(again.close)
        if again.fileno() != number:
            os.dup2(again.fileno(), number)
            self.addCleanup(os.close, number)
        self.watch.add(number, lambda isReset: self.hungUp.append(("new", isReset)))
        peer.close()
        self.assertSilent()
        againPeer.close()
        self.look()
        self.assertEqual(self.hungUp, [("new", False)])

    def test_severalAtOnce(self) -> None:
        """All who left are told of, even if the first discards the second or fails."""
        pairs = {}

        def hungUp(name: str, other: str) -> None:
            self.hungUp.append((name, False))
            self.watch.discard(pairs[other][0].fileno())
            raise ZeroDivisionError

        for name, other in [("a", "b"), ("b", "a")]:
            pairs[name] = tcpPair()
            self.addCleanup(pairs[name][0].close)
            self.watch.add(pairs[name][0].fileno(), lambda isReset, name=name, other=other: hungUp(name, other))  # type: ignore[misc]
        _, third = self.pair("tcp", "c")
        for _, peer in pairs.values():
            peer.close()
        third.close()
        self.look()
        self.assertEqual(len(self.hungUp), 2)
        self.assertIn(("c", False), self.hungUp)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_closedFromWithin(self) -> None:
        """Closing the watch while it tells somebody ends the telling."""
        _, peer = self.pair("tcp")
        ours, otherPeer = tcpPair()
        self.addCleanup(ours.close)
        self.watch.add(ours.fileno(), lambda isReset: self.watch.close())
        otherPeer.close()
        self.look()
        peer.close()
        self.assertEqual((self.hungUp, self.reactor.readers, self.watch.fileno()), ([], [], -1))

    def test_close(self) -> None:
        """
        Closing gives its descriptor back and leaves the reactor, as does the
        reactor's own end; it may be used again.
        """
        self.pair("tcp")
        number = self.watch.fileno()
        self.watch.close()
        self.watch.close()
        self.assertRaises(OSError, os.fstat, number)
        self.pair("tcp")
        self.watch.connectionLost(Failure(ZeroDivisionError()))
        self.assertEqual(self.reactor.readers, [])

    def test_unsupported(self) -> None:
        """Without epoll nothing is watched and nothing breaks."""
        self.patch(HangUpWatch, "isSupported", False)
        ours, _ = self.pair("tcp")
        self.watch.discard(ours.fileno())
        self.assertEqual(self.reactor.readers, [])


class FilenoTests(SynchronousTestCase):
    """L{filenoOf} and L{unreadBytes}."""

    def test_none(self) -> None:
        """A transport without a descriptor, or with none any more, has none."""

        class Closed:
            def fileno(self) -> int:
                return -1

        self.assertIs(filenoOf(StringTransport()), None)
        self.assertIs(filenoOf(Closed()), None)

    def test_some(self) -> None:
        """A transport's descriptor is found."""
        ours, peer = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(peer.close)
        self.assertEqual(filenoOf(ours), ours.fileno())
        self.assertEqual(unreadBytes(ours.fileno()), 0)
        peer.send(b"abc")
        self.assertEqual(unreadBytes(ours.fileno()), 3)
