"""Imitates clients that write to so many partitions that their files cannot be flushed as soon as they are written."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from kio.schema.errors import ErrorCode

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import batchOf, requestFrame, requestOf
from tests.kit.goodclient import HOST, quantile
from tests.kit.rawclient import RawClient, produceRequest

PARTITIONS = sized(1_500, 4_500)
CLIENTS = 4
OWN_PARTITIONS = 200
SECONDS = sized(4.0, 30.0)


class ManyFilesTests(AttackTestCase):
    """One address that writes a record to each of many partitions at a time, again and again."""

    poolBytes = 64 * MIB
    settings = (f"max.partitions={PARTITIONS + OWN_PARTITIONS + 10}", f"log.max.open.files={sized(200, 4000)}")

    def test_produce(self) -> None:
        """A client with a partition of its own is served."""
        batch = batchOf(b"")
        with self.connect() as client:
            topics = [
                {"name": name, "num_partitions": count, "replication_factor": 1}
                for name, count in (("wide", PARTITIONS), ("own", OWN_PARTITIONS))
            ]
            client.ask(requestOf("CreateTopics", 7, topics=topics, timeout=60_000))
        partitions = [{"index": index, "records": batch} for index in range(PARTITIONS)]
        topics = [{"name": "wide", "partition_data": partitions}]
        frame = requestFrame(requestOf("Produce", 9, acks=1, timeout=30_000, topic_data=topics), 1)
        until = time.monotonic() + SECONDS

        def produce(client: RawClient) -> int:
            count = 0
            while time.monotonic() < until:
                client.sendBytes(frame)
                client.receiveFrame()
                count += 1
            return count

        clients = [self.connect() for _ in range(CLIENTS)]
        with self.attack(f"Produce to {PARTITIONS} partitions"), ThreadPoolExecutor(CLIENTS) as threads:
            counts = [threads.submit(produce, each) for each in clients]
            errors, latencies = self.produceHonestly(until)
        print(
            f"{sum(each.result() for each in counts)} requests of the attacker; {len(latencies)} of others, of which"
            f" {sum(errors.values())} were refused; acks=all took {quantile(latencies, 0.5):.3f} s at the median,"
            f" {max(latencies):.3f} s at most"
        )
        for each in clients:
            each.close()
        self.require(not errors, f"others were refused with {errors}")
        self.assertAffordable()

    def produceHonestly(self, until: float) -> tuple[Counter[ErrorCode], list[float]]:
        """
        Produce from another address to one partition after another.

        @return: the errors, and how long each request took, in seconds.
        """
        errors: Counter[ErrorCode] = Counter()
        latencies = []
        with RawClient(self.broker.port, host=HOST) as honest:
            while time.monotonic() < until:
                begun = time.monotonic()
                request = produceRequest("own", batchOf(bytes(100)), partition=len(latencies) % OWN_PARTITIONS)
                answer = honest.ask(request).responses[0].partition_responses[0]
                latencies.append(time.monotonic() - begun)
                if answer.error_code:
                    errors[ErrorCode(answer.error_code)] += 1
        return errors, latencies
