"""
Segments of recordings: a file is read or refused with L{DamagedSegment}; with a whole header its records are read
whatever is in their slots, by rows and by columns alike; a segment is sealed or set aside, and never tried again and
again.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final
from unittest.mock import patch

from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.recording.arrow import arrowTable
from admission.recording.events import ConnectionEvent, LimitEvent, Origin, SensorSample
from admission.recording.recordlayout import Layout
from admission.recording.segmentheader import PAGE_BYTES, DamagedSegment, Header
from admission.recording.segments import SMALLEST_SEGMENT_BYTES, Segment, SegmentWriter
from admission.recording.tables import RECORDED_REQUESTS, REQUESTS, TABLES
from admission_plugins.sealing import DAMAGED_SUFFIX, sealAll
from admission_plugins.sealreport import SEGMENTS

from ..scratch import scratch

MAX_BYTES = 8192

_WHOLE_FILE, _HEADER, _SLOTS = range(3)
_PREFIX: Final = struct.Struct("<8sII")
_SLOT_BYTES: Final = 256
_CAP_BYTES: Final = 1 << 30

TOKENS = [
    *(f'"{name}"'.encode() for name in ("slotBytes", "layouts", "origin", "version", "wallSeconds", "seconds", "text")),
    *(b"0", b"-1", b"1e300", b"null", b"[]", b"{}", b"NaN", b"18446744073709551616"),
    *(bytes((each.number,)) for each in TABLES),
    b"\xff",
]


@cache
def _directory() -> Path:
    path = Path(scratch()) / "recording"
    (path / SEGMENTS).mkdir(parents=True)
    return path


@cache
def _whole() -> bytes:
    """A segment with all kinds of records."""
    path = _directory() / "whole.segment"
    writer = SegmentWriter(str(path), SMALLEST_SEGMENT_BYTES)
    writer.begin(Header(Origin("3", "boot", 17, ("bandwidth", "ids")), 1, 100.0, 1_700_000_000.0))
    for event in (
        ConnectionEvent(1, 101.0, "opened", "tcp", "::1", seq=1),
        KafkaRequestEvent(1, 101.5, clientId="a", identities=[5, 6], policyDelaysSeconds=(0.0, 0.5), seq=2),
        LimitEvent(102.0, "me", None, None, "rate", 5.0, seq=3),
        SensorSample(104.0, "Used", "gauge", 7.5, seq=4),
    ):
        assert writer.append(event)
    writer.close()
    contents = path.read_bytes()
    path.unlink()
    return contents


@cache
def _headerText() -> bytes:
    _, _, textBytes = _PREFIX.unpack_from(_whole())
    return _whole()[_PREFIX.size : _PREFIX.size + textBytes]


@cache
def _headerBytes() -> int:
    headerBytes: int = _PREFIX.unpack_from(_whole())[1]
    return headerBytes


def seeds() -> Iterator[bytes]:
    slots = _whole()[_headerBytes() :]
    yield bytes((_WHOLE_FILE,)) + _whole()
    yield bytes((_WHOLE_FILE,)) + bytes(PAGE_BYTES)
    yield bytes((_HEADER,)) + _headerText()
    described = json.loads(_headerText())
    for layout in described["layouts"]:
        yield bytes((_HEADER,)) + json.dumps({**described, "layouts": [layout]}).encode()
    yield bytes((_SLOTS,)) + slots
    for at in range(0, len(slots), _SLOT_BYTES):
        yield bytes((_SLOTS,)) + slots[at : at + _SLOT_BYTES]
    # A time in a year that no calendar has.
    moment = next(each for each in Layout.of(RECORDED_REQUESTS[0]).fields if each.name == "mono_us")
    slot = bytearray(_SLOT_BYTES)
    struct.pack_into("<d", slot, moment.offset, 9e11)
    slot[-1] = REQUESTS.number
    yield bytes((_SLOTS,)) + bytes(slot)


def _contents(data: bytes) -> bytes:
    kind, rest = data[0] % 3, data[1:]
    if kind == _WHOLE_FILE:
        return rest
    if kind == _HEADER:
        headerBytes = -(-(_PREFIX.size + len(rest)) // PAGE_BYTES) * PAGE_BYTES
        header = _PREFIX.pack(_whole()[:8], headerBytes, len(rest)) + rest
        return header.ljust(headerBytes, b"\0") + _whole()[_headerBytes() :]
    return _whole()[: _headerBytes()] + rest.ljust(-(-len(rest) // _SLOT_BYTES) * _SLOT_BYTES, b"\0")


def check(data: bytes) -> None:
    if not data:
        return
    contents = _contents(data)
    path = _directory() / SEGMENTS / "1-boot-1.segment"
    path.write_bytes(contents)
    try:
        segment = Segment.load(path)
    except DamagedSegment:
        segment = None
    if segment is not None and contents[: _headerBytes()] == _whole()[: _headerBytes()]:
        _compare(segment)
    with patch("os.fsync", lambda fileno: None):
        report = sealAll(_directory(), _CAP_BYTES)
    left = os.listdir(_directory() / SEGMENTS)
    assert set(left) <= {path.name + DAMAGED_SUFFIX}, report.problems
    assert bool(left) == bool(report.problems), report.problems
    # The next one begins anew; it is all that there is.
    sealAll(_directory(), 0)
    for name in left:
        (_directory() / SEGMENTS / name).unlink(missing_ok=True)


def _compare(segment: Segment) -> None:
    for table in TABLES:
        rows = list(segment.rows(table))
        found = arrowTable(segment, table)
        columns = {} if found is None else found.drop_columns("ts").to_pydict()
        assert len(rows) == (0 if found is None else found.num_rows)
        for number, row in enumerate(rows):
            for name, value in row.items():
                if name == "ts":
                    # As a time, which Python's has narrower bounds for.
                    continue
                assert repr(value) == repr(columns[name][number]), (table.name, name, value, columns[name][number])
