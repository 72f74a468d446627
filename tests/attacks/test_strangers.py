"""
Imitates who never says who they are: connections that begin no TLS handshake or
no login, that announce something large before it, or try one password after
another.
"""

from __future__ import annotations

import struct
import time

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.goodclient import HOST
from tests.kit.rawclient import RawClient, tlsContext

ADDRESSES = sized(1, 2)
SILENT_EACH = 900
"""From each address; one may have a thousand connections."""

NEWCOMERS = 20
GUESSES = sized(200, 2000)
GUESSERS = 50

_SASL_HANDSHAKE = 17
_FIRST_RECORD = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a ClientHello."""


class SilentHandshakesTests(AttackTestCase):
    """Connections to a TLS port, which cost the most before they have said anything."""

    def occupy(self, first: bytes) -> None:
        """
        Have as many connections as one can, then newcomers that speak TLS.

        @param first: what each of them sends, and nothing after it.
        """
        context = tlsContext()
        with self.attack(f"{ADDRESSES * SILENT_EACH} connections to the TLS port send {len(first)} bytes"):
            for number in range(ADDRESSES):
                for _ in range(SILENT_EACH):
                    client = self.connect(port=self.broker.tlsPort, host=f"127.0.0.{3 + number}")
                    try:
                        client.sendBytes(first)
                    except ConnectionError:
                        # It has given way.
                        pass
            answered = 0
            for _ in range(NEWCOMERS):
                with RawClient(self.broker.tlsPort, tls=context, host=HOST) as newcomer:
                    answered += bool(newcomer.metadata("good").brokers)
        self.require(answered == NEWCOMERS, f"{answered} of {NEWCOMERS} newcomers were answered")
        self.assertAffordable()

    def test_silent(self) -> None:
        """They give way to newcomers."""
        self.occupy(b"")

    def test_halfHello(self) -> None:
        """So do those that have begun to speak."""
        self.occupy(_FIRST_RECORD)


class IdleConnectionsTests(AttackTestCase):
    """Connections to a TLS port that ask for something once, and for nothing ever after."""

    def test_askedOnce(self) -> None:
        """They keep nobody out for long: while memory is short, those that nobody uses are closed."""
        context = tlsContext()
        with self.attack(f"{SILENT_EACH} connections to the TLS port ask once"):
            clients: list[RawClient] = []
            for _ in range(SILENT_EACH):
                try:
                    client = self.connect(self.broker.tlsPort, host="127.0.0.3", tls=context, timeoutSeconds=1.0)
                    client.metadata("good")
                except OSError:
                    # The port accepts no more.
                    break
                clients.append(client)
            began = time.monotonic()
            answered = 0
            for _ in range(NEWCOMERS):
                with RawClient(self.broker.tlsPort, tls=context, host=HOST) as newcomer:
                    answered += bool(newcomer.metadata("good").brokers)
            print(f"\n{len(clients)} had connected; newcomers were served within {time.monotonic() - began:.0f} s")
            for client in clients:
                client.close()
        self.require(answered == NEWCOMERS, f"{answered} of {NEWCOMERS} newcomers were answered")
        self.assertAffordable()


class BeforeLoginTests(AttackTestCase):
    """Where clients have to log in, those that have not take nothing from those that have."""

    password = "secret"
    options = ("--auth", "memory:good:secret")

    def test_announced(self) -> None:
        """What is announced before a login is refused at once if it is large."""
        with self.attack(f"{SILENT_EACH} requests of {self.largestBytes // MIB} MiB are announced before a login"):
            clients = [self.connect() for _ in range(SILENT_EACH)]
            for client in clients:
                client.sendBytes(struct.pack(">ihh", self.largestBytes, _SASL_HANDSHAKE, 1))
            closed = sum(client.isClosedByPeer() for client in clients)
        self.require(closed == SILENT_EACH, f"{closed} of {SILENT_EACH} are closed")
        self.assertAffordable()

    def test_guesses(self) -> None:
        """Wrong passwords are answered late, and cost others nothing."""

        def guess(client: RawClient) -> int:
            try:
                return client.logIn("good", f"{time.monotonic()}")
            except ConnectionError:
                return 0

        with self.attack(f"{GUESSES} wrong passwords, {GUESSERS} at a time"):
            codes: list[int] = []
            for _ in range(GUESSES // GUESSERS):
                clients = [self.connect() for _ in range(GUESSERS)]
                codes += self.together(guess, clients)
                for client in clients:
                    client.close()
        self.require(all(codes), f"{codes.count(0)} of {GUESSES} guesses were not refused")
        self.assertAffordable()
