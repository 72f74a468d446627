# -*- test-case-name: tests.contracts.test_usageexchangecontract -*-
"""
The rules for what carries messages between servers that enforce limits together.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from ..interfaces import IUsageExchange
from .contract import Contract
from .orderedclock import OrderedClock

_ENDS = 3
_LARGEST = bytes(range(256)) * 1024


class UsageExchangeContract(Contract):
    """
    The rules for an L{IUsageExchange}.  Subclasses say how to make several that are connected, and how to cut the line
    between them.

    @ivar ends: three of them.
    @ivar heard: what each has delivered, and whether that was old.
    """

    settleSeconds = 1.0
    """After so long on the clock all messages have arrived, and what was begun is finished; also after a cut."""

    def buildExchanges(self, clock: Clock, count: int) -> Sequence[IUsageExchange]:
        """
        Make C{count} exchanges that carry each other's messages and take their time from C{clock}; they are started
        later.
        """
        raise NotImplementedError

    def cut(self, isCut: bool) -> None:
        """
        Let nothing through any more, or everything again.
        """
        raise NotImplementedError

    def setUp(self) -> None:
        """
        Make three exchanges.
        """
        self.clock = OrderedClock()
        self.clock.advance(1000.0)
        self.ends = list(self.buildExchanges(self.clock, _ENDS))
        self.heard: list[list[tuple[bytes, bool]]] = [[] for _ in self.ends]

    def start(self, *numbers: int) -> None:
        """
        Start some of the exchanges.
        """
        for number in numbers:
            self.ends[number].start(partial(self._hear, number))
        self.settle()

    def _hear(self, number: int, message: bytes, isOld: bool) -> None:
        self.heard[number].append((message, isOld))

    def settle(self) -> None:
        """
        Let all messages arrive.
        """
        self.clock.pump([self.settleSeconds / 100] * 100)

    def stop(self, number: int) -> None:
        """
        Stop an exchange, and wait until it has.
        """
        stopped = self.ends[number].stop()
        self.settle()
        self.successResultOf(stopped)

    def assertHears(self, number: int, messages: Sequence[bytes], isOld: bool = False) -> None:
        """
        Check that an exchange delivered messages in their order; each may be there twice.
        """
        found = dict.fromkeys(each for each in self.heard[number] if each[0] in messages)
        self.assertEqual(list(found), [(each, isOld) for each in messages], f"exchange {number}")

    def test_providesItsInterface(self) -> None:
        """
        The exchange has all attributes and methods of L{IUsageExchange}, and says how often servers tell something.
        """
        for end in self.ends:
            verifyObject(IUsageExchange, end)
            self.assertTrue(isfinite(end.intervalSeconds) and end.intervalSeconds > 0)

    def test_allHear(self) -> None:
        """
        Each server has the messages of all, its own included, in the order in which each of them sent them.
        """
        self.start(*range(_ENDS))
        sent: dict[tuple[int, bool], list[bytes]] = {}
        for turn in range(20):
            for number, end in enumerate(self.ends):
                for isKept in (False, True)[: 2 if turn % 3 else 1]:
                    message = f"{number} {turn} {isKept}".encode()
                    sent.setdefault((number, isKept), []).append(message)
                    end.publish(message, isKept)
            self.clock.advance(0.01 if turn % 2 else 0.0)
        self.settle()
        for number in range(_ENDS):
            for messages in sent.values():
                self.assertHears(number, messages)

    def test_unchanged(self) -> None:
        """
        Messages arrive as they were sent, also the largest.
        """
        messages = [b"{}", bytes(range(256)), _LARGEST]
        self.start(0, 1)
        for message in messages:
            self.ends[0].publish(message, False)
            self.settle()
        for number in (0, 1):
            arrived = list(dict.fromkeys(each for each, _ in self.heard[number]))
            # To show how they differ would take minutes.
            self.assertTrue(arrived == messages, "not what was sent")

    def test_keptFirst(self) -> None:
        """
        A server that starts later has the kept messages first, marked as old, and then those that are sent from then
        on.
        """
        self.start(0, 1)
        kept = [f"kept {number}".encode() for number in range(10)]
        for number, message in enumerate(kept):
            self.ends[number % 2].publish(message, True)
            self.settle()
        self.start(2)
        self.assertHears(2, kept, isOld=True)
        later = [b"kept later", b"kept last"]
        for message in later:
            self.ends[0].publish(message, True)
        self.settle()
        self.assertHears(2, kept, isOld=True)
        self.assertHears(2, later)
        self.assertHears(0, [*kept, *later])
        beforeLater = [message for message, _ in self.heard[2]]
        self.assertEqual(list(dict.fromkeys(beforeLater)), [*kept, *later])

    def test_lastOfEachKey(self) -> None:
        """
        Of kept messages with keys a server that starts later has the last of each at least, in their order and marked
        as old; those that run have all of them.
        """
        self.start(0, 1)
        messages = [f"{key} {number}".encode() for number in range(3) for key in ("a", "b")]
        for message in messages:
            self.ends[0].publish(message, True, message[:1].decode())
            self.settle()
        for number in (0, 1):
            self.assertHears(number, messages)
        self.start(2)
        self.assertHears(2, messages[-2:], isOld=True)

    def test_oldIsNotNew(self) -> None:
        """
        What was sent before a server started is not delivered to it as new, kept or not.
        """
        self.start(0, 1)
        for isKept in (False, True):
            self.ends[0].publish(f"before {isKept}".encode(), isKept)
        self.settle()
        self.start(2)
        self.ends[0].publish(b"after", False)
        self.settle()
        self.assertEqual({message for message, isOld in self.heard[2] if not isOld}, {b"after"})

    def test_stop(self) -> None:
        """
        Nothing is delivered after C{stop}, whose Deferred fires; the others go on.
        """
        self.start(*range(_ENDS))
        for end in self.ends:
            end.publish(b"on its way", False)
        before = list(self.heard[0])
        stopped = self.ends[0].stop()
        self.ends[1].publish(b"after", False)
        self.settle()
        self.successResultOf(stopped)
        self.assertEqual(self.heard[0], before)
        for number in (1, 2):
            self.assertIn((b"after", False), self.heard[number])

    def test_stopWithin(self) -> None:
        """
        An exchange may be stopped by the receiver of a message; that is the last message.
        """
        self.start(1)
        for isKept in (True, False):
            for number in range(3):
                self.ends[1].publish(f"{isKept} {number}".encode(), isKept)
        self.settle()
        delivered: list[bytes] = []
        stopped: list[Deferred[None]] = []

        def stop(message: bytes, isOld: bool) -> None:
            delivered.append(message)
            stopped.append(self.ends[0].stop())

        self.ends[0].start(stop)
        for message in (b"later", b"last"):
            self.ends[1].publish(message, False)
            self.settle()
        self.assertEqual(len(delivered), 1)
        self.successResultOf(stopped[0])

    def test_stopWithoutStart(self) -> None:
        """
        An exchange that was never started can be stopped.
        """
        self.stop(0)

    def test_publishNeverRaises(self) -> None:
        """
        A message that cannot be sent is dropped, before C{start}, after C{stop} and at any other time.
        """
        for isKept in (False, True):
            self.ends[0].publish(b"before", isKept)
        self.start(0, 1)
        self.stop(0)
        self.heard[1].clear()
        for isKept in (False, True):
            self.ends[0].publish(b"after", isKept)
        self.settle()
        self.assertEqual(self.heard[1], [], "it was sent after stop")

    def test_cut(self) -> None:
        """
        While nothing can be sent, C{publish} raises nothing, whatever the number of messages; once it can, messages
        arrive again.
        """
        self.start(0, 1)
        self.cut(True)
        for number in range(1000):
            self.ends[0].publish(b"cut %d" % number, bool(number % 2))
            self.clock.advance(0.01)
        self.settle()
        self.cut(False)
        self.settle()
        self.ends[0].publish(b"again", False)
        self.ends[1].publish(b"kept again", True)
        self.settle()
        for number in (0, 1):
            self.assertHears(number, [b"again"])
            self.assertHears(number, [b"kept again"])

    def test_stopWhileCut(self) -> None:
        """
        C{stop} fires also while nothing gets through.
        """
        self.start(0, 1)
        self.cut(True)
        self.ends[0].publish(b"cut", False)
        self.stop(0)

    def test_trouble(self) -> None:
        """
        C{trouble} says in words why it does not work, at any time; L{None} while messages arrive.
        """
        self.assertWords()
        self.start(0, 1)
        self.ends[0].publish(b"a", False)
        self.settle()
        self.assertIsNone(self.ends[0].trouble())
        self.cut(True)
        self.ends[0].publish(b"b", False)
        self.settle()
        self.assertWords()
        self.cut(False)
        self.ends[0].publish(b"c", False)
        self.settle()
        self.ends[0].publish(b"d", False)
        self.settle()
        self.assertIsNone(self.ends[0].trouble())
        self.stop(0)
        self.assertWords()

    def assertWords(self) -> None:
        """
        Check that an exchange says something or nothing.
        """
        trouble = self.ends[0].trouble()
        self.assertTrue(trouble is None or (isinstance(trouble, str) and trouble.strip()), repr(trouble))

    def test_leavesNoTimer(self) -> None:
        """
        Once all are stopped, nothing is left to do.
        """
        self.start(*range(_ENDS))
        for end in self.ends:
            end.publish(b"a", True)
        for number in range(_ENDS):
            self.stop(number)
        self.assertEqual(list(self.clock.getDelayedCalls()), [])
