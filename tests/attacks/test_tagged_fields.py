"""Imitates who fills headers and bodies with tagged fields, of which two bytes make one, before anything is counted."""

from __future__ import annotations

import struct

from admission.kafka.wire.primitives import unsignedVarint
from admission.kafka.wire.versions import METADATA, PRODUCE
from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.costlyrequests import framed

SIZE_BYTES = sized(8 * MIB, 26 * MIB)
METADATA_BYTES = 900 << 10
TIMES = 20


def _tags(sizeBytes: int) -> bytes:
    count = sizeBytes // 2
    return unsignedVarint(count) + b"\x63\x00" * count


def _header(apiKey: int, apiVersion: int, tags: bytes) -> bytes:
    return struct.pack(">hhih", apiKey, apiVersion, 1, -1) + tags


class TaggedFieldsTests(AttackTestCase):
    """Tagged fields without end."""

    largestBytes = AttackTestCase.poolBytes

    def attackWith(self, name: str, request: bytes, times: int = 1) -> None:
        """Send the same request on one connection after another, each of which is closed for it."""
        with self.attack(f"{times} {name}"):
            for _ in range(times):
                client = self.connect()
                client.sendBytes(framed(request))
                self.assertTrue(client.isClosedByPeer())
                client.close()
        self.assertAffordable()

    def test_produceHeader(self) -> None:
        """A large Produce has them in its header."""
        self.attackWith(f"headers of {SIZE_BYTES // MIB} MiB", _header(PRODUCE, 9, _tags(SIZE_BYTES)))

    def test_produceBody(self) -> None:
        """A large Produce has them at its end."""
        body = b"\x00" + struct.pack(">hi", 1, 1000) + b"\x01" + _tags(SIZE_BYTES)
        self.attackWith(f"bodies of {SIZE_BYTES // MIB} MiB", _header(PRODUCE, 9, b"\x00") + body)

    def test_metadataHeaders(self) -> None:
        """Metadata of many connections has as many as fit into it."""
        self.attackWith("Metadata of 0.9 MiB", _header(METADATA, 12, _tags(METADATA_BYTES)), TIMES)
