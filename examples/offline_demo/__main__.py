"""
See L{examples.offline_demo}.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from admission.cli import main as admission
from benchmarks.load import Loader
from benchmarks.rogueload import IDS_PER_SECOND, ROGUE, STEADY, Connection, wait

from .counterfactual import say
from .libraries import LIBRARIES, PASSWORD, TOPIC, RealClient
from .running import DemoFailed, recordedBroker

QUOTAS = ("client-bytes:produce=100k", "producer-ids:rate=20")

CANDIDATES = (
    "tight=client-bytes:produce=50k",
    "bucket=client-bytes:produce=100k:algorithm=bucket",
    "fewer producers=producer-ids:rate=10",
)

OVER_QUOTA = 300
UNDER_QUOTA = 20
"""Records of 1000 bytes in a second."""

_FIRST_ROGUE_ID = 1_000_000
_MAX_CALM_SECONDS = 10.0


def load(port: int, seconds: float) -> None:
    """
    Put real clients and a storm of producer ids on a broker.

    @param seconds: for how long.
    @raise DemoFailed: if a client fails.
    """
    address = f"127.0.0.1:{port}"
    with Connection(port, STEADY) as connection:
        connection.ask("Metadata", 9, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True})
    clients = [
        RealClient(library, f"{library} {word}", recordsPerSecond)
        for library in LIBRARIES
        for word, recordsPerSecond in (("over", OVER_QUOTA), ("under", UNDER_QUOTA))
    ]
    isOver = Event()
    calmSeconds = min(seconds / 4, _MAX_CALM_SECONDS)
    with Loader() as loader, ThreadPoolExecutor(len(clients)) as threads:
        try:
            working = [threads.submit(client.work, address, isOver) for client in clients]
            isOver.wait(calmSeconds)
            say(f"   a storm of new producer ids for {seconds - 2 * calmSeconds:.0f} s")
            loader.run(wait, port, _FIRST_ROGUE_ID, round((seconds - 2 * calmSeconds) * IDS_PER_SECOND))
            isOver.wait(calmSeconds)
        finally:
            isOver.set()
        for client, future in zip(clients, working, strict=True):
            try:
                say(f"   {client.clientId}: {future.result()} records")
            except Exception as error:
                raise DemoFailed(f"{client.clientId} has failed: {error}") from error


def demonstrate(directory: Path, seconds: float, isQuick: bool = False) -> Path:
    """
    Record a broker under load, and evaluate what was recorded.

    @param directory: where there is nothing yet.
    @param seconds: how long the load takes.
    @param isQuick: whether to replay only, and leave sums and audits out.
    @return: the page about it.
    @raise DemoFailed: if anything fails.
    """
    users = "".join(f":{user}:{PASSWORD}" for user in (STEADY, ROGUE, *LIBRARIES))
    say("1. starting a broker")
    with recordedBroker(directory, "--auth", f"memory{users}", *(f"--quota={each}" for each in QUOTAS)) as port:
        say(f"2. {', '.join(LIBRARIES)}: over and under their quota for {seconds:.0f} s")
        load(port, seconds)
        say("3. stopping the broker")
    recording, results = directory / "recording", directory / "results"
    say(f"4. evaluating {len(CANDIDATES)} candidates, which may take minutes")
    question = [str(recording), "--out", str(results), *(f"--candidate={each}" for each in CANDIDATES)]
    commands = [["replay", *question], ["report", str(results)]] if isQuick else [["evaluate", *question]]
    if any(admission(command) for command in commands):
        raise DemoFailed("the evaluation has failed")
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
    parser.add_argument("--seconds", type=float, default=150.0, help="how long the load takes")
    parser.add_argument("--out", type=Path, default=Path("build/offline-demo"), help="where there is nothing yet")
    parser.add_argument("--quick", action="store_true", help="replay only, and leave sums and audits out")
    options = parser.parse_args(arguments)
    try:
        report = demonstrate(options.out.absolute(), options.seconds, options.quick)
    except (DemoFailed, ConnectionError) as error:
        print(error, file=sys.stderr)
        return 1
    say(f"the report is {report}")
    return 0


if __name__ == "__main__":
    # kafka-python logs every delay.
    logging.disable(logging.WARNING)
    sys.exit(main())
