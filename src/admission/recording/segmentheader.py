# -*- test-case-name: tests.unit.recording.test_segments -*-
"""
The header of a segment, before its records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import Struct
from typing import Any

from attrs import asdict, field, frozen

from .events import Origin
from .recordlayout import SLOT_BYTES, Layout, microseconds
from .schema import VERSION
from .tables import RECORDED_TABLES

PAGE_BYTES = 4096

MAGIC = b"ADMSEG1\n"
"""The first bytes of a segment with a header; written last."""

MAX_TEXT_BYTES = 64 << 10
"""The largest description of a segment, in bytes; that of a server with forty policies has a tenth of it."""

MAX_CONSTANT_BYTES = 8 << 10
"""How much what is the same for all events may have, as its values: readers repeat it for each event."""

_PREFIX = Struct("<8sII")

_SERVER_ID = "brokerId"
"""What headers call the server's number from the first version on."""


class DamagedSegment(ValueError):
    """
    A file is no segment, or its header cannot be read.
    """


@frozen
class Header:
    """
    The header of a segment.

    @ivar origin: of its events.
    @ivar number: of the segment in that process.
    @ivar monotonicSeconds: the monotonic clock when the segment was begun; with C{wallSeconds} it gives the wall time
        of events.
    @ivar wallSeconds: seconds since the epoch at that moment.
    @ivar version: of the schema.
    @ivar slotBytes: the size of a slot.
    @ivar layouts: of its records.
    """

    origin: Origin
    number: int
    monotonicSeconds: float
    wallSeconds: float
    version: int = VERSION
    slotBytes: int = SLOT_BYTES
    layouts: Sequence[Layout] = field(factory=lambda: [Layout.of(table) for table in RECORDED_TABLES])

    def toBytes(self) -> bytes:
        """
        The header as whole pages, for the beginning of the file.

        @raise ValueError: if the origin is too large to be read again.
        """
        self._checkOrigin()
        origin = asdict(self.origin)
        described = {**asdict(self, recurse=False), "origin": {_SERVER_ID: origin.pop("serverId"), **origin}}
        described["layouts"] = [layout.toJson() for layout in self.layouts]
        text = json.dumps(described).encode("ascii")
        headerBytes = -(-(_PREFIX.size + len(text)) // PAGE_BYTES) * PAGE_BYTES
        return (_PREFIX.pack(MAGIC, headerBytes, len(text)) + text).ljust(headerBytes, b"\0")

    @classmethod
    def fromBytes(cls, buffer: Any) -> tuple[Header, int] | None:
        """
        Read the result of L{toBytes}.

        @param buffer: the whole file.
        @return: the header and its size in bytes, or L{None} if the segment was never begun.
        @raise DamagedSegment: for anything else.
        """
        if buffer[: len(MAGIC)] != MAGIC:
            if bytes(buffer).strip(b"\0"):
                raise DamagedSegment("this is no segment: it does not begin as one")
            return None
        try:
            _, headerBytes, textBytes = _PREFIX.unpack_from(buffer)
            if textBytes > MAX_TEXT_BYTES:
                raise ValueError(f"it has {textBytes} bytes where {MAX_TEXT_BYTES} may be")
            described = json.loads(bytes(buffer[_PREFIX.size : _PREFIX.size + textBytes]))
            stored = described.pop("origin")
            origin = Origin(stored.pop(_SERVER_ID), **stored)
            layouts = [Layout.fromJson(each) for each in described.pop("layouts")]
            header = cls(origin=origin, layouts=layouts, **described)
            header._check()
            return header, headerBytes
        except Exception as error:
            raise DamagedSegment(f"the header is damaged: {error}") from error

    def _check(self) -> None:
        """
        @raise ValueError: if nothing can be read with it.
        """
        if type(self.slotBytes) is not int or not SLOT_BYTES <= self.slotBytes <= PAGE_BYTES:
            raise ValueError(f"no slots have {self.slotBytes!r} bytes")
        for seconds in (self.monotonicSeconds, self.wallSeconds):
            if type(seconds) not in (int, float):
                raise ValueError(f"{seconds!r} is no time")
        self._checkOrigin()

    def _checkOrigin(self) -> None:
        constantBytes = len(json.dumps(asdict(self.origin)))
        if constantBytes > MAX_CONSTANT_BYTES:
            raise ValueError(
                f"names and descriptions of policies have {constantBytes} bytes where {MAX_CONSTANT_BYTES} may be"
            )

    def constants(self) -> dict[str, Any]:
        """
        The values of the columns that are constant in the segment.
        """
        origin = self.origin
        return {
            "v": self.version,
            "broker_id": origin.serverId,
            "boot_id": origin.bootId,
            "gate_seed": None if origin.gateSeed < 0 else origin.gateSeed,
            "policy_names": list(origin.policyNames),
            "policy_descriptions": list(origin.policyDescriptions),
            "quota_windows": None if origin.quotaWindows < 0 else origin.quotaWindows,
            "quota_window_us": microseconds(origin.quotaWindowSeconds),
            "throttle_max_us": microseconds(origin.largestDelaySeconds),
            "pool_description": origin.poolDescription,
            "limit_share": origin.limitShare,
        }

    def wallOffsetMicroseconds(self) -> int:
        """
        Added to a moment of the monotonic clock, this gives wall time.
        """
        return (microseconds(self.wallSeconds) or 0) - (microseconds(self.monotonicSeconds) or 0)
