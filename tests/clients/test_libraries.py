"""The client libraries that users have produce to the broker, and consume from it."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import certificates, sharedBroker
from tests.kit.libraries import LIBRARIES, Message, Settings, consumeAll, produceAll

PARTITIONS = 3


class LibrariesTests(SynchronousTestCase):
    """Keys, values, headers and times come back from every partition as they were sent, in order."""

    def setUp(self) -> None:
        self.broker = sharedBroker(
            "--set", f"num.partitions={PARTITIONS}", "--set", "group.initial.rebalance.delay.ms=0"
        )
        begin = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(begin), []))

    def roundTrip(self, settings: Settings, topic: str, **properties: Any) -> None:
        """Produce to every partition and read it again."""
        messages = [
            Message(
                None if number % 6 == 3 else b"value %d" % number,
                None if number % 3 == 1 else b"key %d" % number,
                (("a", b"1"), ("b", b"\x00\xff"), ("a", b"")) if number % 2 else (),
                1_700_000_000_000 + number,
                number % PARTITIONS,
            )
            for number in range(300)
        ]
        producing = {"linger.ms": 20} | {name.replace("_", "."): value for name, value in properties.items()}
        offsets = produceAll(evolve(settings, properties=producing), topic, messages)
        expected = [evolve(each, offset=offset) for each, offset in zip(messages, offsets, strict=True)]
        received = consumeAll(settings, topic, len(messages))
        for partition in range(PARTITIONS):
            ours = [each for each in expected if each.partition == partition]
            self.assertEqual([each.offset for each in ours], list(range(len(ours))))
            self.assertEqual([each for each in received if each.partition == partition], ours)

    def test_roundTrip(self) -> None:
        """Over TCP, as each library does it by default."""
        for library in LIBRARIES:
            self.roundTrip(Settings(library, self.broker.address), f"tcp.{library}")

    def test_roundTripWithTLS(self) -> None:
        """Over TLS with a certificate that is verified, compressed, by idempotent producers."""
        for library in LIBRARIES:
            settings = Settings(library, self.broker.tlsAddress, authority=str(certificates().authority))
            self.roundTrip(settings, f"tls.{library}", enable_idempotence=True, acks="all", compression_type="gzip")
