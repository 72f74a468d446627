"""
What a gateway in front of Apache Kafka costs: its CPU time for each request, beside a relay that looks at nothing; the
time that it adds; its memory while clients read slowly, and while a node does not answer.  Java and Maven are needed;
Kafka is fetched from Maven Central once.

    python -m benchmarks.gateway [--json] [--quick] [--processes N]

With --processes it compares a gateway of so many processes with one of one process, and measures nothing else.
Kroxylicious, a proxy in Java, is beside it where Maven has it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from attrs import frozen
from confluent_kafka.admin import NewTopic
from twisted.trial.unittest import SkipTest

from tests.kit.apachekafka import classPath
from tests.kit.kafkacluster import KafkaCluster

from .broker import perRequest, produceResponseBytes
from .gatewayload import latencies, pipelined, produceSteadily, readSlowly
from .gatewayprocesses import measureProcesses
from .gatewayservers import SHORT_LIVED, admin, gateway, node, until
from .kroxylicious import kroxylicious
from .load import Cost, Loader, ask, batchOf, exchange, fetchRequest, produceRequest
from .measure import KIB, MIB, Report, inTurns, median, ratio, run, sizeName
from .servers import running

DIRECT = "direct"
RELAY = "relay"
GATEWAY = "gateway"
LIMITED = "gateway, limits"
KROXYLICIOUS = "Kroxylicious"

LIMITS = (
    *("--quota", "client-bytes:produce=1000G:fetch=1000G"),
    *("--quota", "request-time:percent=1000000"),
    *("--quota", "producer-ids:rate=1000000000"),
)
"""All policies have to look, and none has anything to say."""

NODE_ID = 1
"""Of the only node."""

PRODUCED, IDEMPOTENT, FETCHED, LARGE = "produced", "idempotent", "fetched", "large"
TOPICS = (PRODUCED, IDEMPOTENT, FETCHED, LARGE)

PRODUCER_ID = 7_000_000
LARGE_FETCH_BYTES = 50 * MIB

SLOW = {4: 5_000_000, 20: 1_000_000}
"""How many read slowly, and how many bytes in a second each."""

STUCK_POOL_BYTES = 64 * MIB
STUCK_CONNECTIONS = 8
STUCK_NODE = 3
STEADY_PER_SECOND = 50


@frozen
class Work:
    """
    One kind of request.

    @ivar what: it is to do.
    @ivar sizeBytes: of its batch, or of what it fetches.
    @ivar inFlight: how many there are at a time.
    @ivar count: how many are sent in a round: as many as take half a second or so.
    """

    what: str
    sizeBytes: int
    inFlight: int
    count: int


WORKS = [
    Work("produce", KIB, 1, 1500),
    Work("produce", KIB, 5, 3000),
    Work("produce", KIB, 16, 4000),
    Work("produce, idempotent", KIB, 16, 4000),
    Work("produce", 16 * KIB, 5, 2000),
    Work("produce", MIB, 1, 80),
    Work("produce", MIB, 5, 120),
    Work("fetch", MIB, 1, 200),
    Work("fetch", MIB, 4, 400),
]


@frozen
class Competitor:
    """
    Something that runs.
    """

    pid: int
    port: int


@contextmanager
def competitors() -> Iterator[dict[str, Competitor]]:
    """
    One node, and all that is in front of it, for the duration of a block.
    """
    new = [
        NewTopic(topic, 1, 1, config={} if topic in (FETCHED, LARGE, IDEMPOTENT) else SHORT_LIVED) for topic in TOPICS
    ]
    with ExitStack() as stack:
        kafka = stack.enter_context(node(*new))
        relay = stack.enter_context(running("relay", str(kafka.port)))
        plain = stack.enter_context(gateway(kafka.address))
        limited = stack.enter_context(gateway(kafka.address, *LIMITS))
        servers = {
            DIRECT: Competitor(kafka.pid, kafka.port),
            RELAY: Competitor(relay.pid, relay.port),
            GATEWAY: Competitor(plain.process.pid, plain.port + 1 + NODE_ID),
            LIMITED: Competitor(limited.process.pid, limited.port + 1 + NODE_ID),
        }
        try:
            other = stack.enter_context(kroxylicious(kafka.address))
        except SkipTest as reason:
            print(f"{KROXYLICIOUS} is left out: {reason}", file=sys.stderr)
        else:
            address = f"127.0.0.1:{other.port}"
            until("Kroxylicious answers", lambda: bool(admin(address).list_topics(timeout=5).topics))
            servers[KROXYLICIOUS] = Competitor(other.pid, other.port + 1 + NODE_ID)
        yield servers


def fill(loader: Loader, kafka: Competitor, topic: str, batches: int) -> None:
    """
    Put batches of 1 MiB into a topic.
    """
    request = produceRequest(topic, 0, batchOf(MIB))
    loader.run(exchange, kafka.pid, kafka.port, [request], produceResponseBytes(topic), 1, batches)


def requestOf(work: Work, kafka: Competitor) -> tuple[bytes, int]:
    """
    @return: the request, and the size of each response.
    """
    if work.what == "fetch":
        request = fetchRequest(FETCHED, 0, 0, work.sizeBytes)
        return request, len(ask(kafka.port, request))
    if work.what == "produce":
        return produceRequest(PRODUCED, 0, batchOf(work.sizeBytes)), produceResponseBytes(PRODUCED)
    # The node takes the first, and those that follow for the same, sent again.
    request = produceRequest(IDEMPOTENT, 0, batchOf(work.sizeBytes, PRODUCER_ID))
    return request, produceResponseBytes(IDEMPOTENT)


def measureCpu(report: Report, loader: Loader, servers: Mapping[str, Competitor], work: Work) -> None:
    """
    What one kind of request costs what is in front of the node.
    """
    rounds, count = (2, max(20, work.count // 10)) if report.quick else (9, work.count)
    request, responseBytes = requestOf(work, servers[DIRECT])
    names = [name for name in servers if name != DIRECT]

    def send(name: str) -> Cost:
        server = servers[name]
        return loader.run(pipelined, server.pid, server.port, request, responseBytes, work.inFlight, count)

    for name in names:
        send(name)
    figures = inTurns(names, rounds, send, f"{work.what}, {sizeName(work.sizeBytes)}, {work.inFlight} in flight")
    floor = [cost.cpuSeconds for cost in figures[RELAY]]
    for name, costs in figures.items():
        report.add(
            "requests",
            what=work.what,
            sizeBytes=work.sizeBytes,
            inFlight=work.inFlight,
            server=name,
            **perRequest(costs, count),
            ratioToRelay=ratio([cost.cpuSeconds for cost in costs], floor),
        )


def percentile(seconds: Sequence[float], percent: int) -> float:
    """
    In milliseconds.
    """
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


def measureLatency(report: Report, loader: Loader, servers: Mapping[str, Competitor]) -> None:
    """
    How long Produce of 1 KiB takes, one at a time.
    """
    rounds, count = (2, 200) if report.quick else (9, 2000)
    request = produceRequest(PRODUCED, 0, batchOf(KIB))

    def send(name: str) -> Sequence[float]:
        return loader.run(latencies, servers[name].port, request, produceResponseBytes(PRODUCED), count)

    for name in servers:
        send(name)
    figures = inTurns(servers, rounds, send, "latency")
    direct = [percentile(each, 50) for each in figures[DIRECT]]
    for name, taken in figures.items():
        medians = [percentile(each, 50) for each in taken]
        report.add(
            "latency",
            server=name,
            p50Milliseconds=median(medians),
            p99Milliseconds=median([percentile(each, 99) for each in taken]),
            addedMilliseconds=median([one - other for one, other in zip(medians, direct, strict=True)]),
        )


def measureSlowReaders(report: Report, loader: Loader, servers: Mapping[str, Competitor]) -> None:
    """
    How much processes grow while clients read large responses slowly.
    """
    seconds = 2.0 if report.quick else 10.0
    request = fetchRequest(LARGE, 0, 0, LARGE_FETCH_BYTES)
    for readers, bytesPerSecond in SLOW.items():
        for name, server in servers.items():
            if name == DIRECT:
                continue
            reading = loader.run(readSlowly, server.pid, server.port, request, readers, bytesPerSecond, seconds)
            report.add(
                "slowReaders",
                readers=readers,
                server=name,
                megabytesPerSecond=reading.receivedBytes / reading.seconds / 1e6,
                growthMegabytes=round(reading.growthBytes / 1e6, 2),
            )


def measureStuckNode(report: Report, loader: Loader) -> None:
    """
    What producers to two nodes notice while the third does not answer, and others send it as much as they can.
    """
    seconds = 2.0 if report.quick else 8.0
    cluster = KafkaCluster()
    with ExitStack() as stack:
        stack.callback(cluster.remove)
        cluster.start()
        cluster.createTopic(PRODUCED, replicas=[[nodeId] for nodeId in (1, 2, STUCK_NODE)])
        process = stack.enter_context(
            gateway(
                cluster.bootstrap,
                f"--set=queued.max.request.bytes={STUCK_POOL_BYTES}",
                f"--set=socket.request.max.bytes={16 * MIB}",
            )
        )
        host, _, port = cluster.address(1).partition(":")
        targets = {
            "node 1": ("127.0.0.1", process.port + 2),
            "node 2": ("127.0.0.1", process.port + 3),
            "node 1, direct": (host, int(port)),
        }

        def produce(connections: int) -> None:
            steady = loader.run(
                produceSteadily,
                process.process.pid,
                list(targets.values()),
                [produceRequest(PRODUCED, number, batchOf(KIB)) for number in (0, 1, 0)],
                produceResponseBytes(PRODUCED),
                STEADY_PER_SECOND,
                seconds,
                process.port + 1 + STUCK_NODE,
                produceRequest(PRODUCED, STUCK_NODE - 1, batchOf(MIB)),
                connections,
            )
            for name, taken in zip(targets, steady.latencies, strict=True):
                report.add(
                    "stuckNode",
                    when="during" if connections else "before",
                    server=name,
                    p50Milliseconds=percentile(taken, 50),
                    p99Milliseconds=percentile(taken, 99),
                    stuckMegabytes=round(steady.stuckBytes / 1e6),
                    growthMegabytes=round(steady.growthBytes / 1e6, 2),
                )

        # Java's compiler has the first one.
        produce(0)
        del report.tables["stuckNode"]
        produce(0)
        cluster.freeze(STUCK_NODE)
        try:
            produce(STUCK_CONNECTIONS)
        finally:
            cluster.thaw(STUCK_NODE)


def measure(report: Report) -> None:
    """
    Everything.
    """
    try:
        classPath()
    except SkipTest as reason:
        sys.exit(str(reason))
    with Loader() as loader:
        if report.numbers["processes"]:
            measureProcesses(report, loader, report.numbers["processes"])
            return
        with competitors() as servers:
            fill(loader, servers[DIRECT], FETCHED, 1)
            fill(loader, servers[DIRECT], LARGE, LARGE_FETCH_BYTES // MIB + 1)
            for work in WORKS:
                measureCpu(report, loader, servers, work)
            measureLatency(report, loader, servers)
            measureSlowReaders(report, loader, servers)
        measureStuckNode(report, loader)


if __name__ == "__main__":
    run(
        "A gateway in front of Apache Kafka: CPU time of its process, latency and memory",
        "What a gateway in front of Apache Kafka costs, which needs Java and Maven.",
        measure,
        {"processes": "compare a gateway of so many processes with one of one"},
    )
