"""L{admission.testing.mutabilitycontract}, with adapters that are wrong."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IProtocol
from twisted.internet.task import Clock

from admission.testing.faketransport import FakeTransport
from admission.testing.mutabilitycontract import MutableTransport, TransportMutabilityContract
from admission_plugins.transportadapters import PlainMutability
from tests.kit.holding import HoldingMutability, HoldingTransport
from tests.kit.seededfaults import SeededFaultsTestCase


def builder(
    adapter: type[PlainMutability], transportType: type[FakeTransport] = FakeTransport
) -> Callable[[IProtocol], MutableTransport]:
    """What makes transports with an adapter."""

    def build(protocol: IProtocol) -> MutableTransport:
        clock = Clock()
        made = transportType(clock, protocol)
        made.connect()
        return MutableTransport(adapter(made), lambda: made.isReading, made.peerSends, lambda: clock.advance(0))

    return build


class Forgetful(HoldingMutability):
    """Never says so."""

    def hasBytesBuffered(self) -> bool:
        return False


class Silent(HoldingMutability):
    """Delivers nothing of it."""

    def readBuffered(self) -> None:
        pass


class Hasty(HoldingMutability):
    """Reads on by itself."""

    def readBuffered(self) -> None:
        super().readBuffered()
        self.transport.resumeProducing()


class Greedy(PlainMutability):
    """Reads what nobody has."""

    def readBuffered(self) -> None:
        self.transport._deliver(self.transport.unread)


class Deaf(PlainMutability):
    """Does not unmute."""

    def unmute(self) -> None:
        pass


class Dumb(PlainMutability):
    """Does not mute."""

    def mute(self) -> None:
        pass


class Vague(PlainMutability):
    """Does not know."""

    def isInMutableState(self) -> bool:
        return 1  # type: ignore[return-value]


class Worried(PlainMutability):
    """Always believes that something is left."""

    def hasBytesBuffered(self) -> bool:
        return True


class Counting(PlainMutability):
    """Takes as many C{unmute} as there were C{mute}."""

    def mute(self) -> None:
        self.transport.mutes = getattr(self.transport, "mutes", 0) + 1
        super().mute()

    def unmute(self) -> None:
        self.transport.mutes = max(getattr(self.transport, "mutes", 0) - 1, 0)
        if not self.transport.mutes:
            super().unmute()


class Wasteful(PlainMutability):
    """Throws away what came while it was muted."""

    def unmute(self) -> None:
        self.transport._arrived.clear()
        super().unmute()


class TransportMutabilityContractTests(SeededFaultsTestCase):
    """L{TransportMutabilityContract}."""

    def check(self, adapter: type[PlainMutability], test: str | None, transport: type[FakeTransport]) -> None:
        """C{adapter} does not pass C{test}, or it passes all."""
        build = builder(adapter, transport)
        if test is None:
            self.assertSound(TransportMutabilityContract, buildMutability=build)
        else:
            self.assertBroken(TransportMutabilityContract, test, adapter.__name__, buildMutability=build)

    def test_sound(self) -> None:
        """A sound adapter passes, be its transport sound or not."""
        self.check(PlainMutability, None, FakeTransport)
        self.check(HoldingMutability, None, HoldingTransport)

    def test_faults(self) -> None:
        """Each way in which an adapter may be wrong is found by the test that is for it."""
        for adapter, test in [
            (Deaf, "test_muteAndUnmute"),
            (Dumb, "test_muteAndUnmute"),
            (Vague, "test_answersAreBooleans"),
            (Worried, "test_answersAreBooleans"),
            (Counting, "test_repetitionIsHarmless"),
            (Wasteful, "test_nothingArrivesWhileMuted"),
        ]:
            self.check(adapter, test, FakeTransport)
        self.check(Greedy, "test_nothingIsBuffered", FakeTransport)
        for holding in (Forgetful, Silent, Hasty):
            self.check(holding, "test_nothingIsStranded", HoldingTransport)
