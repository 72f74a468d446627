"""Tests for L{admission.kafka.broker.api.fetchapi}."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from kio.schema.errors import ErrorCode

from admission.interfaces import PARKED, RESPONSES
from admission.kafka.broker.api import fetchapi
from admission.kafka.broker.api.fetchapi import _MIN_READ_BYTES, PartitionsFetch, Wanted
from admission.kafka.broker.brokerbackend import DECODED_ELEMENT_BYTES, PARKED_REQUEST_BYTES
from admission.kafka.broker.log.interface import Partition
from admission.timeslices import SLICE_SECONDS
from tests.kit.brokerfixture import POOL_BYTES, BrokerTestCase, Client, batchOf, codes, fetchFields, produceFields
from tests.kit.workedclock import WorkedClock


class FetchTests(BrokerTestCase):
    """A fetch that is satisfied is answered at once."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", 2)
        self.first, self.second = self.events.partitions
        self.client = self.connect()

    def test_everyVersion(self) -> None:
        """Stored batches come back as they are stored, in every version."""
        stored = self.store(self.first, b"1") + self.store(self.first, b"2", b"3")
        for apiVersion in range(4, 18):
            (fetched,) = self.client.fetch(self.events, 0, apiVersion=apiVersion)
            self.assertEqual((fetched.error_code, fetched.partition_index), (0, 0))
            self.assertEqual((fetched.high_watermark, fetched.last_stable_offset), (3, 3))
            self.assertEqual(fetched.records, stored)

    def test_outOfRange(self) -> None:
        """Offsets before the start and behind the end are out of range, which is told at once."""
        self.store(self.first, b"1")
        for offset in (-1, 2, 2**62):
            fetched = self.client.fetch(self.events, offset, maxWaitMs=1000)
            self.assertEqual(codes(fetched), [ErrorCode.offset_out_of_range])

    def test_unknown(self) -> None:
        """Topics and partitions that are not there are told at once, together with what the others have."""
        stored = self.store(self.second, b"1")
        partitions = [{"partition": index, "partition_max_bytes": 1000} for index in (-1, 1, 2)]
        topics = [{"topic": "events", "partitions": partitions}, {"topic": "none", "partitions": partitions[:1]}]
        answer = self.client.ask("Fetch", 12, max_wait=1000, min_bytes=10_000, max_bytes=10_000, topics=topics)
        known, unknown = answer.responses
        self.assertEqual(
            codes(known.partitions),
            [ErrorCode.unknown_topic_or_partition, ErrorCode.none, ErrorCode.unknown_topic_or_partition],
        )
        self.assertEqual(known.partitions[1].records, stored)
        self.assertEqual((unknown.topic, codes(unknown.partitions)), ("none", [ErrorCode.unknown_topic_or_partition]))

    def test_unknownId(self) -> None:
        """An id that no topic has, the one of all zeros among them, is answered with an error of its own."""
        for topicId in (uuid4(), None):
            topics = [{"topic_id": topicId, "partitions": [{"partition": 0}]}]
            for apiVersion in (13, 17):
                (answer,) = self.client.ask("Fetch", apiVersion, max_wait=1000, topics=topics).responses
                self.assertEqual((answer.topic_id, codes(answer.partitions)), (topicId, [ErrorCode.unknown_topic_id]))

    def test_leaderEpoch(self) -> None:
        """
        A leader epoch from the future is not known, and a client with one from the past has to look for the records
        that it has read; that of this broker is right.
        """
        self.log.leaderEpoch = 1
        for epoch, errorCode in (
            (-1, 0),
            (0, ErrorCode.fenced_leader_epoch),
            (1, 0),
            (2, ErrorCode.unknown_leader_epoch),
        ):
            partitions = [{"partition": 0, "current_leader_epoch": epoch}]
            answer = self.client.ask("Fetch", 12, topics=[{"topic": "events", "partitions": partitions}])
            self.assertEqual(codes(answer.responses[0].partitions), [errorCode])
            partitions = [{"partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}]
            listed = self.client.ask("ListOffsets", 7, topics=[{"name": "events", "partitions": partitions}])
            self.assertEqual(codes(listed.topics[0].partitions), [errorCode])

    def test_endOfEpoch(self) -> None:
        """OffsetForLeaderEpoch tells where the records of an epoch end."""
        (partition,) = self.topic("epochs").partitions
        for epoch in (0, 2):
            self.log.leaderEpoch = epoch
            self.store(partition, b"1", b"2")
        self.log.leaderEpoch = 3

        def ends(apiVersion: int, *asked: tuple[int, int], current: int = -1) -> list[tuple[int, int, int]]:
            partitions = [
                {"partition": index, "leader_epoch": epoch, "current_leader_epoch": current} for index, epoch in asked
            ]
            fields = {"topics": [{"topic": "epochs", "partitions": partitions}]}
            (topic,) = self.client.ask("OffsetForLeaderEpoch", apiVersion, **fields).topics
            return [(each.error_code, each.leader_epoch, each.end_offset) for each in topic.partitions]

        for apiVersion in range(2, 5):
            found = [ends(apiVersion, (0, epoch))[0] for epoch in range(-1, 5)]
            self.assertEqual(found, [(0, -1, -1), (0, 0, 2), (0, 0, 2), (0, 2, 4), (0, 2, 4), (0, -1, -1)])
        self.assertEqual(ends(4, (0, 0), current=2), [(ErrorCode.fenced_leader_epoch, -1, -1)])
        self.assertEqual(ends(4, (1, 0)), [(ErrorCode.unknown_topic_or_partition, -1, -1)])
        self.assertEqual(ends(4, (0, 0), (0, 0)), [(ErrorCode.invalid_request, -1, -1)] * 2)

    def test_sessionsDeclined(self) -> None:
        """A client that wants a session gets none, and one that claims to have one learns that it is not known."""
        self.store(self.first, b"1")
        fields = fetchFields(self.events, 0)
        for apiVersion in (7, 12, 17):
            begun = self.client.ask("Fetch", apiVersion, session_id=0, session_epoch=0, **fields)
            self.assertEqual((begun.error_code, begun.session_id, len(begun.responses)), (0, 0, 1))
            claimed = self.client.ask("Fetch", apiVersion, session_id=5, session_epoch=3, **fields)
            self.assertEqual(claimed.error_code, ErrorCode.fetch_session_id_not_found)
            self.assertEqual((claimed.session_id, claimed.responses), (0, ()))

    def test_nothingAsked(self) -> None:
        """A fetch of no partitions waits like any other that finds nothing."""
        self.client.send("Fetch", 12, max_wait=500, min_bytes=1, topics=[])
        self.assertEqual(self.client.waiting(), 0)
        self.clock.advance(0.5)
        self.assertEqual(self.client.receive().responses, ())

    def test_maxBytes(self) -> None:
        """No batch is added that would exceed what all partitions may return together."""
        batches = [self.store(self.first, bytes(100)), self.store(self.first, bytes(100))]
        self.store(self.second, bytes(100))
        sizeBytes = len(batches[0])
        first, second = self.client.fetch(self.events, 0, 0, maxBytes=2 * sizeBytes)
        self.assertEqual((first.records, second.records), (b"".join(batches), b""))
        first, second = self.client.fetch(self.events, 0, 0, maxBytes=3 * sizeBytes - 1)
        self.assertEqual((len(first.records), len(second.records)), (2 * sizeBytes, 0))
        first, second = self.client.fetch(self.events, 0, 0, maxBytes=3 * sizeBytes)
        self.assertEqual((len(first.records), len(second.records)), (2 * sizeBytes, sizeBytes))

    def test_partitionMaxBytes(self) -> None:
        """No batch is added that would exceed what its partition may return."""
        batch = self.store(self.first, bytes(100))
        self.store(self.first, bytes(100))
        self.store(self.second, bytes(100))
        first, second = self.client.fetch(self.events, 0, 0, partitionMaxBytes=2 * len(batch) - 1)
        self.assertEqual((first.records, second.records), (batch, batch))

    def test_firstBatchWhole(self) -> None:
        """The first batch that is found comes whole whatever the limits say, and only that one."""
        batch = self.store(self.second, bytes(1000))
        self.store(self.second, bytes(10))
        for limits in ({"maxBytes": 1}, {"partitionMaxBytes": 1}, {"maxBytes": 0}, {"partitionMaxBytes": -5}):
            first, second = self.client.fetch(self.events, 0, 0, **limits)
            self.assertEqual((first.records, second.records), (b"", batch), limits)

    def test_onlyFirstIsWhole(self) -> None:
        """A second partition whose batch is too large for what is left has to wait for its turn."""
        batch = self.store(self.first, bytes(1000))
        self.store(self.second, bytes(1000))
        first, second = self.client.fetch(self.events, 0, 0, maxBytes=10)
        self.assertEqual((first.records, second.records), (batch, b""))

    def test_askedTwice(self) -> None:
        """A partition that is asked for twice is read once, or small requests could be much work."""
        batch = self.store(self.first, b"1")
        topic = {"topic": "events", "partitions": [{"partition": 0, "partition_max_bytes": 1000}] * 2}
        answer = self.client.ask("Fetch", 12, max_wait=500, min_bytes=1000, max_bytes=1000, topics=[topic, topic])
        partitions = [partition for each in answer.responses for partition in each.partitions]
        self.assertEqual([each.records for each in partitions], [batch, b"", b"", b""])
        self.assertEqual(codes(partitions), [ErrorCode.none, *[ErrorCode.invalid_request] * 3])

    def test_largestResponse(self) -> None:
        """One response stays within a quarter of the pool, however much the client would take."""
        for _ in range(5):
            self.store(self.first, bytes(600_000))
        (fetched,) = self.client.fetch(self.events, 0, maxBytes=2**31 - 1, partitionMaxBytes=2**31 - 1)
        self.assertEqual(len(fetched.records) // 600_000, 3)
        self.assertLess(len(fetched.records), POOL_BYTES // 4)

    def test_shortMemory(self) -> None:
        """When memory is short, so are responses."""
        for _ in range(5):
            self.store(self.first, bytes(300_000))
        hoard = self.pool.charge(POOL_BYTES, "hoard")
        (fetched,) = self.client.fetch(self.events, 0, maxBytes=2**31 - 1, partitionMaxBytes=2**31 - 1)
        hoard.release()
        self.assertEqual(len(fetched.records) // 300_000, 3)
        self.assertLess(len(fetched.records), _MIN_READ_BYTES)

    def test_closedLog(self) -> None:
        """A log that cannot be read is an error of each partition."""
        self.successResultOf(self.log.close())
        self.assertEqual(codes(self.client.fetch(self.events, 0, 0)), [ErrorCode.kafka_storage_error] * 2)


class WaitingTests(BrokerTestCase):
    """A fetch that is not satisfied waits."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", 2)
        self.first, self.second = self.events.partitions
        self.client = self.connect()

    def wait(self, client: Client, *offsets: int, apiVersion: int = 12, **others: Any) -> None:
        """Send a fetch that must wait."""
        waiting = self.purgatory.watched
        client.send("Fetch", apiVersion, **fetchFields(self.events, *offsets, **{"maxWaitMs": 500, **others}))
        self.assertEqual(client.waiting(), 0)
        self.assertEqual(self.purgatory.watched, waiting + 1)

    def fetched(self, client: Client) -> list[bytes]:
        """The records of the response that must be there, by partition."""
        return [each.records for each in client.receive().responses[0].partitions]

    def test_expires(self) -> None:
        """After C{max_wait} a fetch is answered with what there is; nobody waits for longer than the broker allows."""
        for maxWaitMs, seconds in ((500, 0.5), (2**31 - 1, 60)):
            self.wait(self.client, 0, maxWaitMs=maxWaitMs)
            self.clock.advance(seconds - 0.001)
            self.assertEqual(self.client.waiting(), 0)
            self.clock.advance(0.001)
            self.assertEqual(self.fetched(self.client), [b""])

    def test_append(self) -> None:
        """The append that satisfies a fetch completes it, in the turn of its commit."""
        self.wait(self.client, 0, 0)
        batch = self.store(self.second, b"1")
        self.assertEqual(self.fetched(self.client), [b"", batch])

    def test_notBeforeCommit(self) -> None:
        """An append that is not committed satisfies nothing."""
        self.wait(self.client, 0)
        producer = self.connect()
        producer.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.assertEqual(self.first.nextOffset, 1)
        self.assertEqual((self.purgatory.watched, self.client.waiting()), (1, 0))
        self.clock.advance(0)
        self.assertEqual((self.client.waiting(), producer.waiting()), (1, 1))

    def test_minBytes(self) -> None:
        """A fetch waits until all of its partitions together have as many bytes as it wants."""
        sizeBytes = len(batchOf(bytes(100)))
        self.wait(self.client, 0, 0, minBytes=2 * sizeBytes + 1)
        batches = [self.store(partition, bytes(100)) for partition in self.events.partitions]
        self.assertEqual(self.client.waiting(), 0)
        more = self.store(self.second, b"")
        self.assertEqual(self.fetched(self.client), [batches[0], batches[1] + more])

    def test_minBytesGrowing(self) -> None:
        """What a partition had when it was looked at before is not counted again."""
        sizeBytes = len(batchOf(bytes(100)))
        self.wait(self.client, 0, minBytes=3 * sizeBytes)
        for expected in (0, 0, 1):
            self.store(self.first, bytes(100))
            self.assertEqual(self.client.waiting(), expected)

    def test_minBytesOfSome(self) -> None:
        """What a partition may not return does not count towards what is wanted."""
        self.store(self.first, bytes(1000))
        self.wait(self.client, 0, 0, minBytes=200, partitionMaxBytes=100)
        self.store(self.second, bytes(1000))
        self.assertEqual(len(self.fetched(self.client)[0]), len(batchOf(bytes(1000))))

    def test_onlyTheChanged(self) -> None:
        """When one partition has changed, the others that a fetch waits for are not looked at."""
        counted: list[int] = []
        count = PartitionsFetch._count

        def counting(fetch: PartitionsFetch, partition: Partition, wanted: Wanted) -> None:
            counted.append(partition.index)
            count(fetch, partition, wanted)

        self.wait(self.client, 0, 0, minBytes=10_000)
        self.patch(PartitionsFetch, "_count", counting)
        for partition in (self.second, self.second, self.first):
            self.store(partition, b"1")
        self.assertEqual((counted, self.client.waiting()), ([1, 1, 0], 0))

    def test_noMemoryToWait(self) -> None:
        """
        Waiting takes memory: while there is none, the answer is empty, and does not name the partitions.  The client
        waits itself before it asks again: no longer than it would have, and for half a second at most.
        """
        hoard = self.pool.charge(POOL_BYTES, "hoard")
        for maxWaitMs, waitMs in ((200, 200), (60_000, 500)):
            answer = self.client.ask("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=maxWaitMs))
            self.assertEqual((answer.responses, answer.throttle_time), ((), timedelta(milliseconds=waitMs)))
            self.client.send("Fetch", 12, **fetchFields(self.events, 0))
            self.clock.advance(waitMs / 1000 - 0.01)
            self.assertEqual(self.client.waiting(), 0)
            self.clock.advance(0.01)
            self.assertEqual(self.fetched(self.client), [b""])
        hoard.release()
        self.assertEqual((self.purgatory.watched, self.pool.usedBytesByPurpose.get(PARKED, 0)), (0, 0))

    def test_givenUp(self) -> None:
        """When others need the memory, the largest fetches that wait get empty answers, and no more than it takes."""
        self.patch(fetchapi, "_MANY_PARTITIONS", 2)
        topics = [self.topic(name, partitionCount) for name, partitionCount in (("a", 1), ("b", 2), ("c", 4))]
        clients = [self.connect() for _ in topics]
        for client, topic in zip(clients, topics, strict=True):
            fields = fetchFields(topic, *[0] * len(topic.partitions), maxWaitMs=500)
            client.send("Fetch", 12, **fields)
        small, large, larger = clients
        hoard = self.pool.charge(self.pool.availableBytes + 1, "hoard")
        self.gate.pressure.begin()
        self.clock.advance(0)
        self.assertEqual([client.waiting() for client in clients], [0, 0, 1])
        self.assertEqual((larger.receive().responses, len(self.broker.waitingFetches)), ((), 1))
        hoard.release()
        self.clock.advance(1)
        self.assertEqual((self.fetched(small), self.fetched(large)), ([b""], [b""] * 2))
        self.assertEqual(self.broker.waitingFetches, {})

    def test_wokenTogether(self) -> None:
        """
        Of many fetches that one batch wakes, no more are read than there is memory for; the others are when clients
        have taken theirs.
        """
        sizeBytes = POOL_BYTES // 5
        clients = [self.connect() for _ in range(20)]
        for client in clients:
            client.transport.isTaking = False
            self.wait(client, 0, maxBytes=POOL_BYTES, partitionMaxBytes=POOL_BYTES)
        self.store(self.first, bytes(sizeBytes))
        for _ in range(20):
            self.clock.advance(0)
        held = self.pool.usedBytesByPurpose[RESPONSES]
        self.assertLess(held, POOL_BYTES + 2 * sizeBytes)
        self.assertGreater(held, POOL_BYTES - sizeBytes)
        for client in clients:
            client.transport.isTaking = True
            client.transport.wake()
        self.clock.advance(0)
        for client in clients:
            self.assertEqual(len(self.fetched(client)[0]), len(batchOf(bytes(sizeBytes))))

    def test_manyWoken(self) -> None:
        """If one batch wakes many, as many go on in a turn as others can wait for; large ones delay nobody."""
        self.patch(self.broker, "clock", WorkedClock(self.clock, SLICE_SECONDS / 10))
        greedy = [self.connect() for _ in range(11)]
        for client in greedy:
            self.wait(client, 0, minBytes=10_000)
        clients = [self.connect() for _ in range(25)]
        for client in clients:
            self.wait(client, 0)
        woken: list[int] = []
        check = self.purgatory.checkAndComplete

        def checkCounted(key: Hashable) -> int:
            completed = check(key)
            woken.append(completed)
            return completed

        self.patch(self.purgatory, "checkAndComplete", checkCounted)
        batch = self.store(self.first, b"1")
        self.assertEqual(woken, [10, 10, 5])
        self.assertEqual([self.fetched(client) for client in clients], [[batch]] * len(clients))
        self.assertEqual(self.purgatory.watched, len(greedy))

    def test_manyDrained(self) -> None:
        """When the broker drains, all go on at once."""
        self.patch(self.broker, "clock", WorkedClock(self.clock, SLICE_SECONDS))
        clients = [self.connect() for _ in range(5)]
        for client in clients:
            self.wait(client, 0)
        self.broker.drain()
        self.assertEqual(self.purgatory.watched, 0)

    def test_readOnce(self) -> None:
        """
        However often records come, what a waiting fetch would get is looked up on the disk once, and again when records
        were removed.
        """
        batches = [self.store(self.first, bytes([index])) for index in range(2)]
        counts: list[int] = []
        bytesAvailable = self.log.bytesAvailable

        def counted(partition: Partition, offset: int) -> int:
            counts.append(offset)
            return bytesAvailable(partition, offset)

        self.patch(self.log, "bytesAvailable", counted)
        self.wait(self.client, 1, minBytes=4 * len(batches[0]))
        for index in range(2, 4):
            batches.append(self.store(self.first, bytes([index])))
        self.assertEqual((self.purgatory.watched, counts), (1, [1]))
        self.first.logStartOffset = 1
        batches.append(self.store(self.first, b"4"))
        self.assertEqual((self.purgatory.watched, counts), (0, [1, 1]))
        self.assertEqual(self.fetched(self.client), [b"".join(batches[1:])])

    def test_impossibleMinBytes(self) -> None:
        """A fetch that wants more than the broker would send is satisfied by as much as that."""
        self.wait(self.client, 0, minBytes=2**31 - 1, maxBytes=2**31 - 1, partitionMaxBytes=2**31 - 1)
        for _ in range(3):
            self.store(self.first, bytes(POOL_BYTES // 12))
        self.assertEqual(self.client.waiting(), 1)
        self.assertEqual(self.purgatory.watched, 0)

    def test_noWaiting(self) -> None:
        """Without time to wait, or without anything wanted, a fetch is answered at once."""
        for limits in ({"maxWaitMs": 0}, {"maxWaitMs": -1}, {"maxWaitMs": 500, "minBytes": 0}):
            self.assertEqual(self.client.fetch(self.events, 0, **limits)[0].records, b"")
        self.assertEqual(self.purgatory.watched, 0)

    def test_deleted(self) -> None:
        """When a topic is deleted, a client that waits for it hears of it at once."""
        for apiVersion in (12, 17):
            client = self.connect()
            self.wait(client, 0, 0, apiVersion=apiVersion)
            self.log.deleteTopic("events")
            self.clock.advance(0)
            (answer,) = client.receive().responses
            self.assertEqual(codes(answer.partitions), [ErrorCode.unknown_topic_or_partition] * 2)
            self.events = self.topic("events", 2)

    def test_recreated(self) -> None:
        """A client that waited for a deleted topic is not answered with the records of its successor."""
        self.wait(self.client, 0)
        self.log.deleteTopic("events")
        successor = self.topic("events")
        self.store(successor.partitions[0], b"1")
        (answer,) = self.client.receive().responses
        self.assertEqual(codes(answer.partitions), [ErrorCode.unknown_topic_or_partition])

    def test_memory(self) -> None:
        """
        A fetch that waits holds no frame and no turn; what was decoded is charged until it is answered,
        and so is what waits.
        """
        self.wait(self.client, 0, 0)
        self.assertEqual((self.frameBytes, self.gate.turns.runningRequests), (0, 0))
        # Elements: a topic and two partitions.
        self.assertEqual(self.pool.usedBytesByPurpose[PARKED], PARKED_REQUEST_BYTES + 3 * DECODED_ELEMENT_BYTES)
        self.clock.advance(1)
        self.assertEqual(self.pool.usedBytesByPurpose[PARKED], 0)
        self.assertEqual(self.fetched(self.client), [b"", b""])

    def test_pipelinedFetches(self) -> None:
        """A fetch behind a fetch begins to wait when the first is answered."""
        self.wait(self.client, 0)
        self.client.send("Fetch", 12, **fetchFields(self.events, 1, maxWaitMs=500))
        first = self.store(self.first, b"1")
        self.assertEqual(self.fetched(self.client), [first])
        self.assertEqual((self.client.waiting(), self.purgatory.watched), (0, 1))
        second = self.store(self.first, b"2")
        self.assertEqual(self.fetched(self.client), [second])

    def test_failure(self) -> None:
        """A fetch that fails when it is looked at again closes its connection, and the others are answered."""
        other = self.connect()
        self.wait(self.client, 0)
        self.wait(other, 0)
        failures: list[Exception] = [ZeroDivisionError("looking")]
        originals = self.log.bytesAvailable, self.log.read

        def failOnce(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if failures:
                    raise failures.pop(0)
                return original(*args, **kwargs)

            return call

        self.log.bytesAvailable = failOnce(originals[0])  # type: ignore[method-assign]
        self.log.read = failOnce(originals[1])  # type: ignore[method-assign]
        batch = self.store(self.first, b"1")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertRefused(self.client, "its request could not be answered")
        self.assertEqual(self.fetched(other), [batch])

    def test_unencodable(self) -> None:
        """A fetch whose answer cannot be written closes its connection rather than leave it waiting for ever."""
        self.wait(self.client, 0)
        self.client.protocol.respond = None  # type: ignore[method-assign, assignment]
        self.clock.advance(0.5)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        self.assertRefused(self.client, "its request could not be answered")


class ListOffsetsTests(BrokerTestCase):
    """ListOffsets finds where to begin."""

    def setUp(self) -> None:
        """Store records of the seconds 1 to 4 in three batches."""
        super().setUp()
        self.events = self.topic("events", 2)
        self.client = self.connect()
        for timestampMs, values in ((1000, [b"1"]), (3000, [b"2", b"3"]), (2000, [b"4"])):
            self.store(self.events.partitions[0], *values, timestampMs=timestampMs)

    def offsets(self, apiVersion: int, *wanted: tuple[int, int], name: str = "events") -> list[tuple[int, int, int]]:
        """
        Ask for pairs of partition and timestamp.

        @return: error codes, offsets and timestamps.
        """
        partitions = [{"partition_index": index, "timestamp": timestampMs} for index, timestampMs in wanted]
        answer = self.client.ask("ListOffsets", apiVersion, topics=[{"name": name, "partitions": partitions}])
        return [(each.error_code, each.offset, each.timestamp) for each in answer.topics[0].partitions]

    def test_ends(self) -> None:
        """-1 is the end and -2 the start, in every version."""
        for apiVersion in range(1, 11):
            self.assertEqual(self.offsets(apiVersion, (0, -1)), [(0, 4, -1)])
            self.assertEqual(self.offsets(apiVersion, (0, -2)), [(0, 0, -1)])

    def test_times(self) -> None:
        """
        A time is answered with the first record that is not older, or with no offset; some negative numbers mean
        something else.
        """
        for timestampMs, expected in (
            (0, (0, 0, 1000)),
            (1001, (0, 1, 3000)),
            (3000, (0, 1, 3000)),
            (3001, (0, -1, -1)),
            # The first record with the largest timestamp.
            (-3, (0, 1, 3000)),
            # Everything is local, and nothing is elsewhere.
            (-4, (0, 0, -1)),
            (-5, (0, -1, -1)),
        ):
            self.assertEqual(self.offsets(9, (0, timestampMs)), [expected], timestampMs)

    def test_unknownTimes(self) -> None:
        """A negative time that means nothing, or nothing yet in the version of the request, is refused."""
        refused = (ErrorCode.unsupported_version, -1, -1)
        for timestampMs, firstVersion in ((-3, 7), (-4, 8), (-5, 9), (-6, 11), (-(2**63), 11)):
            answers = [self.offsets(version, (0, timestampMs), (2, timestampMs)) for version in range(1, 11)]
            self.assertEqual([each[0] == refused for each in answers], [each < firstVersion for each in range(1, 11)])
            self.assertEqual(answers[0][1], refused)

    def test_emptyPartition(self) -> None:
        """An empty partition begins and ends at 0 and has no record of any time."""
        for timestampMs, offset in ((-1, 0), (-2, 0), (-3, -1), (0, -1)):
            self.assertEqual(self.offsets(7, (1, timestampMs)), [(0, offset, -1)])

    def test_leaderEpoch(self) -> None:
        """From version 4 on an offset that was found carries the leader epoch."""
        partitions = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 1, "timestamp": 5}]
        answer = self.client.ask("ListOffsets", 4, topics=[{"name": "events", "partitions": partitions}])
        self.assertEqual([each.leader_epoch for each in answer.topics[0].partitions], [0, -1])

    def test_unknown(self) -> None:
        """Topics and partitions that are not there are told."""
        missing = (ErrorCode.unknown_topic_or_partition, -1, -1)
        self.assertEqual(self.offsets(5, (2, -1), (-1, -1)), [missing, missing])
        self.assertEqual(self.offsets(5, (0, -1), name="none"), [missing])

    def test_repeated(self) -> None:
        """A partition that is named twice is refused both times: searching takes long, and requests are small."""
        refused = (ErrorCode.invalid_request, -1, -1)
        self.assertEqual(self.offsets(5, (0, 0), (1, -1), (0, 5)), [refused, (0, 0, -1), refused])
