"""Tests for L{admission.kafka.serving.secondsignal}."""

from __future__ import annotations

import signal
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.secondsignal import SecondSignal


class StandInReactor:
    """
    The signal handlers of a reactor.

    @ivar stops: how often it was told to stop.
    """

    def __init__(self) -> None:
        self.stops = 0
        self.calls: list[Callable[[], object]] = []

    def sigTerm(self, number: int, frame: object) -> None:
        self.stops += 1

    sigInt = sigTerm

    def callFromThread(self, function: Callable[[], object]) -> None:
        self.calls.append(function)


class SecondSignalTests(SynchronousTestCase):
    """L{SecondSignal} takes signals from a reactor that stops."""

    def setUp(self) -> None:
        self.reactor = StandInReactor()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        signal.signal(signal.SIGTERM, self.reactor.sigTerm)
        signal.signal(signal.SIGINT, self.reactor.sigInt)

    def test_hurries(self) -> None:
        """Each further signal hurries, in a turn of the reactor, and does not reach the reactor itself."""
        hurried: list[str] = []
        with SecondSignal(self.reactor, lambda: hurried.append("now")):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            self.assertEqual(hurried, [])
            for call in self.reactor.calls:
                call()
        self.assertEqual((hurried, self.reactor.stops), (["now"] * 2, 0))

    def test_givesBack(self) -> None:
        """Afterwards the reactor has its signals again, even if stopping has failed."""
        secondSignal = SecondSignal(self.reactor, lambda: None)
        with self.assertRaises(ZeroDivisionError), secondSignal:
            raise ZeroDivisionError
        signal.raise_signal(signal.SIGTERM)
        self.assertEqual((self.reactor.stops, self.reactor.calls), (1, []))

    def test_othersSignals(self) -> None:
        """A program that has its own ways with signals keeps them."""
        received: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        with SecondSignal(self.reactor, lambda: None):
            signal.raise_signal(signal.SIGTERM)
        self.assertEqual((received, self.reactor.calls), ([signal.SIGTERM], []))
