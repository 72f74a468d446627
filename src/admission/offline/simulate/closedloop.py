# -*- test-case-name: tests.offline.simulate.test_closedloop -*-
"""
The main result: what would have happened.

A client sends its next request when it has received the last answer, is no longer throttled, and has thought; so a
policy that throttles it moves everything that comes after.  A connection is therefore replayed from durations: the
client's think time, how long a request waited and was worked on, and how long its answer took.  Only the candidate's
delays are new.

This is exact for clients whose think time does not depend on how fast they are served.  It is no forecast for a
candidate that is more generous than the recorded policies: the recording does not contain the requests that clients
would have sent besides.  Their connections run out of requests earlier than they did, or are released earlier after the
last one; these are marked as exhausted, and with many of them there is no forecast.

A request that was sent before the last one was answered follows the previous request at the same distance, unless its
connection is not read then; it may be decided before that one is.  So does one that came before the delay of the last
one was over, because limits were changed.  Where clients retried refused requests, the retries remain.

When limits change, clients that wait are released as early as the server would release them.

Connections here are rows of numbers, and what L{admission.connection.driver.RequestDriver} does with requests of a live
one is written out for them: by way of it each decision would take some 2.5 microseconds more of the five that it takes,
and C{benchmarks.offline} would miss its aim.  C{tests.offline.simulate.test_framed} and C{test_served_site} hold both
to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field
from pyarrow import compute as pc

from admission.interfaces import NOTHING, Request, traitsOf

from .arrivals import CLOSED_GROUP, CLOSED_ORDER
from .decisions import CLOSED, decisionBatch, isAfterGap
from .live import REQUESTER, LivePolicy, Requester, newRequest, newUsage
from .ordered import Ordered, distinctRows, numbersOf
from .together import Exchange, Server, Together, serversOf
from .trials import TrialKey

MAX_ROWS_IN_MEMORY = 200_000
"""More requests of a component than this are kept in a temporary file without a name."""

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
        ("lagUs", "i8"),
        ("freeShare", "f8"),
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
        rows["lagUs"] = number["lag_us"]
        rows["freeShare"] = number["pool_free_share"]
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
    "lag_us",
    "pool_free_share",
    "is_asked",
    "is_barred",
    "is_counted",
    "is_known",
    "refusal",
)


def _rowsFile() -> IO[bytes]:
    return SpooledTemporaryFile(MAX_ROWS_IN_MEMORY * PACKED.itemsize, prefix="admission-replay-")


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
    # Read and not mapped, since mapped pages count as memory of the process as soon as they have been read.
    _rows: IO[bytes] = field(factory=_rowsFile)
    _count: int = 0

    def add(self, rows: Any, isFirst: Any, connectionIds: Any, releasedUs: Any) -> None:
        """
        Add packed rows.

        @param isFirst: for each whether a connection begins.
        @param connectionIds: for each its connection.
        @param releasedUs: for each when its connection was released, in the recording.
        """
        count = self._count
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
        self._rows.write(rows.tobytes())
        self._count += len(rows)

    def connections(self) -> Iterator[tuple[int, int, Iterator[tuple[Any, ...]]]]:
        """
        For each connection with requests among the decisions: its number, when it was released after the last of these,
        and its rows up to that one.
        """
        chunkRows = max(min(_MAX_TUPLES // max(len(self._starts), 1), _MAX_TUPLES_OF_ONE), 4)
        for connectionId, releasedUs, start, stop in zip(
            self.connectionIds, self.releasedUs, self._starts, self._stops, strict=True
        ):
            if stop > start:
                yield connectionId, releasedUs, self._tuples(start, stop, chunkRows)

    def close(self) -> None:
        self._rows.close()

    def _tuples(self, start: int, stop: int, chunkRows: int) -> Iterator[tuple[Any, ...]]:
        """
        Iterate over rows, with no more than C{chunkRows} of them as Python objects at a time.
        """
        for begin in range(start, stop, chunkRows):
            self._rows.seek(begin * PACKED.itemsize)
            data = self._rows.read((min(begin + chunkRows, stop) - begin) * PACKED.itemsize)
            yield from np.frombuffer(data, PACKED).tolist()


_ROWS_AT_A_TIME = 16_384

_ROUNDING_US = 1
"""
A recorded moment and a delay are rounded, each for itself: their sum may be this much later than what came then was
recorded.
"""

_COLUMNS = (
    "seq",
    "conn_id",
    "requester",
    "replay_key",
    "at_us",
    "request_bytes",
    "response_bytes",
    "delay_us",
    "held_us",
    "is_refused",
    "is_barred",
    "is_first",
    "is_exhausted",
)


def replayClosedLoop(
    batches: Iterable[pa.RecordBatch], shared: Mapping[TrialKey, Sequence[Together]]
) -> Iterator[pa.RecordBatch]:
    """
    Replay connections under candidates.  The replay ends where the recording does; later requests are not counted.

    @param batches: of L{admission.offline.simulate.arrivals.ARRIVALS} with the column C{component}, grouped by
        C{CLOSED_GROUP} and sorted by C{CLOSED_ORDER} within; of runs that are replayed together as L{onCalendar
        <admission.offline.simulate.together.onCalendar>} makes them.
    @param shared: the trials that the rows of each trial are for.
    @return: of L{admission.offline.simulate.decisions.DECISIONS}, in time order within each component and trial.
    @raise OutOfOrder: if the rows are not sorted this way.
    """
    ordered = Ordered(CLOSED_GROUP, CLOSED_ORDER)
    replays: list[_Replay] = []
    replayed: Sequence[Together] = ()
    component = Component()
    texts = Texts()
    packer = Packer(texts)
    for batch in batches:
        groups = list(ordered.groups(batch))
        if not groups:
            continue
        isStart = np.zeros(batch.num_rows, bool)
        isStart[[start for _, isNew, start, _ in groups if isNew]] = True
        rows, isFirst = packer.pack(batch, isStart)
        connectionIds, releasedUs = numbersOf(batch.column("conn_id")), numbersOf(batch.column("released_us"))
        for (*trialKey, _), isNew, start, stop in groups:
            trials = shared[tuple(trialKey)]
            if isNew:
                for replay in replays:
                    yield from replay.run(component)
                component.close()
                component = Component()
            if trials is not replayed:
                for replay in replays:
                    yield from replay.flush()
                replays, replayed = [_Replay(trial, texts, len(trials)) for trial in trials], trials
            part = slice(start, stop)
            component.add(rows[part], isFirst[part], connectionIds[part], releasedUs[part])
    for replay in replays:
        yield from replay.run(component)
        yield from replay.flush()
    component.close()


class _Connection:
    """
    A connection in one replay.

    @ivar number: of the connection, among those of all runs that are replayed together.
    @ivar server: its run.
    @ivar told: takes what is decided about its requests.
    @ivar lastUs: when it was released after the last of its requests, in the recording.
    @ivar heldUntilUs: until when it is not read.
    @ivar retainedUntilUs: until when other policies hold it, as recorded.
    @ivar debtor: the last request, if what it brought is a debt, which ends when limits say so.
    @ivar waiting: the request that has come, and waits to be read.
    @ivar isFirst: whether none of its requests is among the decisions yet.
    """

    __slots__ = (
        "_rows",
        "debtor",
        "heldUntilUs",
        "isFirst",
        "lastUs",
        "number",
        "retainedUntilUs",
        "server",
        "told",
        "waiting",
    )

    def __init__(
        self, number: int, lastUs: int, rows: Iterator[tuple[Any, ...]], server: Server, told: list[tuple[Any, ...]]
    ) -> None:
        self.number = number
        self.server = server
        self.told = told
        self.lastUs = lastUs
        self.heldUntilUs = self.retainedUntilUs = 0
        self.debtor: Request | None = None
        self.waiting: tuple[Any, ...] | None = None
        self.isFirst = True
        self._rows = rows

    def __lt__(self, other: _Connection) -> bool:
        # Events of two runs may have the same number at the same moment.
        return self.number < other.number

    def awaitReading(self, heap: list[Any], row: tuple[Any, ...]) -> None:
        """
        Let a request that has come wait until the connection is read.
        """
        self.waiting = row
        heappush(heap, (self.heldUntilUs, row[SEQ], self, row, row, True))

    def limitsChanged(self, heap: list[Any], live: LivePolicy, atUs: int) -> None:
        """
        Shorten its delay to what the new limits ask for, as L{RequestDriver.limitsChanged
        <admission.connection.driver.RequestDriver.limitsChanged>} does.
        """
        if self.debtor is None:
            return
        restUs = live.restUs(self.debtor, atUs - self.server.shiftUs)
        untilUs = max(atUs + restUs, self.retainedUntilUs)
        if untilUs < self.heldUntilUs:
            self.heldUntilUs = untilUs
            if self.waiting is not None:
                self.awaitReading(heap, self.waiting)

    def arrive(self, heap: list[Any], atUs: int, row: tuple[Any, ...], nowUs: int) -> None:
        """
        Let a request arrive: plan its decision, and the arrival of the following one, if that does not wait for it.
        The connection is read then, be it a little before its delay was over: what follows must not wait again.

        @param nowUs: it cannot be decided before that.
        """
        self.heldUntilUs = min(self.heldUntilUs, atUs)
        following = next(self._rows, None)
        heappush(heap, (max(atUs + row[WORK], nowUs), row[SEQ], self, row, following, False))
        if following is not None and following[FLAGS] & AHEAD:
            heappush(heap, (atUs + following[WAIT], following[SEQ], self, following, None, True))


class _Replay:
    """
    Replays one candidate, a component at a time.
    """

    def __init__(self, together: Together, texts: Texts, sharing: int = 1) -> None:
        """
        @param sharing: how many replays share this worker, and its memory.
        """
        self._together = together
        self._texts = texts
        self._maxTold = max(_ROWS_AT_A_TIME // (sharing * len(together)), 1024)
        self._told: list[list[tuple[Any, ...]]] = [[] for _ in together]

    def run(self, component: Component) -> Iterator[pa.RecordBatch]:
        """
        Replay a component.

        @return: some decisions; the others come out of L{flush}.
        """
        servers = serversOf(self._together)
        exchange = Exchange(servers)
        count = len(servers)
        # When a limit changes next, or what was taken is told.
        dueUs = inf
        horizonUs, hasSay = max(server.horizonUs for server in servers), self._together[0].hasSay
        requesters, keys = self._texts.requesters, self._texts.keys
        # Requests that arrive or are decided next: when, its number, its connection, its row, and the following one's.
        heap: list[Any] = []
        for connectionId, lastUs, rows in component.connections():
            row = next(rows)
            place = connectionId % count
            connection = _Connection(connectionId, lastUs, rows, servers[place], self._told[place])
            heap.append((row[WAIT], row[SEQ], connection, row, None, True))
        heapify(heap)
        held: dict[_Connection, None] = {}
        while heap:
            atUs, seq, connection, row, following, isArrival = heap[0]
            if atUs > horizonUs:
                break
            server = connection.server
            if dueUs <= atUs:
                changing = min(servers, key=attrgetter("changeUs"))
                live = changing.live
                if live is None or exchange.dueUs < changing.changeUs:
                    exchange.tell()
                    dueUs = min(exchange.dueUs, *(each.changeUs for each in servers))
                    continue
                if changing is not server or live.isChangeDue(atUs - server.shiftUs, seq):
                    changeUs = int(changing.changeUs)
                    live.applyChange()
                    dueUs = min(exchange.dueUs, *(each.changeUs for each in servers))
                    held = {each: None for each in held if each.heldUntilUs > changeUs}
                    for each in held:
                        if each.server is changing:
                            each.limitsChanged(heap, live, changeUs)
                    continue
            heappop(heap)
            if isArrival:
                # What waited was put there again when its connection was released earlier.
                if following is None or connection.waiting is row:
                    connection.waiting = None
                    if connection.heldUntilUs > atUs + _ROUNDING_US:
                        connection.awaitReading(heap, row)
                    else:
                        connection.arrive(heap, atUs, row, atUs)
                continue
            (
                _,
                _,
                _,
                answerUs,
                heldUs,
                longestUs,
                requestBytes,
                responseBytes,
                serviceUs,
                lagUs,
                freeShare,
                requester,
                key,
                flags,
                identityCount,
                refusal,
                _,
                _,
                _,
                _,
            ) = row
            if atUs > server.horizonUs:
                continue
            delayUs, isRefused = 0, False
            if heldUs:
                if following is not None and following[FLAGS] & AHEAD and following[WAIT] >= row[WORK]:
                    # The other policies' delay was shortened, or nothing could have come.
                    heldUs = min(heldUs, following[WAIT] - row[WORK])
                connection.retainedUntilUs = max(connection.retainedUntilUs, atUs + heldUs)
            if flags & ASKED and keys[key] is not None:
                live = server.live
                if live is None:
                    live = server.begin(atUs, seq)
                    dueUs = min(dueUs, server.changeUs)
                kind, principal, clientId, peer, code = requesters[requester]
                traits = traitsOf(code)
                identities = row[IDENTITIES_FROM : IDENTITIES_FROM + identityCount] if identityCount else ()
                usage = NOTHING
                if flags & COUNTED:
                    usage = newUsage((requestBytes, responseBytes, serviceUs / 1e6, int(traits.isConnection)))
                request = newRequest(
                    (kind, principal, clientId, peer, requestBytes, identities, traits, lagUs / 1e6, freeShare)
                )
                delayUs, isRefused = live.answer(
                    atUs - server.shiftUs, seq, request, usage, refusal, bool(flags & KNOWN), serviceUs, answerUs
                )
                if count > 1:
                    exchange.asked(atUs)
                    dueUs = min(dueUs, exchange.dueUs)
                connection.debtor = request if live.isDebt else None
                if hasSay and (isRefused or delayUs > heldUs):
                    heldUs = min(delayUs, longestUs)
            if flags & TOLD:
                # A client that is released earlier than in the recording would have sent a request that the recording
                # lacks.
                releasedUs = atUs + max(answerUs, heldUs)
                endUs = min(connection.lastUs, server.horizonUs)
                isExhausted = following is None and releasedUs < endUs - SLACK_US
                connection.told.append(
                    (
                        seq,
                        connection.number,
                        requester,
                        key,
                        atUs,
                        requestBytes,
                        responseBytes,
                        delayUs,
                        heldUs,
                        isRefused,
                        not flags & ASKED,
                        connection.isFirst,
                        isExhausted,
                    )
                )
                connection.isFirst = False
                if len(connection.told) >= self._maxTold:
                    yield from self.flush()
            earliestUs = connection.heldUntilUs
            if heldUs:
                connection.heldUntilUs = max(earliestUs, atUs + heldUs)
                held[connection] = None
            if following is not None and not following[FLAGS] & AHEAD:
                nextUs = atUs + max(answerUs, heldUs) + following[WAIT]
                connection.arrive(heap, max(nextUs, earliestUs), following, atUs)
        for server in servers:
            if server.live is not None:
                server.live.finish()

    def flush(self) -> Iterator[pa.RecordBatch]:
        for server, told in zip(serversOf(self._together), self._told, strict=True):
            if told:
                yield self._flushed(server, told)

    def _flushed(self, server: Server, told: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns: dict[str, Any] = dict(zip(_COLUMNS, zip(*told, strict=True), strict=True))
        told.clear()
        atUs = np.array(columns["at_us"], np.int64) - server.shiftUs
        kinds, principals, clientIds, _, _ = zip(*self._texts.requesters, strict=True)
        requesters = pa.array(columns["requester"])
        return decisionBatch(
            server.trial,
            CLOSED,
            {
                **columns,
                "conn_id": np.array(columns["conn_id"], np.int64) // len(self._together),
                "at_us": atUs,
                "replay_key": pa.array(self._texts.keys, pa.string()).take(pa.array(columns["replay_key"])),
                "kind": pa.array(kinds).take(requesters),
                "principal": pa.array(principals).take(requesters),
                "client_id": pa.array(clientIds).take(requesters),
                "is_poisoned": isAfterGap(server.trial, columns["seq"], atUs.tolist(), None),
            },
        )
