"""
A user who brings along a new producer id with every batch, beside one who does not: what becomes of the other's
latency, and of the memory for producers and for the filter that knows their ids.

    python -m benchmarks.rogue [--ids 10000000] [--json] [--quick]

Three rogues, whose ids are all new:
  - C{waits} sends each in a request of its own, on connections that stay, as clients do;
  - C{reconnects} takes another connection and logs in for every request, since one that is refused is not read for a
    while, and puts many ids into one: the cheapest way to send so many;
  - C{unlimited} does the same where the limit is so high that all are let in, and only the caps are left.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from attrs import frozen

from admission.kafka.broker.log.producers import REMEMBERED_BATCHES, ProducerStates
from admission_plugins.producerids import MAX_BYTES

from .load import PATIENCE_SECONDS, Loader
from .measure import Report, inTurns, median, progress, ratio
from .rogueload import (
    IDS_EACH,
    IDS_PER_SECOND,
    PASSWORD,
    ROGUE,
    STEADY,
    TOPIC,
    Connection,
    Rogue,
    Steady,
    produceSteadily,
    reconnect,
    wait,
)

LIMIT = 100
"""New ids in an hour."""

REMEMBERED = 100_000
"""How many producers the broker remembers: max.producer.ids."""

MAX_PATIENT_IDS = 1_000_000
MAX_ROUNDS = 20
ROUND_SECONDS = 5.0

_OWNER_BYTES = 200
"""What the broker counts for the name of its principal, at most."""

_FIRST_ROGUE_ID = 1_000_000


@frozen
class Running:
    """
    A broker that runs.
    """

    pid: int
    port: int
    statusPort: int

    def sensors(self) -> dict[str, Any]:
        """
        What it measures.
        """
        with urlopen(f"http://127.0.0.1:{self.statusPort}/sensors", timeout=PATIENCE_SECONDS) as response:
            return dict(json.load(response))

    def anonymousBytes(self) -> int:
        """
        What it has of memory, without the file of the log that it looks into.
        """
        with open(f"/proc/{self.pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


@contextmanager
def broker(limit: int) -> Iterator[Running]:
    """
    Run one for the duration of a block, with a limit on new ids in an hour.
    """
    with TemporaryDirectory(prefix="admission-benchmark-") as data, ExitStack() as ports:
        reserved = [ports.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        port, statusPort = (each.getsockname()[1] for each in reserved)
        ports.close()
        options = [
            *("--data", f"{data}/log"),
            *("--listen", f"tcp:{port}:interface=127.0.0.1"),
            *("--status", f"tcp:{statusPort}:interface=127.0.0.1"),
            *("--auth", f"memory:{STEADY}:{PASSWORD}:{ROGUE}:{PASSWORD}"),
            *("--quota", f"producer-ids:rate={limit}:window=1h"),
            *("--set", f"num.partitions={IDS_EACH}"),
            *("--set", f"max.producer.ids={REMEMBERED}"),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "twisted", "admission", *options], stdout=subprocess.DEVNULL, cwd=data
        )
        try:
            awaitPort(port, process)
            running = Running(process.pid, port, statusPort)
            with Connection(port, STEADY) as connection:
                topics = [{"name": TOPIC}]
                connection.ask("Metadata", 9, {"topics": topics, "allow_auto_topic_creation": True})
            yield running
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def awaitPort(port: int, process: subprocess.Popen[bytes]) -> None:
    """
    Wait until a process listens.
    """
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    raise RuntimeError("the broker did not start")


def percentile(latencies: Sequence[float], percent: int) -> float:
    """
    In milliseconds.
    """
    return quantiles(latencies, n=100)[percent - 1] * 1000


def measureRogue(
    report: Report, loaders: Sequence[Loader], name: str, load: Callable[[int, int, int], Rogue], limit: int, ids: int
) -> None:
    """
    The steady user alone and beside the rogue, in turns.

    @param load: what the rogue does.
    @param limit: of new ids in an hour, for each user.
    """
    rounds = 2 if report.quick else max(3, min(MAX_ROUNDS, round(ids / IDS_PER_SECOND / ROUND_SECONDS)))
    roundIds = -(-ids // (rounds * IDS_EACH)) * IDS_EACH
    rogueSeconds = roundIds / IDS_PER_SECOND
    steadily, other = loaders
    sequence = 0
    rogues: list[Rogue] = []
    held: list[dict[str, int]] = []
    with broker(limit) as running, ThreadPoolExecutor(1) as thread:

        def produce(who: str) -> Steady:
            nonlocal sequence
            seconds = rogueSeconds if who == "beside" else min(rogueSeconds, ROUND_SECONDS)
            if who == "beside":
                firstId = _FIRST_ROGUE_ID + len(rogues) * roundIds
                flooding = thread.submit(other.run, load, running.port, firstId, roundIds)
            steady = steadily.run(produceSteadily, running.port, seconds, sequence)
            sequence = steady.sequence
            if who == "beside":
                rogues.append(flooding.result())
                held.append(memory(running))
            return steady

        produce("alone")
        found = inTurns(["alone", "beside"], rounds, produce, f"rogue {name}")
        percentiles = {
            percent: {who: [percentile(each.latencies, percent) for each in steady] for who, steady in found.items()}
            for percent in (50, 99)
        }
        for who, steady in found.items():
            report.add(
                "latency",
                rogue=name,
                steady=who,
                requests=sum(len(each.latencies) for each in steady),
                refusals=sum(each.refusals for each in steady),
                p50Milliseconds=median(percentiles[50][who]),
                p99Milliseconds=median(percentiles[99][who]),
                p99RatioToAlone=ratio(percentiles[99][who], percentiles[99]["alone"]),
            )
        report.add(
            "rogue",
            rogue=name,
            limit=limit,
            sentIds=sum(each.sentIds for each in rogues),
            admittedIds=sum(each.admittedIds for each in rogues),
            refusedIds=sum(each.refusedIds for each in rogues),
            sentPerSecond=sum(each.sentIds for each in rogues) / sum(each.seconds for each in rogues),
        )
        caps = {"producers": REMEMBERED * largestStateBytes(), "filters": MAX_BYTES}
        for purpose, cap in caps.items():
            report.add(
                "memory", rogue=name, purpose=purpose, peakKibibytes=max(each[purpose] for each in held) >> 10,
                capKibibytes=cap >> 10,
            )  # fmt: skip
        report.add("process", rogue=name, anonymousKibibytes=running.anonymousBytes() >> 10)


def memory(running: Running) -> dict[str, int]:
    """
    What the broker holds on behalf of producers, in bytes.
    """
    sensors = running.sensors()
    ledger = dict(sensors["families"]["LedgerBytes"]["values"])
    return {"producers": ledger["producers"], "filters": sensors["values"]["producer-ids.memory-bytes"]}


def largestStateBytes() -> int:
    """
    What the broker counts for one producer that it remembers, at most.
    """
    states = ProducerStates(1)
    for sequence in range(REMEMBERED_BATCHES):
        states.record((0, 0), 0, (sequence, sequence, 0), 0.0)
    return states.sizeBytes + _OWNER_BYTES


def measure(report: Report, ids: int) -> None:
    """
    Everything.
    """
    with Loader() as steadily, Loader() as other:
        loaders = steadily, other
        # How long it takes matters here, and not how many are sent, since hardly any are read.
        measureRogue(report, loaders, "waits", wait, LIMIT, min(ids, MAX_PATIENT_IDS))
        measureRogue(report, loaders, "reconnects", reconnect, LIMIT, ids)
        measureRogue(report, loaders, "unlimited", reconnect, 10 * ids, ids)


def main() -> None:
    """
    The command line.
    """
    parser = argparse.ArgumentParser(description="What a rogue with new producer ids does to others, and to memory.")
    parser.add_argument("--ids", type=int, help="how many ids to send, each time; 1000000 by default")
    parser.add_argument("--json", action="store_true", help="print JSON and no tables")
    parser.add_argument("--quick", action="store_true", help="take few seconds and measure little")
    options = parser.parse_args()
    report = Report("A rogue with new producer ids: latency of another user, and memory", options.quick)
    measure(report, options.ids or (5000 if options.quick else 1_000_000))
    progress("")
    print(report.asJson() if options.json else report.asText())


if __name__ == "__main__":
    main()
