"""L{admission.testing.usageexchangecontract} and its L{ScriptedExchange}, with exchanges that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IUsageExchange
from admission.testing.scriptedexchange import ScriptedExchange, ScriptedLine
from admission.testing.usageexchangecontract import UsageExchangeContract
from tests.kit.seededfaults import SeededFaultsTestCase


def hooksFor(exchangeType: type[ScriptedExchange], **settings: Any) -> dict[str, Any]:
    """What the contract is to be told of exchanges."""
    lines: list[ScriptedLine] = []

    def buildExchanges(clock: Clock, count: int) -> Sequence[IUsageExchange]:
        lines.append(ScriptedLine(clock, **settings))
        return [exchangeType(lines[-1]) for _ in range(count)]

    def cut(isCut: bool) -> None:
        lines[-1].isCut = isCut

    return {"buildExchanges": buildExchanges, "cut": cut}


class Unsteady(ScriptedExchange):
    """Says nothing sensible about how often."""

    def __init__(self, line: ScriptedLine) -> None:
        super().__init__(line, float("nan"))


class DeafToItself(ScriptedExchange):
    """Does not hear its own messages."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        self.own = message
        super().publish(message, isKept, key)

    def hear(self, message: bytes, isOld: bool) -> None:
        if message != getattr(self, "own", None):
            super().hear(message, isOld)


class Hasty(ScriptedExchange):
    """Sends when it suits it."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        self.line.clock.callLater(0.001 * (sum(message) % 7), super().publish, message, isKept, key)


class DropsKept(ScriptedExchange):
    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        if not isKept:
            super().publish(message, isKept, key)


class Truncates(ScriptedExchange):
    """Has messages of no more than 64 KiB."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        super().publish(message[: 64 << 10], isKept, key)


class Strips(ScriptedExchange):
    """Takes messages for lines of text."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        super().publish(message.decode("latin-1").strip().encode(), isKept, key)


class KeepsNothing(ScriptedExchange):
    """Knows nothing of before."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        super().publish(message, False)


class KeepsTheFirst(ScriptedExchange):
    """Of messages with one key it keeps the first."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        super().publish(message, isKept and (key is None or key not in self.line.kept), key)


class KeptBackwards(ScriptedExchange):
    """Begins with what was kept last."""

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        kept = self.line.kept
        self.line.kept = dict(reversed(kept.items()))
        super().start(deliver)
        self.line.kept = kept


class KeptLast(ScriptedExchange):
    """Reads what is kept at leisure."""

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        kept, self.line.kept = self.line.kept, {}
        super().start(deliver)
        self.line.kept = kept
        for message in kept.values():
            self.line.clock.callLater(1.01, deliver, message, True)


class KeptAsNew(ScriptedExchange):
    """Does not tell old from new."""

    def hear(self, message: bytes, isOld: bool) -> None:
        super().hear(message, False)


class KeepsAll(ScriptedExchange):
    """Delivers all there ever was as if it was sent now."""

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        super().start(deliver)
        for message in getattr(self.line.clock, "all", []):
            deliver(message, False)

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        super().publish(message, isKept, key)
        clock: Any = self.line.clock
        clock.all = [*getattr(clock, "all", []), *([] if isKept else [message])]


class NeverStops(ScriptedExchange):
    """Closes some day."""

    def stop(self) -> Deferred[None]:
        super().stop()
        return Deferred()


class FailsToStop(ScriptedExchange):
    """Says how closing went."""

    def stop(self) -> Deferred[None]:
        super().stop()
        return fail(OSError("the line is gone"))


class DeliversWhatIsThere(ScriptedExchange):
    """Delivers after it was stopped what was sent before."""

    def stop(self) -> Deferred[None]:
        deliver = self._deliver
        stopped = super().stop()
        if deliver is not None:
            for message, *_ in list(self.line._underWay):
                self.line.clock.callLater(0.0, deliver, message, False)
        return stopped


class StopsAll(ScriptedExchange):
    """Closes the line for everybody."""

    def stop(self) -> Deferred[None]:
        self.line.ends.clear()
        return super().stop()


class DeliversInOneGo(ScriptedExchange):
    """Looks at what is there once, and delivers all of it."""

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        super().start(deliver)
        for message in list(self.line.kept.values())[1:]:
            deliver(message, True)


class NotStarted(ScriptedExchange):
    """Takes it that it was started."""

    def stop(self) -> Deferred[None]:
        self.line.ends.remove(self)
        return super().stop()


class RaisesBefore(ScriptedExchange):
    """Cannot send before it is started."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        if self._deliver is None:
            raise RuntimeError("not started")
        super().publish(message, isKept, key)


class SendsAfterwards(ScriptedExchange):
    """Sends after it was stopped."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        self.line.send(message, isKept, key)


class RaisesWhenCut(ScriptedExchange):
    """Tells what sends whether it could."""

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        if self.line.isCut:
            raise ConnectionError("cut")
        super().publish(message, isKept, key)


class GivesUp(ScriptedExchange):
    """Does not try again."""

    hasGivenUp = False

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        self.hasGivenUp |= self.line.isCut
        if not self.hasGivenUp:
            super().publish(message, isKept, key)


class WaitsForTheLine(ScriptedExchange):
    """Closes when it can say goodbye."""

    def stop(self) -> Deferred[None]:
        stopped = super().stop()
        return Deferred() if self.line.isCut else stopped


class NotInWords(ScriptedExchange):
    """Says what is wrong as an exception."""

    def trouble(self) -> Any:
        return ConnectionError("cut") if self.line.isCut else None


class AlwaysInTrouble(ScriptedExchange):
    """Remembers the worst."""

    worst: str | None = None

    def trouble(self) -> str | None:
        self.worst = self.worst or super().trouble()
        return self.worst


class KeepsATimer(ScriptedExchange):
    """Looks at the line each second, also when there is none."""

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        super().start(deliver)
        self.look()

    def look(self) -> None:
        """Look again later."""
        self.line.clock.callLater(1.0, self.look)


class ScriptedExchangeTests(UsageExchangeContract, SynchronousTestCase):
    """L{ScriptedExchange} is an L{IUsageExchange}."""

    def buildExchanges(self, clock: Clock, count: int) -> Sequence[IUsageExchange]:
        """Of one line."""
        self.line = ScriptedLine(clock)
        return [ScriptedExchange(self.line) for _ in range(count)]

    def cut(self, isCut: bool) -> None:
        """That line."""
        self.line.isCut = isCut

    def test_onCue(self) -> None:
        """A line loses messages, delivers them twice and is slow when it is told to; none overtakes another."""
        self.start(0, 1)
        copies, trips = iter([1, 0, 2, 1]), iter([0.3, 0.0, 0.0, 0.0])
        self.line.copies = copies.__next__
        self.line.tripSeconds = trips.__next__
        for message in (b"slow", b"lost", b"twice", b"last"):
            self.ends[0].publish(message, False)
            self.clock.advance(0.1 / 3)
        self.assertEqual(self.heard[1], [])
        self.settle()
        self.assertEqual([message for message, _ in self.heard[1]], [b"slow", b"twice", b"twice", b"last"])


class UsageExchangeContractTests(SeededFaultsTestCase):
    """L{UsageExchangeContract}."""

    def test_sound(self) -> None:
        """A sound exchange passes, also one that delivers messages twice, and one that takes its time."""
        self.assertSound(UsageExchangeContract, **hooksFor(ScriptedExchange))
        self.assertSound(UsageExchangeContract, **hooksFor(ScriptedExchange, copies=lambda: 2))
        self.assertSound(UsageExchangeContract, **hooksFor(ScriptedExchange, tripSeconds=lambda: 0.9))

    def test_faults(self) -> None:
        """Each way in which an exchange may be wrong is found by the test that is for it."""
        faults: list[tuple[type[ScriptedExchange], str]] = [
            (Unsteady, "test_providesItsInterface"),
            (DeafToItself, "test_allHear"),
            (Hasty, "test_allHear"),
            (DropsKept, "test_allHear"),
            (Truncates, "test_unchanged"),
            (Strips, "test_unchanged"),
            (KeepsNothing, "test_keptFirst"),
            (KeepsTheFirst, "test_lastOfEachKey"),
            (KeptBackwards, "test_keptFirst"),
            (KeptLast, "test_keptFirst"),
            (KeptAsNew, "test_oldIsNotNew"),
            (KeepsAll, "test_oldIsNotNew"),
            (NeverStops, "test_stop"),
            (FailsToStop, "test_stop"),
            (DeliversWhatIsThere, "test_stop"),
            (StopsAll, "test_stop"),
            (DeliversInOneGo, "test_stopWithin"),
            (NotStarted, "test_stopWithoutStart"),
            (RaisesBefore, "test_publishNeverRaises"),
            (SendsAfterwards, "test_publishNeverRaises"),
            (RaisesWhenCut, "test_cut"),
            (GivesUp, "test_cut"),
            (WaitsForTheLine, "test_stopWhileCut"),
            (NotInWords, "test_trouble"),
            (AlwaysInTrouble, "test_trouble"),
            (KeepsATimer, "test_leavesNoTimer"),
        ]
        for exchange, test in faults:
            self.assertBroken(UsageExchangeContract, test, exchange.__name__, **hooksFor(exchange))
