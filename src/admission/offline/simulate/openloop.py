# -*- test-case-name: tests.offline.simulate.test_openloop -*-
"""
The same offered arrivals: the candidate is asked about every request when the recorded policies were, with the usage
recorded then.

Throttled clients send less, so for them this is no forecast: it may be wrong by orders of magnitude, see
L{admission.offline.simulate.closedloop}.  It is the candidate's decisions about exactly these requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from admission.interfaces import NOTHING, traitsOf

from .arrivals import OPEN_GROUP, OPEN_ORDER
from .decisions import OPEN, decisionBatch, isAfterGap
from .live import ADMITTED_AT_ONCE, newRequest, newUsage
from .ordered import Ordered, distinctRows, listsOf, numbersOf, textsOf
from .together import Exchange, Together, apart, serversOf
from .trials import Trial, TrialKey

_KEPT = ("replay_key", "seq", "conn_id", "principal", "client_id", "kind", "at_us", "request_bytes", "response_bytes")


def replayOpenLoop(
    batches: Iterable[pa.RecordBatch], shared: Mapping[TrialKey, Sequence[Together]]
) -> Iterator[pa.RecordBatch]:
    """
    Replay arrivals under candidates.

    @param batches: of L{admission.offline.simulate.arrivals.ARRIVALS}, grouped by C{OPEN_GROUP} and sorted by
        C{OPEN_ORDER} within.  Rows without a key, and rows that the candidate is not asked about, may be anywhere.
        Rows of runs that are replayed together are as L{onCalendar <admission.offline.simulate.together.onCalendar>}
        makes them.
    @param shared: the trials that the rows of each trial are for.
    @return: of L{admission.offline.simulate.decisions.DECISIONS}.
    @raise OutOfOrder: if the rows are not sorted this way.
    """
    ordered = Ordered(OPEN_GROUP, OPEN_ORDER)
    isFollowed = any(trial.isFollowing for trials in shared.values() for each in trials for trial in each)
    replays: list[_Replay] = []
    for batch in batches:
        isNoticed = numbersOf(batch.column("is_asked")) & numbersOf(batch.column("replay_key").is_valid())
        isTold = numbersOf(batch.column("is_asked")) | numbersOf(batch.column("is_barred"))
        yield from _unaffected(batch.filter(pa.array(isTold & ~isNoticed)), shared)
        noticed = batch.filter(pa.array(isNoticed))
        columns = _told(noticed, isFollowed)
        answers: list[list[tuple[int, bool]]] = []
        begun = 0
        trials: Sequence[Together] = ()
        for (*trialKey, _), isNew, start, stop in ordered.groups(noticed):
            ofGroup = shared[tuple(trialKey)]
            if ofGroup is not trials:
                yield from _decided(trials, noticed.slice(begun, start - begun), answers)
                trials, answers, begun = ofGroup, [[] for _ in ofGroup], start
            if isNew:
                _finish(replays)
                replays = [_Replay(each) for each in trials]
            told = [column[start:stop] for column in columns]
            for replay, said in zip(replays, answers, strict=True):
                said += replay.answers(told)
        yield from _decided(trials, noticed.slice(begun), answers)
    _finish(replays)


class _Replay:
    """
    Replays one candidate for one key.
    """

    def __init__(self, together: Together) -> None:
        self._servers = serversOf(together)
        self._exchange = Exchange(self._servers)

    def answers(self, told: list[list[Any]]) -> Iterator[tuple[int, bool]]:
        """
        @param told: connections, moments, and the other arguments of L{LivePolicy.answer
            <admission.offline.simulate.live.LivePolicy.answer>}.
        """
        if len(self._servers) > 1:
            return map(self._answer, *told)
        server, (_, atUs, seqs, *_) = self._servers[0], told
        live = server.live or server.begin(atUs[0], seqs[0])
        return map(live.answer, *told[1:])

    def _answer(self, connectionId: int, atUs: int, seq: int, *told: Any) -> tuple[int, bool]:
        exchange = self._exchange
        while exchange.dueUs <= atUs:
            exchange.tell()
        exchange.asked(atUs)
        server = self._servers[connectionId % len(self._servers)]
        live = server.live or server.begin(atUs, seq)
        return live.answer(atUs - server.shiftUs, seq, *told)

    def finish(self) -> None:
        for server in self._servers:
            if server.live is not None:
                server.live.finish()


def _finish(replays: Iterable[_Replay]) -> None:
    for replay in replays:
        replay.finish()


def _told(batch: pa.RecordBatch, isFollowed: bool) -> list[list[Any]]:
    """
    The connections, and the values of each argument of L{LivePolicy.answer
    <admission.offline.simulate.live.LivePolicy.answer>}, which all candidates share.

    @param isFollowed: whether any candidate follows requests and so has to know when their answers are sent.
    """
    atUs, requestBytes, responseBytes, serviceUs = (
        numbersOf(batch.column(name)) for name in ("at_us", "request_bytes", "response_bytes", "service_us")
    )
    kinds, principals, clientIds, peers = (
        textsOf(batch.column(name)) for name in ("kind", "principal", "client_id", "peer")
    )
    sizes = requestBytes.tolist()
    traits = list(map(traitsOf, numbersOf(batch.column("traits")).tolist()))
    identities = listsOf(batch.column("producer_ids"))
    lags = (numbersOf(batch.column("lag_us")) / 1e6).tolist()
    free = numbersOf(batch.column("pool_free_share")).tolist()
    named = zip(kinds, principals, clientIds, peers, sizes, identities, traits, lags, free, strict=True)
    used = zip(
        sizes,
        responseBytes.tolist(),
        (serviceUs / 1e6).tolist(),
        [int(each.isConnection) for each in traits],
        strict=True,
    )
    usages = list(map(newUsage, used))
    for index in np.flatnonzero(~numbersOf(batch.column("is_counted"))).tolist():
        usages[index] = NOTHING
    seqs, refusals, isKnown = (numbersOf(batch.column(name)).tolist() for name in ("seq", "refusal", "is_known"))
    connectionIds = numbersOf(batch.column("conn_id")).tolist()
    told = [connectionIds, atUs.tolist(), seqs, list(map(newRequest, named)), usages, refusals, isKnown]
    if isFollowed:
        told += [serviceUs.tolist(), (numbersOf(batch.column("sent_us")) - atUs).tolist()]
    return told


def _unaffected(rows: pa.RecordBatch, shared: Mapping[TrialKey, Sequence[Together]]) -> Iterator[pa.RecordBatch]:
    """
    The decisions about rows that the candidate is not asked about, or ignores; these need no order.
    """
    if not rows.num_rows:
        return
    found, places = distinctRows([rows.column(name) for name in OPEN_GROUP[:3]])
    for index, trialKey in enumerate(found):
        here = rows.filter(pa.array(places == index))
        trials = shared[trialKey]
        yield from _decided(trials, here, [[ADMITTED_AT_ONCE] * here.num_rows] * len(trials))


def _decided(
    trials: Sequence[Together], rows: pa.RecordBatch, answers: Sequence[Sequence[tuple[int, bool]]]
) -> Iterator[pa.RecordBatch]:
    for together, said in zip(trials, answers, strict=True):
        delaysUs = np.array([delayUs for delayUs, _ in said], np.int64)
        isRefused = np.array([refused for _, refused in said], bool)
        for trial, isHere, own in apart(rows, together):
            yield _decisions(trial, own, delaysUs[isHere], isRefused[isHere])


def _decisions(trial: Trial, rows: pa.RecordBatch, delaysUs: Any, isRefused: Any) -> pa.RecordBatch:
    isBarred = numbersOf(rows.column("is_barred"))
    heldUs = numbersOf(rows.column("retained_us"))
    if trial.hasSay:
        heldUs = np.where(isRefused, delaysUs, np.maximum(delaysUs, heldUs))
    nowhere = np.zeros(rows.num_rows, bool)
    columns = {name: rows.column(name) for name in _KEPT}
    seqs, atUs = numbersOf(rows.column("seq")), numbersOf(rows.column("at_us"))
    return decisionBatch(
        trial,
        OPEN,
        {
            **columns,
            "delay_us": delaysUs,
            "held_us": heldUs,
            "is_refused": isRefused,
            "is_barred": isBarred,
            "is_poisoned": isAfterGap(trial, seqs, atUs, trial.horizonSeconds),
            "is_first": nowhere,
            "is_exhausted": nowhere,
        },
    )
