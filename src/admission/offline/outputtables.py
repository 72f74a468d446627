# -*- test-case-name: tests.spark.test_jobs -*-
"""
The results of the offline jobs, by name.

Each is C{OUT/NAME.parquet} and C{OUT/NAME.csv}, as L{admission.offline.outputs.writeResult} writes them;
C{OUT/evaluation.json} describes their origin, see L{admission.offline.evaluation}.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

AGGREGATE = "aggregate"
AUDIT = "audit"
REPLAY = "replay"


@frozen
class OutputTable:
    """
    A result.

    @ivar name: the name of its files.
    @ivar job: the job that makes it.
    @ivar words: what a row is.
    @ivar columns: where its columns are documented.
    """

    name: str
    job: str
    words: str
    columns: str


OUTPUTS: Sequence[OutputTable] = (
    OutputTable("client_minute", AGGREGATE, "a client in a minute", "aggregate.clientMinutes"),
    OutputTable("top_clients", AGGREGATE, "one of the largest clients by a measure", "aggregate.topClients"),
    OutputTable("throttle_minute", AGGREGATE, "delays of one length in a minute", "aggregate.throttleMinutes"),
    OutputTable("throttle_hist", AGGREGATE, "delays of one length in all", "aggregate.throttleHistogram"),
    OutputTable("fairness_minute", AGGREGATE, "a minute, and how evenly it was shared", "aggregate.fairnessMinutes"),
    OutputTable("starved_minute", AGGREGATE, "a client that got nothing in a minute", "aggregate.starvedMinutes"),
    OutputTable("pool_minute", AGGREGATE, "the memory pool in a minute", "aggregate.poolMinutes"),
    OutputTable("pool_time", AGGREGATE, "the memory pool in a step of time", "aggregate.poolTimes"),
    OutputTable("broken_rows", AUDIT, "a rule, and how many rows break it", "clean.brokenRows"),
    OutputTable("bloom_audit", AUDIT, "a principal in a window of the filter", "bloomaudit.bloomAudit"),
    OutputTable("quota_span", AUDIT, "a meter in ten seconds", "quotaaudit.quotaSpans"),
    OutputTable("quota_summary", AUDIT, "a meter in all", "quotaaudit.quotaSummary"),
    OutputTable("ledger_sample", AUDIT, "a sample of the process's memory", "ledgeraudit.ledgerAudit"),
    OutputTable("ledger_summary", AUDIT, "a run of a server", "ledgeraudit.ledgerSummary"),
    OutputTable("replay_summary", REPLAY, "a candidate in a mode", "simulate.totals.TOTAL_COLUMNS"),
    OutputTable("replay_client", REPLAY, "the same for one client", "simulate.totals.TOTAL_COLUMNS"),
    OutputTable("replay_time", REPLAY, "the same for one client in a step of time", "simulate.totals.TIMES"),
    OutputTable("replay_fairness", REPLAY, "a candidate in a run and step of time", "simulate.fairness.fairnessOf"),
    OutputTable("replay_delay_hist", REPLAY, "a length of time throttled, by a candidate", "simulate.tally.HISTOGRAM"),
    OutputTable("replay_fidelity", REPLAY, "a policy in force, replayed", "simulate.identity.FIDELITIES"),
    OutputTable("replay_pool", REPLAY, "a pool in a run of a server", "simulate.pool.TOTALS"),
    OutputTable("replay_pool_time", REPLAY, "the same for one step of time", "simulate.pool.STEPS"),
    OutputTable("replay_pool_client", REPLAY, "the same for one client", "simulate.pool.CLIENTS"),
)


def namesOf(job: str) -> list[str]:
    return [table.name for table in OUTPUTS if table.job == job]
