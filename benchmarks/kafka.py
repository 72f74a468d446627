"""
Apache Kafka beside the broker, one node each on this machine, under Kafka's own tools: how many records a second, what
that costs the server, and how long they take at a fixed rate.  Java and Maven are needed; Kafka is fetched from Maven
Central once.

    python -m benchmarks.kafka [--json] [--quick]
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from attrs import frozen
from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SkipTest

from tests.kit.apachekafka import ApacheKafka, classPath
from tests.kit.brokerprocess import BrokerProcess

from .measure import MIB, Report, cpuSecondsOf, inTurns, median, ratio, run

KAFKA = "Apache Kafka"
ADMISSION = "admission"
CACHING = "admission, write.caching"

ACKS_ALL = {"acks": "all", "enable.idempotence": "true"}
"""What producers do unless they are told otherwise."""

ACKS_LEADER = {"acks": "1", "enable.idempotence": "false"}

PATIENCE_SECONDS = 300.0

_SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
_QUANTILES = re.compile(r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th")


@frozen
class Outcome:
    """
    One run of a tool.

    @ivar recordsPerSecond: as the tool says.
    @ivar cpuSeconds: of the server, meanwhile.
    @ivar sizeBytes: of all records, without what is around them.
    @ivar p50Milliseconds: from a record's sending to its acknowledgement, like C{p99Milliseconds}; zero for consumers.
    """

    recordsPerSecond: float
    cpuSeconds: float
    sizeBytes: int
    p50Milliseconds: float = 0.0
    p99Milliseconds: float = 0.0


@frozen
class Competitor:
    """
    A server that runs.
    """

    pid: int
    address: str


def tool(name: str, *arguments: str) -> str:
    """
    Run one of Kafka's tools.

    @return: what it has printed.
    @raise RuntimeError: if it fails.
    """
    command = ["java", "-Xmx256m", "-cp", classPath(), f"org.apache.kafka.tools.{name}", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    if ran.returncode:
        raise RuntimeError(f"{name} has failed:\n{ran.stdout[-1000:]}\n{ran.stderr[-1000:]}")
    return ran.stdout


def produce(
    server: Competitor,
    topic: str,
    recordBytes: int,
    records: int,
    properties: Mapping[str, str],
    perSecond: int = -1,
) -> Outcome:
    """
    Have C{kafka-producer-perf-test} produce.

    @param perSecond: how many records; as many as it can if negative.
    """
    settings = {**properties, "bootstrap.servers": server.address, "batch.size": "16384", "linger.ms": "5"}
    cpuBefore = cpuSecondsOf(server.pid)
    told = tool(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(recordBytes)),
        *("--throughput", str(perSecond), "--producer-props", *(f"{name}={value}" for name, value in settings.items())),
    )
    cpuSeconds = cpuSecondsOf(server.pid) - cpuBefore
    sent, quantiles = _SENT.findall(told)[-1], _QUANTILES.findall(told)[-1]
    if int(sent[0]) != records:
        raise RuntimeError(f"{sent[0]} of {records} records were acknowledged:\n{told[-1000:]}")
    return Outcome(float(sent[1]), cpuSeconds, records * recordBytes, float(quantiles[0]), float(quantiles[2]))


def consume(server: Competitor, topic: str, recordBytes: int, records: int) -> Outcome:
    """
    Have C{kafka-consumer-perf-test} consume what is there.
    """
    cpuBefore = cpuSecondsOf(server.pid)
    told = tool(
        "ConsumerPerformance",
        *("--bootstrap-server", server.address, "--topic", topic, "--messages", str(records)),
        *("--timeout", "60000", "--hide-header"),
    )
    cpuSeconds = cpuSecondsOf(server.pid) - cpuBefore
    # The last but one is megabytes, the last records, a second, both without the time to join the group.
    line = next(line for line in told.splitlines() if line.count(",") >= 9)
    return Outcome(float(line.split(",")[9]), cpuSeconds, records * recordBytes)


@contextmanager
def competitors() -> Iterator[dict[str, Competitor]]:
    """
    All of them, for the duration of a block.
    """
    kafka, admission, caching = ApacheKafka(), BrokerProcess(), BrokerProcess("--set=write.caching=true")
    try:
        kafka.start()
        admission.start()
        caching.start()
        servers = {
            KAFKA: Competitor(kafka.pid, kafka.address),
            ADMISSION: Competitor(admission.process.pid, admission.address),
            CACHING: Competitor(caching.process.pid, caching.address),
        }
        for server in servers.values():
            _waitFor(server)
        yield servers
    finally:
        kafka.remove()
        for broker in (admission, caching):
            broker.kill()
            broker.remove()


def _waitFor(server: Competitor) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            AdminClient({"bootstrap.servers": server.address, "log_level": 0}).list_topics(timeout=5)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise


def _create(server: Competitor, topic: str) -> None:
    # Kept until it has answered.
    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)


def measureThroughput(
    report: Report, name: str, names: Sequence[str], rounds: int, measure: Callable[[str], Outcome]
) -> None:
    """
    Some rounds, after one for Java's compiler.
    """
    for each in names:
        measure(each)
    figures = inTurns(names, rounds, measure, name)
    rates = {each: [outcome.recordsPerSecond for outcome in outcomes] for each, outcomes in figures.items()}
    for each, outcomes in figures.items():
        report.add(
            "throughput",
            what=name,
            server=each,
            recordsPerSecond=median(rates[each]),
            ratioToKafka=ratio(rates[each], rates[KAFKA]),
            cpuMillisecondsPerMiB=median([one.cpuSeconds * 1000 / (one.sizeBytes / MIB) for one in outcomes]),
        )


def measure(report: Report) -> None:
    """
    Everything.
    """
    try:
        classPath()
    except SkipTest as reason:
        sys.exit(str(reason))
    rounds, scale = (1, 50) if report.quick else (3, 1)
    numbers = count()
    with competitors() as servers:

        def fresh(name: str) -> str:
            topic = f"topic-{next(numbers)}"
            _create(servers[name], topic)
            return topic

        producing = {
            "acks=all, 1,000 bytes": (ACKS_ALL, 1_000, 400_000 // scale, [KAFKA, ADMISSION, CACHING]),
            "acks=1, 1,000 bytes": (ACKS_LEADER, 1_000, 400_000 // scale, [KAFKA, ADMISSION]),
            "acks=1, 100,000 bytes": (ACKS_LEADER, 100_000, 5_000 // scale, [KAFKA, ADMISSION]),
        }
        for what, (properties, recordBytes, records, names) in producing.items():

            def send(
                name: str,
                properties: Mapping[str, str] = properties,
                recordBytes: int = recordBytes,
                records: int = records,
            ) -> Outcome:
                return produce(servers[name], fresh(name), recordBytes, records, properties)

            measureThroughput(report, what, names, rounds, send)

        records = 400_000 // scale
        filled = {name: fresh(name) for name in (KAFKA, ADMISSION)}
        for name, topic in filled.items():
            produce(servers[name], topic, 1_000, records, ACKS_LEADER)
        measureThroughput(
            report,
            "consume, 1,000 bytes",
            list(filled),
            rounds,
            lambda name: consume(servers[name], filled[name], 1_000, records),
        )

        perSecond, records = 5_000, 50_000 // scale
        for properties, what in ((ACKS_ALL, "acks=all"), (ACKS_LEADER, "acks=1")):

            def pace(name: str, properties: Mapping[str, str] = properties) -> Outcome:
                return produce(servers[name], fresh(name), 1_000, records, properties, perSecond)

            for name, outcomes in inTurns(servers, rounds, pace, f"latency, {what}").items():
                report.add(
                    "latency",
                    what=what,
                    server=name,
                    offeredPerSecond=perSecond,
                    p50Milliseconds=median([outcome.p50Milliseconds for outcome in outcomes]),
                    p99Milliseconds=median([outcome.p99Milliseconds for outcome in outcomes]),
                )


if __name__ == "__main__":
    run(
        "Apache Kafka and the broker, under Kafka's own tools",
        "Compare the broker with Apache Kafka, which needs Java and Maven.",
        measure,
    )
