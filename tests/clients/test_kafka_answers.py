"""The broker beside Apache Kafka: the same batches, the same questions, the same answers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import cramjam
import lz4.frame
import zstandard
from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.apachekafka import ApacheKafka, fetched, java
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, BrokerProcess
from tests.kit.hostilebatches import HOUR_MS, batch, gzipped, hostileBatches, record
from tests.kit.rawclient import RawClient, produceRequest

_LATEST = -1
"""Asked for in place of a time: the end of a partition."""
_MAX_TIMESTAMP = -3
_NEGATIVE = (_LATEST, -2, _MAX_TIMESTAMP, -4, -5, -6, -(2**63))

_STAMPED = "stamped"
_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzipped,
    "snappy": lambda payload: bytes(cramjam.snappy.compress_raw(payload)),
    "lz4": lz4.frame.compress,
    "zstd": zstandard.compress,
}
"""In the order of their numbers."""

CONNECTOR = "4.2.0"
"""The newest that Maven Central has; it runs in Spark 4.3 as well."""
_CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}"
_JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""What Spark does not have itself."""

SPARK_SECONDS = 240.0
"""How long Spark may take to start and to read."""

SPARK = """
import json, sys
from admission.offline.sparksession import openSession

jars, scratch, *addresses, topics, first, second, third = sys.argv[1:]
session = openSession("times", {
    "spark.master": "local[2]",
    "spark.jars": jars,
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.warehouse.dir": scratch,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
})

def show(what, rows):
    offsets = {}
    for row in rows.select("topic", "offset").collect():
        offsets.setdefault(row["topic"], []).append(row["offset"])
    print(json.dumps([what, {topic: [min(each), len(each)] for topic, each in sorted(offsets.items())}]))

def options(reader, address, timeMs):
    return reader.format("kafka").options(**{
        "kafka.bootstrap.servers": address,
        "subscribe": topics,
        # It asks behind the last record at first, and waits until that is answered.
        "kafka.fetch.max.wait.ms": 10,
        "startingTimestamp": timeMs,
        # What has no record of that time is not read, instead of a failure.
        "startingOffsetsByTimestampStrategy": "latest",
    })

for timeMs in (first, second, third):
    for address in addresses:
        show(timeMs, options(session.read, address, timeMs).load())
for number, address in enumerate(addresses):
    rows = options(session.readStream, address, second).load()
    query = rows.writeStream.format("memory").queryName(f"read{number}").trigger(availableNow=True).start()
    query.awaitTermination()
    show("a stream", session.table(f"read{number}"))
session.stop()
"""


class Stored(NamedTuple):
    """
    @ivar names: of the topics.
    @ivar beginMs: the time of the first record.
    @ivar nowMs: when they were produced.
    """

    names: tuple[str, ...]
    beginMs: int
    nowMs: int


class SameAnswersTests(SynchronousTestCase):
    """Apache Kafka and the broker are asked the same."""

    kinds: ClassVar[Stored | None] = None

    @classmethod
    def setUpClass(cls) -> None:
        cls.kafka = ApacheKafka()
        cls.addClassCleanup(cls.kafka.remove)
        cls.kafka.start()
        cls.broker = BrokerProcess()
        cls.addClassCleanup(cls.broker.remove)
        cls.broker.start()

    def setUp(self) -> None:
        # Kafka, whose answers are expected, and the broker.
        self.addresses = [self.kafka.address, self.broker.address]
        self.admins = [AdminClient({"bootstrap.servers": each, "log_level": 0}) for each in self.addresses]
        for admin in self.admins:
            # Kafka takes some seconds to start.
            admin.list_topics(timeout=PATIENCE_SECONDS)
        self.clients = [RawClient(port) for port in (self.kafka.port, self.broker.port)]
        for client in self.clients:
            self.addCleanup(client.close)

    def create(self, name: str, **config: str) -> list[int]:
        """
        Create a topic on both.

        @return: the error codes.
        """
        codes = []
        for admin in self.admins:
            new = NewTopic(name, 1, 1, config=config)
            (created,) = admin.create_topics([new], request_timeout=PATIENCE_SECONDS).values()
            error = created.exception(PATIENCE_SECONDS)
            codes.append(0 if error is None else error.args[0].code())
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Kafka says that there is a topic before the broker that has it knows of it.
        while not any(codes) and any(error for error, *_ in self.lookUp(name, _LATEST)):
            self.assertLess(time.monotonic(), deadline, f"{name} is not there")
            time.sleep(0.05)
        return codes

    def ask(self, request: Any, answer: Callable[[Any], Any]) -> list[Any]:
        """Ask both."""
        return [answer(client.ask(request)) for client in self.clients]

    def produce(self, topic: str, value: bytes) -> list[int]:
        """
        Produce a batch.

        @return: the error codes.
        """
        return self.ask(
            produceRequest(topic, value), lambda answer: int(answer.responses[0].partition_responses[0].error_code)
        )

    def lookUp(self, topic: str, timestampMs: int) -> list[Any]:
        """The error, the offset and the time of the record that is found by time."""

        def found(answer: Any) -> Any:
            (each,) = answer.topics[0].partitions
            foundMs = each.timestamp if isinstance(each.timestamp, int) else each.timestamp.timestamp() * 1000
            return int(each.error_code), each.offset, round(foundMs)

        wanted = {"partition_index": 0, "timestamp": timestampMs}
        topics = [{"name": topic, "partitions": [wanted]}]
        return self.ask(requestOf("ListOffsets", 7, topics=topics), found)

    def test_batches(self) -> None:
        """Of batches with wrong contents the same are stored, and errors are the same, but for some on purpose."""
        self.assertEqual(self.create("hostile"), [0, 0])
        for name, each in hostileBatches(int(time.time() * 1000)).items():
            expected = [each.kafka, each.kafka if each.ours is None else each.ours]
            self.assertEqual(self.produce("hostile", each.batch), expected, name)

    def test_names(self) -> None:
        """The same names collide with others."""
        for name, code in (
            ("team.orders_eu", 0),
            ("team_orders.eu", 17),
            ("team.orders.eu", 17),
            ("team-orders.eu", 0),
        ):
            self.assertEqual(self.create(name), [code, code], name)

    def stored(self) -> Stored:
        """Topics that both have, each with two batches of one kind; made once."""
        cls = type(self)
        if cls.kinds is None:
            nowMs = int(time.time() * 1000)
            T = nowMs - HOUR_MS
            unordered, many = [T, T + 3000, T + 1000], [*range(T, T + 10_000, 10)]
            kinds: dict[str, tuple[list[int], int, dict[str, str]]] = {
                **{name: (unordered, codec, {}) for codec, name in enumerate(_CODECS)},
                "thousand": (many, 0, {}),
                "thousand-gzip": (many, 1, {}),
                "none": ([-1, -1, -1], 0, {}),
                _STAMPED: (unordered, 0, {"message.timestamp.type": "LogAppendTime"}),
            }
            for name, (times, codec, config) in kinds.items():
                self.assertEqual(self.create(name, **config), [0, 0])
                payload = b"".join(record(number, each - times[0]) for number, each in enumerate(times))
                packed = [*_CODECS.values()][codec](payload)
                header = {"count": len(times), "attributes": codec, "baseMs": times[0], "maxMs": max(times)}
                for _ in range(2):
                    self.assertEqual(self.produce(name, batch(packed, nowMs, **header)), [0, 0])
                    # The next has another append time.
                    time.sleep(0.002)
            cls.kinds = Stored(tuple(kinds), T, nowMs)
        return cls.kinds

    def ran(self, commands: Sequence[Sequence[str]]) -> list[str]:
        """What programs print that run side by side."""
        running = [
            subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for each in commands
        ]
        return [each.communicate(timeout=PATIENCE_SECONDS)[0] for each in running]

    def test_times(self) -> None:
        """The same records are found by time, whatever kind of batch they are in."""
        names, T, nowMs = self.stored()
        times = [T, T + 1, T + 1001, T + 3000, T + 3001, T + 9985, T + 9991, nowMs * 2]
        for name, askedMs in itertools.product(names, (*_NEGATIVE, 0, *times)):
            kafka, ours = self.lookUp(name, askedMs)
            if name == _STAMPED and kafka[2] >= 0:
                # Both have times of their own.
                self.assertGreaterEqual(ours[2], nowMs)
                kafka, ours = kafka[:2], ours[:2]
            self.assertEqual(ours, kafka, (name, askedMs - T))

    def test_tools(self) -> None:
        """Kafka's tools find the same by time, and reset groups to the same."""
        names, T, _ = self.stored()

        def both(tool: str, *arguments: str) -> list[list[str]]:
            commands = [
                java(f"org.apache.kafka.tools.{tool}", "--bootstrap-server", each, *arguments)
                for each in self.addresses
            ]
            return [sorted(" ".join(line.split()) for line in each.splitlines()) for each in self.ran(commands)]

        topics = [word for name in names for word in ("--topic", name)]
        group = "consumer.group.ConsumerGroupCommand"
        for asked, gzip, thousand in ((T + 1, 1, 1), (T + 1001, 1, 101), (T + 9985, 6, 999)):
            moment = datetime.fromtimestamp(asked / 1000, UTC).isoformat(timespec="milliseconds")
            kafka, ours = both(group, "--reset-offsets", "--group", "g", "--to-datetime", moment, "--execute", *topics)
            self.assertEqual(ours, kafka)
            self.assertLessEqual({f"g gzip 0 {gzip}", f"g thousand 0 {thousand}"}, {*kafka})
        for asked, gzip in ((_MAX_TIMESTAMP, 1), (_LATEST, 6), (T + 1, 1)):
            kafka, ours = both("GetOffsetShell", "--time", str(asked), "--topic-partitions", ",".join(names))
            self.assertEqual(ours, kafka)
            self.assertIn(f"gzip:0:{gzip}", kafka)

    def test_spark(self) -> None:
        """Spark reads the same from C{startingTimestamp} on, at once and as a stream."""
        names, T, _ = self.stored()
        jars = Path(fetched("Spark's Kafka source", f"spark-sql-kafka-{CONNECTOR}", [_CONNECTOR])).parent
        used = ",".join(str(each) for each in jars.iterdir() if each.name.startswith(_JARS))
        times = [T + 1, T + 1001, T + 9985]
        command = [sys.executable, "-c", SPARK, used, self.mktemp(), *self.addresses, ",".join(names), *map(str, times)]
        ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=SPARK_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertEqual(len(rows), 2 * (len(times) + 1))
        for (what, kafka), (_, ours) in zip(rows[::2], rows[1::2], strict=True):
            self.assertEqual(ours, kafka, what)
        # Of each topic the first offset, and how many rows.
        (_, first), (_, last) = rows[0], rows[4]
        self.assertEqual((first["gzip"], first["thousand"], last["thousand"]), ([1, 5], [1, 1999], [999, 1001]))
