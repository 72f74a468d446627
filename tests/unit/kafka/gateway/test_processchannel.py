"""Tests for L{admission.kafka.gateway.processchannel}."""

from __future__ import annotations

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.gateway.processchannel import MAX_UNSENT_BYTES, ProcessChannel, Word


class ProcessChannelTests(SynchronousTestCase):
    """L{ProcessChannel} carries frames."""

    def setUp(self) -> None:
        self.received: list[tuple[Word, bytes]] = []
        self.losses: list[str] = []
        self.channel = ProcessChannel(lambda *frame: self.received.append(frame), lambda: self.losses.append("lost"))
        self.transport = StringTransport()

    def test_frames(self) -> None:
        """What one end sends the other has, however it is cut into pieces."""
        self.channel.makeConnection(self.transport)
        self.channel.send(Word.DRAIN)
        self.channel.send(Word.PUBLISH, bytes(range(256)) * 1000)
        self.channel.tell(Word.NODES, {"nodes": [[1, "k1.example", 9092]]})
        other = ProcessChannel(lambda *frame: self.received.append(frame))
        other.makeConnection(StringTransport())
        sent = self.transport.value()
        for begin in range(0, len(sent), 1000):
            other.dataReceived(sent[begin : begin + 1000])
        self.assertEqual(
            self.received,
            [
                (Word.DRAIN, b""),
                (Word.PUBLISH, bytes(range(256)) * 1000),
                (Word.NODES, b'{"nodes": [[1, "k1.example", 9092]]}'),
            ],
        )

    def test_unknown(self) -> None:
        """What another version says is ignored."""
        self.channel.makeConnection(self.transport)
        self.channel.dataReceived(b"\0\0\0\2?!" + b"\0\0\0\0" + b"\0\0\0\1s")
        self.assertEqual(self.received, [(Word.SERVING, b"")])

    def test_notConnected(self) -> None:
        """What cannot be sent is dropped, before there is a connection and after."""
        self.channel.send(Word.DRAIN)
        self.channel.makeConnection(self.transport)
        self.assertTrue(self.channel.isOpen)
        self.channel.connectionLost()
        self.assertEqual((self.channel.isOpen, self.losses), (False, ["lost"]))
        self.channel.send(Word.DRAIN)
        self.assertEqual(self.transport.value(), b"")

    def test_behind(self) -> None:
        """A peer that takes nothing is given up before what waits for it is more than may."""
        self.channel.makeConnection(self.transport)
        self.channel.pauseProducing()
        self.assertTrue(self.channel.isBehind)
        piece = bytes(1 << 20)
        for _ in range(MAX_UNSENT_BYTES >> 20):
            self.channel.send(Word.DELIVER, piece)
        self.assertTrue(self.channel.isOpen)
        self.channel.send(Word.DELIVER, b"one too many")
        self.assertEqual((self.channel.isOpen, self.transport.disconnected), (False, True))

    def test_catchesUp(self) -> None:
        """One that was behind and is not any more may be so again."""
        self.channel.makeConnection(self.transport)
        for _ in range(3):
            self.channel.pauseProducing()
            self.channel.send(Word.DELIVER, bytes(MAX_UNSENT_BYTES // 2))
            self.channel.resumeProducing()
            self.assertFalse(self.channel.isBehind)
            self.transport.clear()
        self.assertTrue(self.channel.isOpen)
