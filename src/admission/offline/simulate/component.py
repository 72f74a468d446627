# -*- test-case-name: tests.offline.simulate.test_closedloop -*-
"""
The requests of connections that are replayed together, packed: times are stored as durations after what determines
them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field
from pyarrow import compute as pc

from .live import REQUESTER, Requester
from .ordered import distinctRows, numbersOf

MAX_ROWS_IN_MEMORY = 200_000
"""More rows than this are kept in a file."""


class PackedRows:
    """
    Rows of a numpy structure, appended in order and then read anywhere.  Beyond C{maxInMemory} rows they are kept in a
    temporary file without a name, which disappears with the process.

    The file is read and not mapped: mapped pages count as memory of the process as soon as they have been read.
    """

    def __init__(self, dtype: np.dtype[Any], maxInMemory: int = MAX_ROWS_IN_MEMORY) -> None:
        """
        @param maxInMemory: how many rows to hold in memory.
        """
        self._dtype = dtype
        self._maxInMemory = maxInMemory
        self._held: list[Any] = []
        self._file: BinaryIO | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Any) -> None:
        """
        Add an array of rows; the caller must not change it afterwards.
        """
        self._count += len(rows)
        if self._file is not None:
            self._file.write(rows.tobytes())
            return
        self._held.append(rows)
        if self._count > self._maxInMemory:
            self._file = tempfile.TemporaryFile(prefix="admission-replay-")  # noqa: SIM115
            for each in self._held:
                self._file.write(each.tobytes())
            self._held = []

    def seal(self) -> None:
        """
        Call this between the last L{append} and the first L{read}.
        """
        if self._file is not None:
            self._file.flush()
        else:
            self._held = [np.concatenate(self._held) if self._held else np.zeros(0, self._dtype)]

    def read(self, start: int, stop: int) -> Any:
        """
        The rows from C{start} to before C{stop}.
        """
        if self._file is None:
            return self._held[0][start:stop]
        size = self._dtype.itemsize
        data = os.pread(self._file.fileno(), (stop - start) * size, start * size)
        return np.frombuffer(data, self._dtype)

    def tuples(self, start: int, stop: int, chunkRows: int) -> Iterator[tuple[Any, ...]]:
        """
        Iterate over rows, with no more than C{chunkRows} of them as Python objects at a time.
        """
        for begin in range(start, stop, chunkRows):
            yield from self.read(begin, min(begin + chunkRows, stop)).tolist()

    def close(self) -> None:
        self._held = []
        if self._file is not None:
            self._file.close()


SLACK_US = 1000
"""A think time that is negative by no more than this is no request sent ahead: timers may fire early."""

MAX_IDENTITIES = 4
"""The largest number of producers in a recorded request."""

_MAX_TUPLES = 100_000
_MAX_TUPLES_OF_ONE = 1024

ASKED, COUNTED, AHEAD = 1, 2, 4
"""The flags: the candidate is asked; it is charged the usage; the request came before the last one was answered."""

TOLD = 8
"""The request is among the decisions."""

KNOWN = 16
"""The server knew its first producer."""

PACKED = np.dtype(
    [
        ("seq", "i8"),
        # Time to arrival: since the connection is free again, since the previous arrival (AHEAD), or absolute.
        ("waitUs", "i8"),
        # From its arrival until it is decided, and from then until its answer is sent.
        ("workUs", "i8"),
        ("answerUs", "i8"),
        ("retainedUs", "i8"),
        ("longestUs", "i8"),
        ("requestBytes", "i8"),
        ("responseBytes", "i8"),
        ("serviceUs", "i8"),
        ("requester", "i4"),
        ("replayKey", "i4"),
        ("flags", "u1"),
        ("identityCount", "u1"),
        ("refusal", "u1"),
        *((f"identity{index}", "i8") for index in range(MAX_IDENTITIES)),
    ]
)
"""A request; its producers come last, because their number varies."""

SEQ, WAIT, WORK, FLAGS, IDENTITIES_FROM = map(
    list(PACKED.fields or ()).index, ("seq", "waitUs", "workUs", "flags", "identity0")
)
"""The indices of some fields; the last one is that of the first producer."""


@define(eq=False)
class Texts:
    """
    The strings that packed rows have codes for.

    @ivar requesters: by code.
    @ivar keys: by code.
    """

    requesters: list[Requester] = field(factory=list)
    keys: list[str | None] = field(factory=list)
    _codes: dict[Any, int] = field(factory=dict)

    def codesOf(self, values: Sequence[Any], known: list[Any]) -> Any:
        """
        The codes of values, some of which may be new.

        @param known: C{requesters} or C{keys}.
        """
        codes = []
        for value in values:
            place = (known is self.keys, value)
            code = self._codes.get(place)
            if code is None:
                code = self._codes[place] = len(known)
                known.append(value)
            codes.append(code)
        return np.array(codes, np.int32)


@define(eq=False)
class Packer:
    _texts: Texts
    _before: tuple[int, int, int] = field(default=(-1, 0, 0), init=False)

    def pack(self, batch: pa.RecordBatch, isComponentStart: Any) -> tuple[Any, Any]:
        """
        @param batch: of L{admission.offline.simulate.arrivals.ARRIVALS}, sorted by connection and arrival.
        @param isComponentStart: for each row whether another component begins.
        @return: rows of L{PACKED}, and for each whether a connection begins.
        """
        number = {name: numbersOf(batch.column(name)) for name in _NUMBERS}
        connections, arrivedUs, releasedUs = number["conn_id"], number["arrived_us"], number["released_us"]
        before = self._before
        isFirst = isComponentStart | (connections != np.concatenate([[before[0]], connections[:-1]]))
        thoughtUs = arrivedUs - np.concatenate([[before[2]], releasedUs[:-1]])
        sinceUs = arrivedUs - np.concatenate([[before[1]], arrivedUs[:-1]])
        isAhead = thoughtUs < -SLACK_US
        self._before = int(connections[-1]), int(arrivedUs[-1]), int(releasedUs[-1])

        rows = np.zeros(batch.num_rows, PACKED)
        rows["seq"] = number["seq"]
        rows["waitUs"] = np.where(isFirst, arrivedUs, np.where(isAhead, sinceUs, thoughtUs))
        rows["workUs"] = number["at_us"] - arrivedUs
        rows["answerUs"] = number["sent_us"] - number["at_us"]
        rows["retainedUs"] = number["retained_us"]
        rows["longestUs"] = number["longest_us"]
        rows["requestBytes"] = number["request_bytes"]
        rows["responseBytes"] = number["response_bytes"]
        rows["serviceUs"] = number["service_us"]
        rows["refusal"] = number["refusal"]
        requesters, places = distinctRows([batch.column(name) for name in REQUESTER])
        rows["requester"] = self._texts.codesOf(requesters, self._texts.requesters)[places]
        keys, places = distinctRows([batch.column("replay_key")])
        rows["replayKey"] = self._texts.codesOf([key for (key,) in keys], self._texts.keys)[places]
        isTold = number["is_asked"] | number["is_barred"]
        flags = number["is_asked"] * ASKED + number["is_counted"] * COUNTED + isAhead * AHEAD + isTold * TOLD
        rows["flags"] = flags + number["is_known"] * KNOWN
        identities = batch.column("producer_ids")
        counts = np.minimum(numbersOf(pc.list_value_length(identities)), MAX_IDENTITIES)
        rows["identityCount"] = counts
        for index in range(int(counts.max(initial=0))):
            chosen = counts > index
            rows[f"identity{index}"][chosen] = numbersOf(pc.list_element(identities.filter(pa.array(chosen)), index))
        return rows, isFirst


_NUMBERS = (
    "seq",
    "conn_id",
    "at_us",
    "arrived_us",
    "sent_us",
    "released_us",
    "retained_us",
    "longest_us",
    "request_bytes",
    "response_bytes",
    "service_us",
    "is_asked",
    "is_barred",
    "is_counted",
    "is_known",
    "refusal",
)


@define(eq=False)
class Component:
    """
    Connections that are replayed together.

    @ivar connectionIds: the connections, in order.
    @ivar releasedUs: when each connection was released after the last of its requests that is among the decisions, in
        the recording.
    """

    connectionIds: list[int] = field(factory=list)
    releasedUs: list[int] = field(factory=list)
    _starts: list[int] = field(factory=list)
    _stops: list[int] = field(factory=list)
    _rows: PackedRows = field(factory=lambda: PackedRows(PACKED, MAX_ROWS_IN_MEMORY))

    def add(self, rows: Any, isFirst: Any, connectionIds: Any, releasedUs: Any) -> None:
        """
        Add packed rows.

        @param isFirst: for each whether a connection begins.
        @param connectionIds: for each its connection.
        @param releasedUs: for each when its connection was released, in the recording.
        """
        count = len(self._rows)
        starts = np.flatnonzero(isFirst)
        for start, connectionId in zip(starts.tolist(), connectionIds[starts].tolist(), strict=True):
            self.connectionIds.append(connectionId)
            self.releasedUs.append(0)
            self._starts.append(count + start)
            self._stops.append(count + start)
        bounds = starts if len(starts) and not starts[0] else np.concatenate([[0], starts])
        told = np.where((rows["flags"] & TOLD) > 0, np.arange(len(rows)), -1)
        lasts = np.maximum.reduceat(told, bounds).tolist()
        for index, last in enumerate(lasts, len(self._starts) - len(lasts)):
            if last >= 0:
                self._stops[index] = count + last + 1
                self.releasedUs[index] = int(releasedUs[last])
        self._rows.append(rows)

    def connections(self) -> Iterator[tuple[int, int, Iterator[tuple[Any, ...]]]]:
        """
        For each connection with requests among the decisions: its number, when it was released after the last of these,
        and its rows up to that one.
        """
        self._rows.seal()
        chunkRows = max(min(_MAX_TUPLES // max(len(self._starts), 1), _MAX_TUPLES_OF_ONE), 4)
        for connectionId, releasedUs, start, stop in zip(
            self.connectionIds, self.releasedUs, self._starts, self._stops, strict=True
        ):
            if stop > start:
                yield connectionId, releasedUs, self._rows.tuples(start, stop, chunkRows)

    def close(self) -> None:
        self._rows.close()
