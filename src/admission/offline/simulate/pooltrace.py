# -*- test-case-name: tests.offline.simulate.test_pool -*-
"""
The input of a memory pool's replay, in a file: memory holds few requests at a time, however many there are.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Sequence
from struct import Struct
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from ..simulator import MICROSECONDS
from .ordered import codesOf, numbersOf

POOL_COLUMNS: Sequence[str] = (
    "broker_id",
    "boot_id",
    "seq",
    "ts",
    "mono_us",
    "gate_seed",
    "conn_id",
    "peer",
    "principal",
    "client_id",
    "request_bytes",
    "service_us",
    "pool_wait_us",
    "pool_hold_us",
    "sent_mono_us",
    "pool_used_bytes",
)
"""The columns read of each request, by the names of L{admission.recording.schema}."""

_FIELDS = ("arrivedUs", "waitUs", "sizeBytes", "holdUs", "gapUs", "next", "client", "connection")
_ROW = np.dtype([(name, "<i8") for name in _FIELDS])
_STRUCT = Struct(f"<{len(_FIELDS)}q")
_CHUNK_ROWS = 1 << 16
_NONE = -1
_STRANGERS = (None, "", "ANONYMOUS")
"""The recorded principals of clients that have not logged in."""
_UNKNOWN = -(1 << 62)


class PoolTrace:
    """
    The requests of one run of one server, each linked to the next one on its connection.

    @ivar rowCount: how many requests there are.
    @ivar clients: principals and client ids, by the number that rows have.
    @ivar gateSeed: the seed of the gate's order; 0 if it is not known.
    @ivar firstUs: when the first request arrived, like all moments in microseconds of the monotonic clock.
    @ivar lastUs: the last recorded moment.
    @ivar wallOffsetUs: added to a moment to get wall time.
    @ivar firstRows: the first request of each connection, in order.
    @ivar charges: moments, a second or more apart, and the bytes charged from then on for other things than requests.
    """

    def __init__(self) -> None:
        self.rowCount = 0
        self.clients: list[tuple[str | None, str | None]] = []
        self.gateSeed = 0
        self.firstUs = self.lastUs = self.wallOffsetUs = 0
        self.firstRows: Sequence[int] = ()
        self._peers: dict[int, str] = {}
        self._codes: dict[tuple[str | None, str | None], int] = {}
        self._file = TemporaryFile(prefix="admission-pool-")  # noqa: SIM115
        self._charges = _Charges()
        self._map: mmap.mmap | None = None

    @property
    def charges(self) -> Sequence[tuple[int, int]]:
        return self._charges.steps

    def add(self, batch: pa.RecordBatch) -> None:
        """
        Append the next requests, in the order of their arrival.
        """
        rows = np.zeros(batch.num_rows, _ROW)
        arrivedUs = rows["arrivedUs"] = numbersOf(batch.column("mono_us"))
        rows["waitUs"] = numbersOf(batch.column("pool_wait_us"))
        rows["sizeBytes"] = numbersOf(batch.column("request_bytes"))
        holdUs = numbersOf(batch.column("pool_hold_us"), _UNKNOWN)
        rows["holdUs"] = np.where(holdUs == _UNKNOWN, numbersOf(batch.column("service_us")), holdUs)
        rows["connection"] = numbersOf(batch.column("conn_id"))
        rows["client"] = self._clientsOf(batch)
        self._notePeers(rows["connection"], batch.column("peer"))
        if not self.rowCount:
            self.firstUs = self.lastUs = int(arrivedUs[0])
            self.wallOffsetUs = batch.column("ts").cast(pa.int64())[0].as_py() - self.firstUs
            self.gateSeed = batch.column("gate_seed")[0].as_py() or 0
        sentUs = numbersOf(batch.column("sent_mono_us"), _UNKNOWN)
        self.lastUs = max(self.lastUs, int(arrivedUs[-1]), int(sentUs.max()))
        self._charges.add(rows, numbersOf(batch.column("pool_used_bytes")))
        self._file.write(rows.tobytes())
        self.rowCount += batch.num_rows

    def finish(self) -> None:
        """
        Link each request to the next one on its connection, after the last L{add}.
        """
        self._charges.finish()
        self._file.flush()
        rows = np.memmap(self._file, _ROW, "r+", shape=(self.rowCount,))
        # Backwards, so that each connection's next request is already known.
        following: dict[int, tuple[int, int]] = {}
        for stop in range(self.rowCount, 0, -_CHUNK_ROWS):
            start = max(stop - _CHUNK_ROWS, 0)
            _link(rows[start:stop], start, following)
        rows.flush()
        self.firstRows = array("q", sorted(row for row, _ in following.values()))
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def row(self, number: int) -> tuple[int, ...]:
        """
        One request.

        @return: its arrival; its wait for memory; its size in bytes; for how long it held its memory; the time from the
            grant of that to the arrival of the connection's next request; the row of that request, -1 for none; its
            client, see C{clients}; and its connection.
        """
        assert self._map is not None
        return _STRUCT.unpack_from(self._map, number * _STRUCT.size)

    def holder(self, client: int, connection: int) -> str:
        """
        The holder that a pool is told for a request's memory: the principal of its client, or else the address of its
        connection; empty if neither is known.
        """
        principal, _ = self.clients[client]
        return self._peers.get(connection, "") if principal in _STRANGERS else str(principal)

    def close(self) -> None:
        """
        Remove the file.
        """
        if self._map is not None:
            self._map.close()
        self._file.close()

    def _notePeers(self, connections: Any, peers: Any) -> None:
        codes, names = codesOf(peers)
        found, places = np.unique(connections, return_index=True)
        for connection, code in zip(found.tolist(), codes[places].tolist(), strict=True):
            if code != _NONE:
                self._peers[connection] = names[code]

    def _clientsOf(self, batch: pa.RecordBatch) -> Any:
        principals, principalNames = codesOf(batch.column("principal"))
        clientIds, clientNames = codesOf(batch.column("client_id"))
        width = len(clientNames) + 1
        # Both combined in one number; 0 stands for none.
        found, places = np.unique((principals + 1) * width + clientIds + 1, return_inverse=True)
        principalOf, clientOf = [None, *principalNames], [None, *clientNames]
        pairs = [divmod(each, width) for each in found.tolist()]
        numbers = [self._number(principalOf[principal], clientOf[client]) for principal, client in pairs]
        return np.array(numbers, np.int64)[places]

    def _number(self, principal: str | None, clientId: str | None) -> int:
        number = self._codes.setdefault((principal, clientId), len(self.clients))
        if number == len(self.clients):
            self.clients.append((principal, clientId))
        return number


class _Charges:
    """
    Estimates the other charges to the pool: the bytes allocated when requests arrived, less the bytes held by requests.
    Each second has one figure, the median.

    @ivar steps: moments and bytes.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self._heldBytes = 0
        self._momentsUs = self._changes = np.zeros(0, np.int64)
        self._second = _NONE
        self._seen: list[Any] = []

    def add(self, rows: Any, usedBytes: Any) -> None:
        arrivedUs = rows["arrivedUs"]
        grantedUs = arrivedUs + rows["waitUs"]
        momentsUs = np.concatenate((self._momentsUs, grantedUs, grantedUs + rows["holdUs"]))
        changes = np.concatenate((self._changes, rows["sizeBytes"], -rows["sizeBytes"]))
        order = np.argsort(momentsUs, kind="stable")
        momentsUs, changes = momentsUs[order], changes[order]
        heldBytes = np.concatenate(([0], np.cumsum(changes))) + self._heldBytes
        chargedBytes = np.maximum(usedBytes - heldBytes[np.searchsorted(momentsUs, arrivedUs)], 0)
        past = int(np.searchsorted(momentsUs, arrivedUs[-1]))
        self._heldBytes = int(heldBytes[past])
        self._momentsUs, self._changes = momentsUs[past:], changes[past:]
        # A request without a size may be missing from the pool's recorded figure.
        isRequest = rows["sizeBytes"] > 0
        self._note(arrivedUs[isRequest] // MICROSECONDS, chargedBytes[isRequest])

    def finish(self) -> None:
        if self._seen:
            chargedBytes = int(np.median(np.concatenate(self._seen)))
            if not self.steps or self.steps[-1][1] != chargedBytes:
                self.steps.append((self._second * MICROSECONDS, chargedBytes))
        self._seen = []

    def _note(self, seconds: Any, chargedBytes: Any) -> None:
        found, starts = np.unique(seconds, return_index=True)
        if not len(found):
            return
        for second, part in zip(found.tolist(), np.split(chargedBytes, starts[1:]), strict=True):
            if second != self._second:
                self.finish()
                self._second = second
            self._seen.append(part)


def _link(rows: Any, start: int, following: dict[int, tuple[int, int]]) -> None:
    """
    Fill in C{next} and C{gapUs}.

    @param following: by connection, the first of the later requests and its arrival; updated.
    """
    arrivedUs = np.array(rows["arrivedUs"])
    order = np.argsort(rows["connection"], kind="stable")
    connections, numbers, sortedUs = rows["connection"][order], order + start, arrivedUs[order]
    isLast = np.append(connections[1:] != connections[:-1], True)
    isFirst = np.append(True, isLast[:-1])
    nextRows, nextUs = np.append(numbers[1:], _NONE), np.append(sortedUs[1:], 0)
    for place in np.flatnonzero(isLast).tolist():
        nextRows[place], nextUs[place] = following.get(int(connections[place]), (_NONE, 0))
    for place in np.flatnonzero(isFirst).tolist():
        following[int(connections[place])] = int(numbers[place]), int(sortedUs[place])
    rows["next"][order] = nextRows
    # A server reads no request before the previous one is done; microseconds may have been rounded.
    gapUs = nextUs - sortedUs - rows["waitUs"][order]
    rows["gapUs"][order] = np.maximum(gapUs, rows["holdUs"][order])
