# -*- test-case-name: tests.offline.simulate.test_openloop -*-
"""
The outcome of each request in a replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from .trials import Trial

OPEN = "open"
"""The mode in which requests arrive when they were recorded."""

CLOSED = "closed"
"""The mode in which a client's next request follows the answer after the recorded think time."""

NOBODY = "ANONYMOUS"
"""The principal of connections on which nobody has logged in."""

LOGIN_KINDS = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
"""The kinds of requests that come before a login.  Of these and of the connection itself nobody is the client."""

_NEVER_US = 2**62

DECISIONS = pa.schema(
    [
        ("candidate", pa.string()),
        ("mode", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("replay_key", pa.string()),
        ("seq", pa.int64()),
        ("conn_id", pa.int64()),
        ("principal", pa.string()),
        ("client_id", pa.string()),
        ("kind", pa.string()),
        # When it was decided; in a closed loop this differs from the recorded time.
        ("at_us", pa.int64()),
        ("wall_us", pa.int64()),
        ("request_bytes", pa.int64()),
        ("response_bytes", pa.int64()),
        # The candidate's delay, and the delay imposed together with the retained policies.
        ("delay_us", pa.int64()),
        ("held_us", pa.int64()),
        # Refused by the candidate, or by another policy, so that the candidate was not asked.
        ("is_refused", pa.bool_()),
        ("is_barred", pa.bool_()),
        # Missing events may have mattered to this one.
        ("is_poisoned", pa.bool_()),
        # Closed loop: the first request of a connection, and the last one of an exhausted connection.
        ("is_first", pa.bool_()),
        ("is_exhausted", pa.bool_()),
    ]
)
"""A row for each request that the policies were asked about."""


def decisionBatch(trial: Trial, mode: str, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """
    Decisions of one trial.

    @param columns: arrays for L{DECISIONS}, except those that the trial determines.
    """
    run, size = trial.run, len(columns["seq"])
    atUs = np.asarray(columns["at_us"], np.int64)
    constants = {"candidate": trial.candidate.label, "mode": mode, "broker_id": run.brokerId, "boot_id": run.bootId}
    arrays = []
    for field in DECISIONS:
        if field.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[field.name], pa.string()), size))
        elif field.name == "wall_us":
            arrays.append(pa.array(atUs + run.wallOffsetUs))
        else:
            values = columns[field.name]
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.record_batch(arrays, DECISIONS)


def isAfterGap(trial: Trial, seqs: Sequence[int], atUs: Sequence[int], horizonSeconds: float | None) -> Any:
    """
    Which requests come after missing events.

    @param horizonSeconds: for how long a gap matters; L{None} for ever.
    """
    gaps = trial.run.gaps
    elsewhereUs = trial.gapElsewhereUs
    isAfterElsewhere = np.asarray(atUs) >= (_NEVER_US if elsewhereUs is None else elsewhereUs)
    if not gaps:
        return isAfterElsewhere
    before = np.searchsorted(np.array([gap.seq for gap in gaps]), np.asarray(seqs), side="right")
    isAfter = before > 0
    if horizonSeconds is not None:
        since = np.array([gap.atUs for gap in gaps])[np.maximum(before - 1, 0)]
        isAfter &= np.asarray(atUs) - since < horizonSeconds * 1e6
    return isAfter | isAfterElsewhere
