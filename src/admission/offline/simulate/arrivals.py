# -*- test-case-name: tests.offline.simulate.test_arrivals -*-
"""
Requests as a replay sees them: what was asked of the server, without the effects of the policy that is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc

from admission.interfaces import Refusal
from admission.recording.events import EXPIRE, REJECT

from .decisions import CLOSED, decisionBatch
from .keys import KeyFinder
from .live import REFUSALS, REQUESTER, requesterOf
from .ordered import codesOf, distinctRows, numbersOf
from .trials import Trial, TrialKey

REFUSABLE = ("Produce", "Fetch", "InitProducerId")
"""The kinds of requests that Kafka's protocol can refuse, for recordings that do not say."""

COLUMNS: Sequence[str] = (
    "broker_id",
    "boot_id",
    "seq",
    "mono_us",
    "conn_id",
    "peer",
    "principal",
    "client_id",
    "kind",
    "traits",
    "request_bytes",
    "response_bytes",
    "producer_ids",
    "bloom_seen",
    "decision",
    "policy",
    "policy_delays_us",
    "decided_mono_us",
    "is_counted",
    "throttle_ms",
    "service_us",
    "sent_mono_us",
    "refusal",
    "pool_used_bytes",
    "pool_available_bytes",
    "lag_us",
    "begun_us",
)
"""The columns of the requests table that a replay needs."""

PARKED_COLUMN = "purgatory_wait_us"
"""Needed besides for candidates that follow requests."""

ARRIVALS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("replay_key", pa.string()),
        ("seq", pa.int64()),
        ("conn_id", pa.int64()),
        # When the policy is asked: at the request's decision, or when its work began if the candidate follows requests.
        ("at_us", pa.int64()),
        ("kind", pa.string()),
        ("principal", pa.string()),
        ("client_id", pa.string()),
        ("peer", pa.string()),
        ("traits", pa.int8()),
        ("request_bytes", pa.int64()),
        ("response_bytes", pa.int64()),
        ("service_us", pa.int64()),
        ("producer_ids", pa.list_(pa.int64())),
        # Whether the first of them was known to the server.
        ("is_known", pa.bool_()),
        ("is_counted", pa.bool_()),
        ("refusal", pa.int8()),
        # How the server was when it arrived: of older recordings, on time.
        ("lag_us", pa.int64()),
        ("pool_free_share", pa.float64()),
        ("is_asked", pa.bool_()),
        # The delays and refusals of the retained policies.
        ("is_barred", pa.bool_()),
        ("retained_us", pa.int64()),
        # The longest delay that the server imposed here: less than its policies asked for.
        ("longest_us", pa.int64()),
        # For the client's think time only; nothing else reads these, except at the end of a request that is followed.
        ("arrived_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("released_us", pa.int64()),
    ]
)
"""
The input of a candidate, a row for each request and candidate, without delays and decisions of the replaced policy.

C{refusal} is an index into L{admission.offline.simulate.live.REFUSALS}.  All rows of a connection are there,
C{is_asked} or not, since each takes its time.  Without a C{replay_key} the candidate ignores the request.
"""

OPEN_GROUP = ("candidate", "broker_id", "boot_id", "replay_key")
"""The columns that group rows for an open-loop replay."""

OPEN_ORDER = ("at_us", "seq", "conn_id")
"""The order of rows within such a group; of two runs that are replayed together, events may have the same number."""

CLOSED_GROUP = ("candidate", "broker_id", "boot_id", "component")
"""The columns that group rows for a closed-loop replay."""

CLOSED_ORDER = ("conn_id", "arrived_us", "seq")
"""The order of rows within such a group."""


_NUMBERS: Mapping[str | None, int] = {each.value: number for number, each in enumerate(REFUSALS)}
_ERROR, _NEVER = REFUSALS.index(Refusal.ERROR), REFUSALS.index(Refusal.NEVER)
_FOREVER_US = 2**62


def columnsFor(trials: Iterable[Trial]) -> Sequence[str]:
    """
    The columns of the requests table that these trials need.
    """
    return [*COLUMNS, PARKED_COLUMN] if any(trial.isFollowing for trial in trials) else COLUMNS


def makeArrivals(batches: Iterable[pa.RecordBatch], trials: Mapping[TrialKey, Trial]) -> Iterator[pa.RecordBatch]:
    """
    Make the arrivals of each candidate from requests.

    @param batches: of L{columnsFor} these trials, in any order.
    @return: of L{ARRIVALS}.
    """
    byRun: dict[tuple[str, ...], list[tuple[Trial, KeyFinder]]] = {}
    for trial in trials.values():
        byRun.setdefault(trial.key[1:], []).append((trial, KeyFinder(trial)))
    for batch in batches:
        runs, rows = distinctRows([batch.column("broker_id"), batch.column("boot_id")])
        for index, each in enumerate(runs):
            if each in byRun:
                requests = _Requests(batch.filter(pa.array(rows == index)))
                for trial, finder in byRun[each]:
                    yield requests.arrivalsFor(trial, finder)


def recordedDecisions(
    batches: Iterable[pa.RecordBatch], baseline: Mapping[tuple[str, str], Trial]
) -> Iterator[pa.RecordBatch]:
    """
    What was recorded, in the form of a candidate's decisions.

    @param batches: of L{COLUMNS}, in any order.
    @param baseline: as L{planBaseline <admission.offline.simulate.trials.planBaseline>} makes it.
    @return: of L{DECISIONS <admission.offline.simulate.decisions.DECISIONS>}, closed loop.
    """
    for batch in batches:
        runs, rows = distinctRows([batch.column("broker_id"), batch.column("boot_id")])
        for index, run in enumerate(runs):
            if run in baseline:
                yield _Requests(batch.filter(pa.array(rows == index))).decisions(baseline[run])


class _Requests:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._requesters, self._rows = distinctRows([batch.column(name) for name in REQUESTER])
        self._arrivedUs = numbersOf(batch.column("mono_us"))
        self._isDecided = batch.column("decided_mono_us").is_valid().to_numpy(zero_copy_only=False)
        self._atUs = np.where(self._isDecided, numbersOf(batch.column("decided_mono_us")), self._arrivedUs)
        self._sentUs = np.maximum(numbersOf(batch.column("sent_mono_us")), self._atUs)
        # The policies were asked about a request and not charged for it afterwards: one of them refused it.
        self._isRefused = self._isDecided & ~numbersOf(batch.column("is_counted").is_valid())
        self._toldUs = numbersOf(batch.column("throttle_ms")) * 1000
        self._delaysUs, self._counts = _matrix(batch.column("policy_delays_us"))
        self._refusals = self._findRefusals()

    def arrivalsFor(self, trial: Trial, finder: KeyFinder) -> pa.RecordBatch:
        batch, run = self._batch, trial.run
        size = batch.num_rows
        atUs = self._begunUs() if trial.isFollowing else self._atUs
        replaced = [run.policyNames[index] for index in trial.replaced] if trial.hasSay else []
        isOwn = pc.is_in(batch.column("policy").cast(pa.string()), value_set=pa.array(replaced, pa.string()))
        isBarred = self._isRefused & ~numbersOf(isOwn)
        heldUs, longestUs = self._imposed(trial)
        retainedUs = np.minimum(self._strictest(trial.retained), longestUs)
        isAsked = self._isDecided if trial.isRecorded else self._isDecided | self._wouldBeAsked(trial)
        isAsked = isAsked & ~isBarred
        columns = {
            "candidate": _repeated(trial.candidate.label, size),
            "replay_key": self._keys(finder, atUs),
            "at_us": atUs,
            "is_known": batch.column("bloom_seen").fill_null(False),
            "is_counted": batch.column("is_counted").fill_null(True),
            "refusal": self._refusals,
            "lag_us": batch.column("lag_us").fill_null(0),
            "pool_free_share": self._poolFreeShares(),
            "is_asked": isAsked,
            "is_barred": isBarred,
            "retained_us": np.where(isAsked, retainedUs, heldUs),
            "longest_us": longestUs,
            "arrived_us": self._arrivedUs,
            "sent_us": self._sentUs,
            "released_us": np.maximum(self._sentUs, atUs + heldUs),
        }
        for name in ("traits", "request_bytes", "response_bytes", "service_us"):
            columns[name] = numbersOf(batch.column(name))
        for name in ("kind", "principal", "client_id", "peer"):
            columns[name] = batch.column(name).cast(pa.string()).fill_null("")
        arrays = [columns[name] if name in columns else batch.column(name) for name in ARRIVALS.names]
        return pa.record_batch(
            [_asType(each, type) for each, type in zip(arrays, ARRIVALS.types, strict=True)], ARRIVALS
        )

    def decisions(self, baseline: Trial) -> pa.RecordBatch:
        """
        What was recorded, as decisions.
        """
        delayUs, _ = self._imposed(baseline)
        nowhere = np.zeros(self._batch.num_rows, bool)
        columns = {
            **{name: self._batch.column(name) for name in ("seq", "conn_id", "request_bytes", "response_bytes")},
            **{name: self._batch.column(name).cast(pa.string()) for name in ("principal", "client_id", "kind")},
            "replay_key": pa.nulls(self._batch.num_rows, pa.string()),
            "at_us": self._atUs,
            "delay_us": delayUs,
            "held_us": delayUs,
            "is_refused": self._isRefused,
            **dict.fromkeys(("is_barred", "is_poisoned", "is_first", "is_exhausted"), nowhere),
        }
        return decisionBatch(baseline, CLOSED, columns).filter(pa.array(self._isDecided))

    def _imposed(self, trial: Trial) -> tuple[Any, Any]:
        """
        The delays that the server imposed, and the longest that it would have.
        """
        # Many policies have no complete record of their delays.
        isPartial = self._counts < max(len(trial.run.policyNames), 1)
        askedUs = self._strictest(trial.decisive)
        # A client that is not refused by an error may be in a group: a server may impose less than its policies ask
        # for.
        isMilder = (self._refusals != _ERROR) & (self._toldUs < askedUs)
        longestUs = np.where(isMilder, self._toldUs, _FOREVER_US)
        return np.where(isPartial, self._toldUs, np.minimum(askedUs, longestUs)), longestUs

    def _isDecision(self, decision: str) -> Any:
        return numbersOf(pc.equal(self._batch.column("decision").cast(pa.string()), decision))

    def _findRefusals(self) -> Any:
        """
        How each request could be refused: as recorded, otherwise by its kind (no policy was asked, or an older
        recording).
        """
        ofKinds = [_ERROR if kind in REFUSABLE else _NEVER for kind, *_ in self._requesters]
        refusals = np.array(ofKinds, np.int8)[self._rows]
        column = self._batch.column("refusal")
        if column.null_count == len(column):
            return refusals
        codes, names = codesOf(column)
        # The last entry is for null, which has the code -1.
        recorded = np.array([_NUMBERS.get(name, -1) for name in [*names, None]], np.int8)[codes]
        return np.where(recorded < 0, refusals, recorded)

    def _wouldBeAsked(self, trial: Trial) -> Any:
        """
        Which requests no policy was asked about because there were no limits.
        """
        moments = np.array(trial.unlimited(), np.int64)
        isUnlimited = np.searchsorted(moments, self._arrivedUs, side="right") % 2 == 1
        isServed = numbersOf(self._batch.column("kind").is_valid())
        isServed &= ~(self._isDecision(EXPIRE) | self._isDecision(REJECT))
        return isUnlimited & isServed

    def _strictest(self, policies: Sequence[int]) -> Any:
        known = [index for index in policies if index < self._delaysUs.shape[1]]
        return self._delaysUs[:, known].max(axis=1, initial=0)

    def _begunUs(self) -> Any:
        """
        When the work on each request began.  A refused one was decided at once, and worked on only to be answered.  If
        it was not recorded: its decision less its service time, and less the time it was parked before it.
        """
        serviceUs, parkedUs = (numbersOf(self._batch.column(name)) for name in ("service_us", PARKED_COLUMN))
        # It is parked once: before the decision, unless there was time for all of it afterwards, give or take what is
        # rounded.
        parkedBeforeUs = np.where(parkedUs > self._sentUs - self._atUs + 1, parkedUs, 0)
        begunUs = np.maximum(self._atUs - serviceUs - parkedBeforeUs, self._arrivedUs)
        afterUs = self._batch.column("begun_us")
        begunUs = np.where(afterUs.is_valid(), self._arrivedUs + numbersOf(afterUs), begunUs)
        return np.where(self._isRefused, self._atUs, begunUs)

    def _poolFreeShares(self) -> Any:
        usedBytes, availableBytes = (
            numbersOf(self._batch.column(name)) for name in ("pool_used_bytes", "pool_available_bytes")
        )
        sizeBytes = usedBytes + availableBytes
        return np.where(sizeBytes > 0, availableBytes / np.maximum(sizeBytes, 1), 1.0)

    def _keys(self, finder: KeyFinder, atUs: Any) -> pa.Array:
        eras = finder.eras(atUs)
        places = eras * len(self._requesters) + self._rows
        found, rows = np.unique(places, return_inverse=True)
        wanted = []
        for place in found.tolist():
            era, requester = divmod(place, len(self._requesters))
            wanted.append((era, requesterOf(self._requesters[requester])))
        return pa.array(finder.find(wanted), pa.string()).take(pa.array(rows))


def _matrix(lists: pa.Array) -> tuple[Any, Any]:
    """
    Lists as the rows of a matrix, padded with zeros, and their lengths.
    """
    counts = numbersOf(pc.list_value_length(lists)).astype(np.int64)
    matrix = np.zeros((len(lists), int(counts.max(initial=0))), np.int64)
    matrix[np.arange(matrix.shape[1]) < counts[:, None]] = numbersOf(lists.flatten())
    return matrix, counts


def _repeated(text: str, size: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), size)


def _asType(values: Any, type: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(type)
    return pa.array(values, type)
