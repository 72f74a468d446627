"""
L{admission.testing.mutability}, with adapters that are wrong.
"""

from __future__ import annotations

from twisted.internet.interfaces import IProtocol
from twisted.internet.task import Clock

from admission.testing.mutability import MutableTransport, TransportMutabilityContract
from admission.testing.transports import FakeTransport
from admission_plugins.mutability import PlainMutability

from .seededfaults import SeededFaultsTestCase


class HoardingTransport(FakeTransport):
    """
    Keeps the rest of what it has received when it is paused in the middle of
    it, and forgets to go on.
    """

    held = b""

    def _deliver(self, chunk: bytes) -> None:
        half = len(chunk) // 2
        super()._deliver(chunk[:half])
        if self.isReading:
            super()._deliver(chunk[half:])
        else:
            self.held = chunk[half:]
            # What comes later must not overtake it.
            self._arrived.clear()


class Honest(PlainMutability):
    """
    Says so, if it does.
    """

    def hasBytesBuffered(self) -> bool:
        return bool(self.transport.held)


class Forgetful(PlainMutability):
    """
    Never says so.
    """


class Deaf(PlainMutability):
    """
    Does not unmute.
    """

    def unmute(self) -> None:
        pass


class Dumb(PlainMutability):
    """
    Does not mute.
    """

    def mute(self) -> None:
        pass


class Vague(PlainMutability):
    """
    Does not know.
    """

    def isInMutableState(self) -> bool:
        return 1  # type: ignore[return-value]


class Worried(PlainMutability):
    """
    Always believes that something is left.
    """

    def hasBytesBuffered(self) -> bool:
        return True


class Counting(PlainMutability):
    """
    Takes as many C{unmute} as there were C{mute}.
    """

    def mute(self) -> None:
        self.transport.mutes = getattr(self.transport, "mutes", 0) + 1
        super().mute()

    def unmute(self) -> None:
        self.transport.mutes = max(getattr(self.transport, "mutes", 0) - 1, 0)
        if not self.transport.mutes:
            super().unmute()


class Wasteful(PlainMutability):
    """
    Throws away what came while it was muted.
    """

    def unmute(self) -> None:
        self.transport._arrived.clear()
        super().unmute()


class TransportMutabilityContractTests(SeededFaultsTestCase):
    """
    L{TransportMutabilityContract}.
    """

    def check(self, adapter: type[PlainMutability], test: str | None, transport: type[FakeTransport]) -> None:
        """
        C{adapter} does not pass C{test}, or it passes all.
        """

        def build(protocol: IProtocol) -> MutableTransport:
            clock = Clock()
            made = transport(clock, protocol)
            made.connect()
            return MutableTransport(adapter(made), lambda: made.isReading, made.peerSends, lambda: clock.advance(0))

        if test is None:
            self.assertSound(TransportMutabilityContract, buildMutability=build)
        else:
            self.assertBroken(TransportMutabilityContract, test, adapter.__name__, buildMutability=build)

    def test_sound(self) -> None:
        """
        A sound adapter passes, be its transport sound or not.
        """
        self.check(PlainMutability, None, FakeTransport)
        self.check(Honest, None, HoardingTransport)

    def test_faults(self) -> None:
        """
        Each way in which an adapter may be wrong is found by the test that is
        for it.
        """
        for adapter, test in [
            (Deaf, "test_muteAndUnmute"),
            (Dumb, "test_muteAndUnmute"),
            (Vague, "test_answersAreBooleans"),
            (Worried, "test_answersAreBooleans"),
            (Counting, "test_repetitionIsHarmless"),
            (Wasteful, "test_nothingArrivesWhileMuted"),
        ]:
            self.check(adapter, test, FakeTransport)
        self.check(Forgetful, "test_nothingIsStranded", HoardingTransport)
