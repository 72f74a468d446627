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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from admission.interfaces import NOTHING, Request, traitsOf

from .arrivals import CLOSED_GROUP, CLOSED_ORDER
from .component import (
    AHEAD,
    ASKED,
    COUNTED,
    FLAGS,
    IDENTITIES_FROM,
    KNOWN,
    SEQ,
    SLACK_US,
    TOLD,
    WAIT,
    WORK,
    Component,
    Packer,
    Texts,
)
from .decisions import CLOSED, decisionBatch, isAfterGap
from .live import LivePolicy, newRequest, newUsage
from .ordered import Ordered, numbersOf
from .trials import Trial, TrialKey

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
    batches: Iterable[pa.RecordBatch], shared: Mapping[TrialKey, Sequence[Trial]]
) -> Iterator[pa.RecordBatch]:
    """
    Replay connections under candidates.  The replay ends where the recording does; later requests are not counted.

    @param batches: of L{admission.offline.simulate.arrivals.ARRIVALS} with the column C{component}, grouped by
        C{CLOSED_GROUP} and sorted by C{CLOSED_ORDER} within.
    @param shared: the trials that the rows of each trial are for.
    @return: of L{admission.offline.simulate.decisions.DECISIONS}, in time order within each component and trial.
    @raise OutOfOrder: if the rows are not sorted this way.
    """
    ordered = Ordered(CLOSED_GROUP, CLOSED_ORDER)
    replays: list[_Replay] = []
    replayed: Sequence[Trial] = ()
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

    @ivar number: of the connection.
    @ivar lastUs: when it was released after the last of its requests, in the recording.
    @ivar heldUntilUs: until when it is not read.
    @ivar retainedUntilUs: until when other policies hold it, as recorded.
    @ivar debtor: the last request, if what it brought is a debt, which ends when limits say so.
    @ivar waiting: the request that has come, and waits to be read.
    @ivar isFirst: whether none of its requests is among the decisions yet.
    """

    __slots__ = ("_rows", "debtor", "heldUntilUs", "isFirst", "lastUs", "number", "retainedUntilUs", "waiting")

    def __init__(self, number: int, lastUs: int, rows: Iterator[tuple[Any, ...]]) -> None:
        self.number = number
        self.lastUs = lastUs
        self.heldUntilUs = self.retainedUntilUs = 0
        self.debtor: Request | None = None
        self.waiting: tuple[Any, ...] | None = None
        self.isFirst = True
        self._rows = rows

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
        untilUs = max(atUs + live.restUs(self.debtor, atUs), self.retainedUntilUs)
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
    Replays one trial, a component at a time.
    """

    def __init__(self, trial: Trial, texts: Texts, sharing: int = 1) -> None:
        """
        @param sharing: how many replays share this worker, and its memory.
        """
        self._trial = trial
        self._texts = texts
        self._maxTold = max(_ROWS_AT_A_TIME // sharing, 1024)
        self._told: list[tuple[Any, ...]] = []

    def run(self, component: Component) -> Iterator[pa.RecordBatch]:
        """
        Replay a component.

        @return: some decisions; the others come out of L{flush}.
        """
        trial = self._trial
        horizonUs, hasSay = trial.run.horizonUs, trial.hasSay
        requesters, keys = self._texts.requesters, self._texts.keys
        told = self._told
        live: LivePolicy | None = None
        # Requests that arrive or are decided next: when, its number, its connection, its row, and the following one's.
        heap: list[Any] = []
        for connectionId, lastUs, rows in component.connections():
            row = next(rows)
            heap.append((row[WAIT], row[SEQ], _Connection(connectionId, lastUs, rows), row, None, True))
        heapify(heap)
        held: dict[_Connection, None] = {}
        while heap:
            atUs, seq, connection, row, following, isArrival = heap[0]
            if atUs > horizonUs:
                break
            if live is not None and live.changeUs <= atUs and live.isChangeDue(atUs, seq):
                changeUs = int(live.changeUs)
                live.applyChange()
                held = {each: None for each in held if each.heldUntilUs > changeUs}
                for each in held:
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
            delayUs, isRefused = 0, False
            if heldUs:
                if following is not None and following[FLAGS] & AHEAD and following[WAIT] >= row[WORK]:
                    # The other policies' delay was shortened, or nothing could have come.
                    heldUs = min(heldUs, following[WAIT] - row[WORK])
                connection.retainedUntilUs = max(connection.retainedUntilUs, atUs + heldUs)
            if flags & ASKED and keys[key] is not None:
                if live is None:
                    live = trial.begin(atUs)
                kind, principal, clientId, peer, code = requesters[requester]
                traits = traitsOf(code)
                identities = row[IDENTITIES_FROM : IDENTITIES_FROM + identityCount] if identityCount else ()
                usage = NOTHING
                if flags & COUNTED:
                    usage = newUsage((requestBytes, responseBytes, serviceUs / 1e6, int(traits.isConnection)))
                request = newRequest((kind, principal, clientId, peer, requestBytes, identities, traits))
                delayUs, isRefused = live.answer(
                    atUs, seq, request, usage, refusal, bool(flags & KNOWN), serviceUs, answerUs
                )
                connection.debtor = request if live.isDebt else None
                if hasSay and (isRefused or delayUs > heldUs):
                    heldUs = min(delayUs, longestUs)
            if flags & TOLD:
                # A client that is released earlier than in the recording would have sent a request that the recording
                # lacks.
                releasedUs = atUs + max(answerUs, heldUs)
                isExhausted = following is None and releasedUs < min(connection.lastUs, horizonUs) - SLACK_US
                told.append(
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
                if len(told) >= self._maxTold:
                    yield from self.flush()
            earliestUs = connection.heldUntilUs
            if heldUs:
                connection.heldUntilUs = max(earliestUs, atUs + heldUs)
                held[connection] = None
            if following is not None and not following[FLAGS] & AHEAD:
                nextUs = atUs + max(answerUs, heldUs) + following[WAIT]
                connection.arrive(heap, max(nextUs, earliestUs), following, atUs)
        if live is not None:
            live.finish()

    def flush(self) -> Iterator[pa.RecordBatch]:
        if not self._told:
            return
        columns = dict(zip(_COLUMNS, zip(*self._told, strict=True), strict=True))
        self._told.clear()
        kinds, principals, clientIds, _, _ = zip(*self._texts.requesters, strict=True)
        requesters = pa.array(columns["requester"])
        yield decisionBatch(
            self._trial,
            CLOSED,
            {
                **columns,
                "replay_key": pa.array(self._texts.keys, pa.string()).take(pa.array(columns["replay_key"])),
                "kind": pa.array(kinds).take(requesters),
                "principal": pa.array(principals).take(requesters),
                "client_id": pa.array(clientIds).take(requesters),
                "is_poisoned": isAfterGap(self._trial, columns["seq"], columns["at_us"], None),
            },
        )
