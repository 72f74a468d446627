"""
See L{examples.offline_demo}.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from admission.cli import main as admission
from benchmarks.rogueload import STEADY, Connection

from .counterfactual import say
from .libraries import LIBRARIES, PASSWORD, TOPIC, RealClient
from .outcomes import predicted
from .running import DemoFailed, recordedBroker

QUOTA = "client-bytes:produce=100k"
POOL = "bounded:32MiB"

CANDIDATES = (
    "doubled=client-bytes:produce=200k",
    "halved=client-bytes:produce=50k",
    "bucket=client-bytes:produce=100k:algorithm=bucket",
)

CROWDED = "orders"
"""The team that has a job to do, as fast as it is let."""

TEAMS = (CROWDED, "billing", "search")


def clients(seconds: float) -> Sequence[RealClient]:
    """
    The producers of the teams, which have a limit each; records have 1000 bytes.

    The job of L{CROWDED} is done before the time is over, so that there is nothing else that it would have sent under
    another limit.

    @param seconds: how long the load takes.
    """
    return (
        RealClient("confluent-kafka", CROWDED, 400, records=round(85 * seconds)),
        *[RealClient("kafka-python", "billing", 8)] * 8,
        *[RealClient("aiokafka", "search", 8)] * 8,
    )


def load(port: int, seconds: float) -> None:
    """
    Put real clients on a broker.

    @param seconds: for how long.
    @raise DemoFailed: if a client fails.
    """
    address = f"127.0.0.1:{port}"
    with Connection(port, STEADY) as connection:
        connection.ask("Metadata", 9, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True})
    isOver = Event()
    sent: Counter[str] = Counter()
    producers = clients(seconds)
    with ThreadPoolExecutor(len(producers)) as threads:
        try:
            working = [threads.submit(client.work, address, isOver) for client in producers]
            isOver.wait(seconds)
        finally:
            isOver.set()
        for client, future in zip(producers, working, strict=True):
            try:
                sent[client.clientId] += future.result()
            except Exception as error:
                raise DemoFailed(f"{client.clientId} has failed: {error}") from error
    for team, records in sent.items():
        say(f"   {team}: {records} records")


def story(results: Path) -> str:
    """
    What twice the limit means for the teams.

    @raise DemoFailed: if nobody was throttled.
    """
    was, would = (predicted(results, label, TEAMS) for label in ("recorded", "doubled"))
    before, after = was[CROWDED].heldSeconds, would[CROWDED].heldSeconds
    if not before:
        raise DemoFailed(f"{CROWDED} has not been throttled; give it more time with --seconds")
    worse = [team for team in TEAMS if would[team].heldSeconds > was[team].heldSeconds + 0.001]
    others = f"{' and '.join(worse)} would wait longer" if worse else "nobody else would wait longer"
    pools = pq.read_table(results / "pool_minute.parquet", columns=["used_max"], page_checksum_verification=True)
    peakBytes = max((each for each in pools["used_max"].to_pylist() if each is not None), default=0)
    return (
        f"With twice the limit {CROWDED} would have waited {after:.3g} s instead of {before:.3g} s for its job "
        f"({(after - before) / before:+.0%}), and {others}. As recorded, the memory pool took "
        f"{peakBytes / 2**20:.1f} MiB of 32 MiB at most."
    )


def demonstrate(directory: Path, seconds: float) -> Path:
    """
    Record a broker under load, and evaluate what was recorded.

    @param directory: where there is nothing yet.
    @param seconds: how long the load takes.
    @return: the page about it.
    @raise DemoFailed: if anything fails.
    """
    users = "".join(f":{user}:{PASSWORD}" for user in (STEADY, *LIBRARIES))
    say("1. starting a broker")
    with recordedBroker(directory, "--auth", f"memory{users}", "--quota", QUOTA, "--pool", POOL) as port:
        say(f"2. {', '.join(LIBRARIES)}: a team with a job and two within their limits, for {seconds:.0f} s")
        load(port, seconds)
        say("3. stopping the broker")
    recording, results = directory / "recording", directory / "results"
    say(f"4. evaluating {len(CANDIDATES)} candidates, which may take minutes")
    if admission(["evaluate", str(recording), "--out", str(results), *(f"--candidate={each}" for each in CANDIDATES)]):
        raise DemoFailed("the evaluation has failed")
    say(f"5. {story(results)}")
    return results / "report.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """
    The command line.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.offline_demo",
        description="Record a broker under real load, and work out what other policies would have done.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the load takes")
    parser.add_argument("--out", type=Path, default=Path("build/offline-demo"), help="where there is nothing yet")
    options = parser.parse_args(arguments)
    try:
        report = demonstrate(options.out.absolute(), options.seconds)
    except (DemoFailed, ConnectionError) as error:
        print(error, file=sys.stderr)
        return 1
    say(f"the report is {report}")
    return 0


if __name__ == "__main__":
    # kafka-python logs every delay.
    logging.disable(logging.WARNING)
    sys.exit(main())
