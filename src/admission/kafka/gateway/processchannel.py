# -*- test-case-name: tests.unit.kafka.gateway.test_processchannel -*-
"""
The channel between the parent of a gateway's processes and each of them, a pair of UNIX sockets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

CHANNEL_DESCRIPTOR: Final = 3
"""The descriptor of a process's end; the listening sockets follow it."""

MAX_FRAME_BYTES: Final = 64 << 20
"""The longest frame: all limits that are kept take less."""

MAX_UNSENT_BYTES: Final = 64 << 20
"""A peer that lets more than that wait is given up."""


class Word(Enum):
    """
    The first byte of a frame, which says what it is about.
    """

    # From the parent.
    BEGIN = b"b"
    """A JSON object: what a process has to know to begin."""
    DELIVER = b"d"
    """A message of a process or of another gateway, L{admission.shares.usagemessages}."""
    DELIVER_OLD = b"o"
    """Likewise, from before the parent began."""
    TROUBLE = b"t"
    """JSON: why such messages do not come from other machines, or null."""
    NODES = b"n"
    """JSON: the nodes of the cluster, how many seconds ago it last told them, and why it has not since."""
    FLUSHED = b"f"
    """JSON: the number of a flush, and the error or null."""
    ASK = b"q"
    """JSON: a number, the name of a page, and the parameters."""
    NOTED = b"i"
    """JSON: a user, and producers of that user that were let through; from both, and before L{BEGIN} all that are
    known."""
    RELOAD = b"h"
    DRAIN = b"x"
    HURRY = b"y"

    # From a process.
    SERVING = b"s"
    DRAINING = b"e"
    PUBLISH = b"u"
    """A message for all."""
    PUBLISH_KEPT = b"k"
    """Likewise, that is to be kept."""
    PUBLISH_KEYED = b"l"
    """A key, a zero byte, and a message; the last one of each key is to be kept."""
    PUT = b"p"
    """JSON: the name of a table, a key, and a value or null."""
    FLUSH = b"w"
    """JSON: a number; to be told once all that was put before is on the disk."""
    REMEMBER = b"r"
    """JSON: how many gateways enforce limits together."""
    ANSWER = b"a"
    """JSON: the number of a question, the HTTP status, and the page."""


@implementer(IPushProducer)
class ProcessChannel(Int32StringReceiver):
    """
    One end: frames whose first byte is a L{Word}.

    @ivar isOpen: whether anything can be sent.
    @ivar isBehind: whether the peer does not take what is sent as fast as that is.
    """

    MAX_LENGTH = MAX_FRAME_BYTES

    transport: Any

    def __init__(self, received: Callable[[Word, bytes], object], lost: Callable[[], object] = lambda: None) -> None:
        """
        @param received: called with each frame.
        @param lost: called once the other end is gone.
        """
        self._received = received
        self._lost = lost
        self._unsentBytes = 0
        self.isOpen = self.isBehind = False

    def connectionMade(self) -> None:
        self.isOpen = True
        self.transport.registerProducer(self, True)

    def send(self, word: Word, payload: bytes = b"") -> None:
        """
        Send a frame.  It is dropped if nothing can be sent any more, and a peer that has let very much wait is given
        up.
        """
        if not self.isOpen:
            return
        if self.isBehind:
            self._unsentBytes += len(payload)
            if self._unsentBytes > MAX_UNSENT_BYTES:
                self.isOpen = False
                self.transport.abortConnection()
                return
        self.sendString(word.value + payload)  # type: ignore[no-untyped-call]

    def tell(self, word: Word, told: Any) -> None:
        """
        Send a frame with JSON.
        """
        self.send(word, json.dumps(told).encode())

    def stringReceived(self, string: bytes) -> None:
        try:
            word = Word(string[:1])
        except ValueError:
            # A process that begins again may have a newer version than its parent.
            return
        self._received(word, string[1:])

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self.isOpen = False
        self._lost()

    # The transport tells whether the peer keeps up.

    def pauseProducing(self) -> None:
        self.isBehind = True

    def resumeProducing(self) -> None:
        self.isBehind = False
        self._unsentBytes = 0

    def stopProducing(self) -> None:
        pass
