"""
What a request costs the broker: Produce beside the same codec and log behind a bare framer, and beside bare Twisted,
and with and without a look at the records; Fetch; and Produce by a real client.

    python -m benchmarks.broker [--json] [--quick]
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from attrs import frozen

from admission.kafka.wire.batches import Record, encodeBatch
from admission.kafka.wire.compression import GZIP
from admission.kafka.wire.produce import PartitionResult, encodeProduceResponse

from .load import Cost, Loader, ask, batchOf, compressedWith, confluentProduce, exchange, fetchRequest, produceRequest
from .measure import KIB, MIB, Report, inTurns, median, ratio, run, sizeName, spreadPercent
from .servers import FETCHED_TOPIC, PARTITIONS, TOPIC, Server, running

CORRELATION_AND_TAGS_BYTES = 5
FETCHED_BYTES = MIB
FETCHERS = 4


@frozen
class Size:
    """
    A size of requests, and how many of them to send in a round: as many as take a tenth of a second or so.

    @ivar batchBytes: of the one batch in each request.
    @ivar pipelined: how many requests a connection keeps in flight where requests are pipelined.
    """

    batchBytes: int
    count: int
    pipelined: int


SIZES = [Size(KIB, 2400, 16), Size(16 * KIB, 1200, 8), Size(MIB, 32, 2)]


def requestOf(size: Size, partition: int = 0) -> bytes:
    """
    A Produce request.
    """
    return produceRequest(TOPIC, partition, batchOf(size.batchBytes))


def produceResponseBytes(topic: str = TOPIC) -> int:
    """
    The size of the response when everything went well, without its length prefix.  What went wrong is told in words,
    and so is longer.
    """
    return CORRELATION_AND_TAGS_BYTES + len(encodeProduceResponse(9, [PartitionResult(topic, 0)]))


def perRequest(costs: Sequence[Cost], count: int) -> dict[str, float]:
    """
    What each of C{count} requests cost, the median of some rounds.
    """
    cpu = [cost.cpuSeconds for cost in costs]
    return {
        "cpuMicroseconds": median(cpu) / count * 1e6,
        "spreadPercent": spreadPercent(cpu),
        "requestsPerSecond": count / median([cost.wallSeconds for cost in costs]),
    }


def measureProduce(report: Report, loader: Loader, broker: Server, bare: Server, size: Size) -> None:
    """
    The broker and its peers at one size.
    """
    rounds, count = (2, max(16, size.count // 12)) if report.quick else (11, size.count)
    requests = [requestOf(size, partition) for partition in range(PARTITIONS)]
    listening = {
        "admission": (broker, broker.port),
        "bare": (bare, bare.ports["bare"]),
        "bareOneAtATime": (bare, bare.ports["bareOneAtATime"]),
        "floor": (bare, bare.ports[str(len(requests[0]) - 4)]),
    }
    for depth in (1, size.pipelined):

        def produce(name: str, depth: int = depth) -> Cost:
            server, port = listening[name]
            return loader.run(exchange, server.pid, port, requests, produceResponseBytes(), depth, count)

        figures = inTurns(listening, rounds, produce, f"produce, {sizeName(size.batchBytes)}, {depth} in flight")
        for name, costs in figures.items():
            cpu = [cost.cpuSeconds for cost in costs]
            report.add(
                "produce",
                batchBytes=size.batchBytes,
                inFlight=depth,
                server=name,
                **perRequest(costs, count),
                ratioToBare=ratio(cpu, [cost.cpuSeconds for cost in figures["bare"]]),
            )


def measureRecords(report: Report, loader: Loader, servers: Mapping[str, Server], count: int, codec: str) -> None:
    """
    Produce of batches with some records, by a broker that looks at them and by one that does not.

    @param count: how many records of 1,000 bytes are in each.
    """
    rounds, requestCount = (2, 16) if report.quick else (11, max(200, 2400 // count))
    words = [b"%d" % number for number in range(200)]
    nowMs = int(time.time() * 1000)
    records = [
        Record(b"%d" % number, b" ".join(words[number % 100 :] + words)[:1000], nowMs + number)
        for number in range(count)
    ]
    batch = encodeBatch(records)
    if codec == "gzip":
        batch = compressedWith(GZIP, gzip.compress, batch)
    requests = [produceRequest(TOPIC, partition, batch) for partition in range(PARTITIONS)]
    for depth in (1, 16):

        def produce(name: str, depth: int = depth) -> Cost:
            server = servers[name]
            return loader.run(exchange, server.pid, server.port, requests, produceResponseBytes(), depth, requestCount)

        figures = inTurns(servers, rounds, produce, f"produce, {count} records, {codec}, {depth} in flight")
        without = [cost.cpuSeconds for cost in figures["without"]]
        for name, costs in figures.items():
            report.add(
                "records",
                records=count,
                codec=codec,
                inFlight=depth,
                validation=name,
                **perRequest(costs, requestCount),
                ratioToWithout=ratio([cost.cpuSeconds for cost in costs], without),
            )


def fillForFetch(loader: Loader, server: Server, partition: int, batchBytes: int) -> tuple[bytes, int]:
    """
    Put a mebibyte into a partition that is empty yet.

    @return: the request that fetches all of it, and the size of the response.
    """
    requests = [produceRequest(FETCHED_TOPIC, partition, batchOf(batchBytes))]
    count = FETCHED_BYTES // batchBytes
    loader.run(exchange, server.pid, server.port, requests, produceResponseBytes(FETCHED_TOPIC), 1, count)
    request = fetchRequest(FETCHED_TOPIC, partition, 0, FETCHED_BYTES)
    responseBytes = len(ask(server.port, request))
    if responseBytes < FETCHED_BYTES:
        raise AssertionError(f"a fetch of {FETCHED_BYTES} bytes brought {responseBytes}")
    return request, responseBytes


def measureFetch(report: Report, loader: Loader, server: Server, partition: int, batchBytes: int) -> None:
    """
    The broker, asked for a mebibyte by each of some consumers, in batches of one size.
    """
    rounds, count = (2, 16) if report.quick else (7, 96)
    request, responseBytes = fillForFetch(loader, server, partition, batchBytes)

    def fetch(name: str) -> Cost:
        return loader.run(exchange, server.pid, server.port, [request] * FETCHERS, responseBytes, 1, count)

    costs = inTurns(["broker"], rounds, fetch, f"fetch, batches of {sizeName(batchBytes)}")["broker"]
    report.add("fetch", batchBytes=batchBytes, responseBytes=responseBytes, **perRequest(costs, count))


def measureClient(report: Report, loader: Loader, server: Server, size: Size) -> None:
    """
    The broker under librdkafka, one message in each request.
    """
    rounds, count = (2, max(16, size.count // 12)) if report.quick else (5, size.count)
    # What librdkafka puts around a message must not make the batch larger than the broker takes.
    messageBytes = size.batchBytes - 128

    def produce(producer: str) -> Cost:
        isIdempotent = producer == "idempotent"
        return loader.run(confluentProduce, server.pid, server.port, TOPIC, messageBytes, count, isIdempotent)

    figures = inTurns(["plain", "idempotent"], rounds, produce, f"librdkafka, {sizeName(size.batchBytes)}")
    for producer, costs in figures.items():
        report.add("confluentKafka", batchBytes=size.batchBytes, producer=producer, **perRequest(costs, count))


def measure(report: Report) -> None:
    """
    Everything.
    """
    requestBytes = [str(len(requestOf(size)) - 4) for size in SIZES]
    with (
        TemporaryDirectory(prefix="admission-benchmark-") as data,
        Loader() as loader,
        running("broker", f"{data}/admission") as broker,
        running("bare", f"{data}/bare", str(produceResponseBytes()), *requestBytes) as bare,
    ):
        for size in SIZES:
            measureProduce(report, loader, broker, bare, size)
        with running("broker", f"{data}/unchecked", "--set=produce.batch.validation=false") as unchecked:
            for count, codec in ((1, "none"), (16, "none"), (16, "gzip"), (1000, "none")):
                measureRecords(report, loader, {"with": broker, "without": unchecked}, count, codec)
        for partition, batchBytes in enumerate((16 * KIB, MIB)):
            measureFetch(report, loader, broker, partition, batchBytes)
        if find_spec("confluent_kafka") is not None:
            for size in SIZES:
                measureClient(report, loader, broker, size)


if __name__ == "__main__":
    run(
        "CPU time of the broker's process for each request, in microseconds",
        "What Produce and Fetch requests cost the broker.",
        measure,
    )
