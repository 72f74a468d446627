"""Clients of good manners, each a coroutine that goes on whatever becomes of its connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.kafka.wire.batches import Record, encodeBatch
from admission.kafka.wire.versions import APIS
from tests.kit.brokerfixture import fetchFields

from .history import ALL, Batch, Commit, History, Place
from .network import Connection, Disconnected, Network, Violation

_VERSIONS = {api.name: (api.minVersion, api.maxVersion) for api in APIS}
# Version 0 has no way to ask for all topics.
_VERSIONS["Metadata"] = (1, _VERSIONS["Metadata"][1])
_FORGOTTEN = (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id, ErrorCode.invalid_producer_epoch)
_LATE_SECONDS = 0.3
"""How much later than it should an answer may come, for all that the network and the machine may do."""


class Client:
    """
    @ivar isWanted: whether it is to go on.
    @ivar connection: its connection, while it has one.
    @ivar doneCount: how often it has got what it is here for.
    """

    def __init__(self, name: str, network: Network, history: History) -> None:
        self.name = name
        self.network = network
        self.history = history
        self.random = network.random
        self.isWanted = True
        self.connection: Connection | None = None
        self.doneCount = 0
        self.host = self.random.choice(["192.0.2.10", "192.0.2.11", f"198.51.100.{self.random.randrange(1, 250)}"])
        self.isTLS = self.random.random() < 0.3
        self._versions: dict[str, int] = {}

    async def run(self) -> None:
        """Be a client, until it is not wanted any more."""
        while self.isWanted:
            try:
                self.connection = await self.network.connect(self.name, self.host, self.isTLS)
                await self.live(self.connection)
            except Disconnected:
                await self.sleep(self.random.random())
            finally:
                if self.connection is not None:
                    self.connection.close()
                    self.connection = None

    async def live(self, connection: Connection) -> None:
        """What it does on one connection."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        await self.network.sleep(seconds)

    async def ask(self, name: str, /, **values: Any) -> Any:
        """Ask in the version that this client speaks."""
        assert self.connection is not None
        return await self.connection.ask(name, self.version(name), **values)

    def version(self, name: str) -> int:
        """The version of an API that it speaks."""
        if name not in self._versions:
            self._versions[name] = self.random.randint(*_VERSIONS[name])
        return self._versions[name]

    @property
    def now(self) -> float:
        return self.network.world.now


class Producer(Client):
    """
    Sends batches, several requests at a time.  An idempotent one sends again what was not acknowledged; others do not.

    @ivar isEvasive: whether it connects anew when it is told to wait.
    @ivar sentBytes: how many bytes of records were acknowledged.
    @ivar largestBytes: those of its largest request.
    """

    def __init__(
        self, name: str, network: Network, history: History, places: Sequence[Place], acks: int, isIdempotent: bool
    ) -> None:
        super().__init__(name, network, history)
        self.isEvasive = False
        self.sentBytes = self.largestBytes = 0
        self._isThrottled = False
        self._places = places
        self._acks = acks
        self._isIdempotent = isIdempotent
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[Place, int] = {}
        self._numbers: dict[Place, int] = {}
        self._unacked: list[Batch] = []
        self._window = self.random.choice([1, 2, 5])
        self._valueBytes = self.random.choice([20, 20, 300, 3000])
        self._pauseSeconds = self.random.choice([0.2, 2.0, 4.0])
        self._timeoutMs = self.random.choice([300, 30_000])

    async def live(self, connection: Connection) -> None:
        if self._isIdempotent and self._producer is None:
            await self._identify()
        inFlight: deque[Any] = deque()
        try:
            await self._produce(connection, inFlight)
        finally:
            for answer in inFlight:
                answer.addErrback(lambda failure: failure.trap(Disconnected))

    async def _produce(self, connection: Connection, inFlight: deque[Any]) -> None:
        again = deque(self._unacked)
        while self.isWanted or again or inFlight:
            if len(inFlight) < self._window and (again or self.isWanted):
                batches = [again.popleft()] if again else self._make()
                if self.random.random() < 0.05:
                    # As clients do that have not seen a topic for a while.
                    looking = self.ask("Metadata", topics=None)
                    inFlight.append(Deferred.fromCoroutine(looking).addCallback(lambda _: []))
                asking = connection.ask if self._acks else connection.tell
                answer = asking("Produce", self.version("Produce"), **self._fields(batches))
                if answer is None:
                    self.doneCount += 1
                else:
                    # What it was told counts from when it was, not from when it gets to it.
                    inFlight.append(answer.addCallback(partial(self._answered, batches)))
                if self.random.random() < 0.6:
                    continue
            failed: list[tuple[Batch, ErrorCode]] = []
            if inFlight:
                failed = await inFlight.popleft()
                while failed and inFlight:
                    failed += await inFlight.popleft()
            if self._isThrottled and self.isEvasive:
                self._isThrottled = False
                raise Disconnected
            if failed:
                await self._failed(failed)
                again = deque(self._unacked)
            await self.sleep(self._pauseSeconds * self.random.random())
        self.isWanted = False

    async def _identify(self) -> None:
        answer = await self.ask("InitProducerId", transactional_id=None, transaction_timeout=60_000, producer_id=-1)
        if answer.error_code is not ErrorCode.none:
            raise Disconnected
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    def _make(self) -> list[Batch]:
        random = self.random
        places = random.sample(list(self._places), min(len(self._places), random.choice([1, 1, 1, 2])))
        return [self._batch(place) for place in places]

    def _batch(self, place: Place) -> Batch:
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        count = self.random.choice([1, 1, 4])
        nowMs = 1_000_000_000_000 + int(self.now * 1000)
        values = [b"%s %s %d %d" % (self.name.encode(), place[0].encode(), place[1], number)] * count
        records = [
            Record(value=value + bytes(self.random.randrange(self._valueBytes)), timestampMs=nowMs) for value in values
        ]
        producer = None
        header: dict[str, int] = {}
        if self._producer is not None:
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = sequence + count
            producer = (*self._producer, sequence, sequence + count - 1)
            header = {"producerId": producer[0], "producerEpoch": producer[1], "baseSequence": sequence}
        batch = Batch(place, encodeBatch(records, **header), count, producer, number)
        self.history.sent(batch)
        self.largestBytes = max(self.largestBytes, len(batch.records))
        if self._isIdempotent:
            self._unacked.append(batch)
        return batch

    def _fields(self, batches: Sequence[Batch]) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            topics.setdefault(batch.place[0], []).append({"index": batch.place[1], "records": batch.records})
        data = [{"name": name, "partition_data": partitions} for name, partitions in topics.items()]
        return {"transactional_id": None, "acks": self._acks, "timeout": self._timeoutMs, "topic_data": data}

    def _answered(self, batches: Sequence[Batch], response: Any) -> list[tuple[Batch, ErrorCode]]:
        """@return: what was not acknowledged, and why."""
        results = {(topic.name, each.index): each for topic in response.responses for each in topic.partition_responses}
        self._isThrottled = bool(response.throttle_time)
        failed = []
        for batch in batches:
            result = results.pop(batch.place)
            code = result.error_code
            if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                offset = result.base_offset if code is ErrorCode.none and result.base_offset >= 0 else None
                self.history.acked(batch, offset, self._acks, self.now)
                self.doneCount += 1
                self.sentBytes += len(batch.records)
                if batch in self._unacked:
                    self._unacked.remove(batch)
            else:
                failed.append((batch, code))
        if results:
            raise Violation(f"{self.name} is answered for {list(results)}, which it has not sent")
        return failed

    async def _failed(self, failed: list[tuple[Batch, ErrorCode]]) -> None:
        """Find out what is to be sent again."""
        first: dict[Place, ErrorCode] = {}
        for batch, code in failed:
            first.setdefault(batch.place, code)
            if code not in (
                *_FORGOTTEN,
                ErrorCode.kafka_storage_error,
                ErrorCode.request_timed_out,
                ErrorCode.unknown_topic_or_partition,
            ):
                raise Violation(f"{self.name} is told {code.name}")
        forgotten = [place for place, code in first.items() if code in _FORGOTTEN]
        for place in forgotten:
            if self._isIdempotent and self._acks == ALL and place not in self.history.forgetful:
                raise Violation(f"{self.name} is told {first[place].name} at {place}, and has lost nothing there")
        if forgotten:
            # As clients do: what was not acknowledged may be there or not.
            self._unacked.clear()
            self._producer = None
            await self._identify()
        await self.sleep(0.1)


class Consumer(Client):
    """Reads partitions from their beginning, and expects to be told of new records at once."""

    def __init__(self, name: str, network: Network, history: History, topicName: str, partitionCount: int) -> None:
        super().__init__(name, network, history)
        self.topicName = topicName
        self._positions = [0] * partitionCount
        self._topicId: Any = None
        self._waitMs = self.random.choice([0, 500, 5000])
        self._maxBytes = self.random.choice([1, 2000, 1 << 20])

    def powerLost(self, partitions: Sequence[Any]) -> None:
        """It may have read what is not there any more."""
        self._positions = [
            min(position, partition.highWatermark)
            for position, partition in zip(self._positions, partitions, strict=True)
        ]

    async def live(self, connection: Connection) -> None:
        answer = await self.ask("Metadata", topics=None)
        ids = {topic.name: getattr(topic, "topic_id", None) for topic in answer.topics}
        self._topicId = ids.get(self.topicName)
        if self.topicName not in ids:
            raise Disconnected
        while self.isWanted:
            await self._fetch(connection)

    async def _fetch(self, connection: Connection) -> None:
        asked, positions = self.now, list(self._positions)
        topic: Any = _Topic(self.topicName, self._topicId)
        version = self.version("Fetch")
        if version >= 13 and self._topicId is None:
            version = self._versions["Fetch"] = 12
        fields = fetchFields(
            topic, *positions, maxWaitMs=self._waitMs, maxBytes=self._maxBytes, partitionMaxBytes=self._maxBytes
        )
        response = await connection.ask("Fetch", version, **fields)
        if positions != self._positions:
            # Power was lost meanwhile.
            return
        self.doneCount += 1
        isEmpty = True
        for topicResponse in response.responses:
            for each in topicResponse.partitions:
                place = (self.topicName, each.partition_index)
                if each.error_code is ErrorCode.offset_out_of_range:
                    await self._seek(place)
                    return
                if each.error_code is ErrorCode.kafka_storage_error:
                    await self.sleep(0.5)
                    return
                if each.error_code is not ErrorCode.none:
                    raise Violation(f"{self.name} is told {each.error_code.name}")
                if each.records:
                    isEmpty = False
                    position = self._positions[place[1]]
                    self._positions[place[1]] = self.history.fetched(place, position, bytes(each.records))
        if not response.throttle_time:
            if isEmpty:
                self._expectNothing(asked)
            elif self.network.isRoomy:
                self._expectInTime(asked, positions)
        if not self._waitMs or response.throttle_time:
            await self.sleep(0.3)

    def _expectNothing(self, asked: float) -> None:
        """There was nothing to read."""
        # What was acknowledged before it was asked for, or while it waited.
        until = self.now - _LATE_SECONDS if self._waitMs else asked
        for batch in self.history.batches.values():
            if batch.place[0] == self.topicName and batch.offset is not None and batch.ackedSeconds < until:
                position = self._positions[batch.place[1]]
                if batch.offset >= position and batch.acks is not None and batch.place not in self.history.forgetful:
                    raise Violation(
                        f"{self.name} was told at {self.now:.3f} that nothing is behind {position}, and {batch.place} "
                        f"{batch.offset} was acknowledged at {batch.ackedSeconds:.3f}"
                    )

    def _expectInTime(self, asked: float, positions: Sequence[int]) -> None:
        """What has come while it waited came at once."""
        for number, position in enumerate(positions):
            batch = self.history.batches.get(self.history.read.get(((self.topicName, number), position), b""))
            if batch is not None and asked < batch.ackedSeconds < self.now - _LATE_SECONDS:
                raise Violation(
                    f"{self.name} asked at {asked:.3f} for {batch.place} {position}, which was acknowledged at "
                    f"{batch.ackedSeconds:.3f}, and got it at {self.now:.3f}"
                )

    async def _seek(self, place: Place) -> None:
        """Go on with the oldest records that are kept."""
        timestamp = {"partition_index": place[1], "timestamp": -2, "current_leader_epoch": -1}
        answer = await self.ask("ListOffsets", topics=[{"name": place[0], "partitions": [timestamp]}])
        start = answer.topics[0].partitions[0].offset
        if place not in self.history.forgetful and start > 0:
            raise Violation(f"{place} begins at {start}")
        self._positions[place[1]] = max(start, 0)


class _Topic:
    def __init__(self, name: str, topicId: Any) -> None:
        self.name = name
        self.topicId = topicId


class Member(Client):
    """Is in a group, and commits offsets of one partition, for which it is the only one to commit."""

    def __init__(self, name: str, network: Network, history: History, group: str, number: int) -> None:
        super().__init__(name, network, history)
        self._group = group
        self._number = number
        self._memberId = ""
        self._commitCount = 0
        self._sessionMs = self.random.choice([6000, 10_000])
        self.isMember = False

    async def live(self, connection: Connection) -> None:
        self.isMember = False
        key_type = {"key": self._group, "key_type": 0, "coordinator_keys": [self._group]}
        await self.ask("FindCoordinator", **key_type)
        await self._fetchOffset()
        while self.isWanted:
            generation = await self._join()
            if generation is None:
                await self.sleep(0.2)
                continue
            self.isMember = True
            while self.isWanted and await self._stay(generation):
                pass
            self.isMember = False
            if self.random.random() < 0.1:
                # Gone without a word; it may come back with its member id or without.
                if self.random.random() < 0.5:
                    self._memberId = ""
                raise Disconnected
        if self._memberId and self.random.random() < 0.7:
            members = [{"member_id": self._memberId, "group_instance_id": None, "reason": None}]
            await self.ask("LeaveGroup", group_id=self._group, member_id=self._memberId, members=members)

    async def _join(self) -> int | None:
        before = self.history.lastGeneration(self._group)
        epoch = self.network.lossCount
        protocols = [{"name": "range", "metadata": self.name.encode()}]
        answer = await self.ask(
            "JoinGroup",
            group_id=self._group,
            session_timeout_ms=self._sessionMs,
            session_timeout=self._sessionMs,
            rebalance_timeout_ms=8000,
            rebalance_timeout=8000,
            member_id=self._memberId,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=protocols,
        )
        if answer.error_code in (ErrorCode.member_id_required,):
            self._memberId = answer.member_id
            return None
        if answer.error_code is ErrorCode.unknown_member_id:
            self._memberId = ""
            return None
        if answer.error_code is ErrorCode.not_coordinator:
            # The broker stops.
            raise Disconnected
        if answer.error_code in (
            ErrorCode.rebalance_in_progress,
            ErrorCode.coordinator_not_available,
            ErrorCode.kafka_storage_error,
        ):
            return None
        if answer.error_code is not ErrorCode.none:
            raise Violation(f"{self.name} is told {answer.error_code.name} when it joins")
        if epoch == self.network.lossCount:
            if answer.generation_id < before:
                raise Violation(f"generation {answer.generation_id} of {self._group} follows {before}")
            members = [each.member_id for each in answer.members]
            self.history.joined(self._group, answer.generation_id, answer.leader, answer.member_id, members)
        self._memberId = answer.member_id
        assignments = [
            {"member_id": each.member_id, "assignment": _assignment(answer.generation_id, each.member_id)}
            for each in answer.members
        ]
        synced = await self.ask(
            "SyncGroup",
            group_id=self._group,
            generation_id=answer.generation_id,
            member_id=self._memberId,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        if synced.error_code is ErrorCode.unknown_member_id:
            self._memberId = ""
        if synced.error_code is not ErrorCode.none:
            return None
        if synced.assignment != _assignment(answer.generation_id, self._memberId):
            raise Violation(f"{self.name} was assigned {synced.assignment!r} in generation {answer.generation_id}")
        self.doneCount += 1
        return int(answer.generation_id)

    async def _stay(self, generation: int) -> bool:
        """@return: whether it is still a member of this generation."""
        await self.sleep(self.random.random() * 2.0)
        if self.random.random() < 0.5:
            code = await self._commit(generation)
        else:
            answer = await self.ask(
                "Heartbeat",
                group_id=self._group,
                generation_id=generation,
                member_id=self._memberId,
                group_instance_id=None,
            )
            code = answer.error_code
        if code is ErrorCode.unknown_member_id:
            self._memberId = ""
        return code in (ErrorCode.none, ErrorCode.kafka_storage_error, ErrorCode.request_timed_out)

    async def _commit(self, generation: int) -> ErrorCode:
        self._commitCount += 1
        commit = Commit(f"{self.name} {self._commitCount}")
        self.history.commits.setdefault((self._group, self._number), []).append(commit)
        partition = {
            "partition_index": self._number,
            "committed_offset": 0,
            "committed_leader_epoch": -1,
            "committed_metadata": commit.text,
        }
        answer = await self.ask(
            "OffsetCommit",
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            generation_id=generation,
            member_id=self._memberId,
            group_instance_id=None,
            topics=[{"name": "offsets", "partitions": [partition]}],
        )
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        if code is ErrorCode.none:
            commit.ackedSeconds = self.now
            self.history.commitCount += 1
            self.doneCount += 1
        return code

    async def _fetchOffset(self) -> None:
        topics = [{"name": "offsets", "partition_indexes": [self._number]}]
        answer = await self.ask(
            "OffsetFetch",
            group_id=self._group,
            topics=topics,
            require_stable=False,
            groups=[{"group_id": self._group, "topics": topics, "member_id": None, "member_epoch": -1}],
        )
        groups = getattr(answer, "groups", None)
        result = (answer if groups is None else groups[0]).topics[0].partitions[0]
        if result.error_code is not ErrorCode.none:
            return
        # A request that was on its way when the connection broke may still be served.
        if self._isQuiet():
            self.history.committed((self._group, self._number), result.metadata or "", self.now)

    def _isQuiet(self) -> bool:
        commits = self.history.commits.get((self._group, self._number), [])
        return not commits or commits[-1].ackedSeconds is not None


def _assignment(generation: int, memberId: str) -> bytes:
    return f"{generation} {memberId}".encode()


class Administrator(Client):
    """Makes, changes and deletes topics, and asks for everything there is."""

    async def live(self, connection: Connection) -> None:
        names = [f"{self.name}-{number}" for number in range(3)]
        while self.isWanted:
            await self.sleep(self.random.random())
            name = self.random.choice(names)
            states = self.history.topics.setdefault(name, {None})
            if len(states) > 1:
                # What was on its way when the connection broke may still come.
                await self.sleep(3.0)
                await self._look(name, states)
                continue
            (state,) = states
            action = self.random.choice([self._look, self._look, self._ask, self._change, self._change])
            if action is self._change:
                await self._change(name, state)
            elif action is self._look:
                await self._look(name, states)
            else:
                await self._ask()
            self.doneCount += 1

    async def _look(self, name: str, states: set[int | None]) -> None:
        answer = await self.ask("Metadata", topics=[{"name": name, "topic_id": None}], allow_auto_topic_creation=False)
        (topic,) = answer.topics
        actual = len(topic.partitions) if topic.error_code is ErrorCode.none else None
        if actual not in states:
            raise Violation(f"{name} has {actual} partitions, and could have {states}")
        states.intersection_update({actual})

    async def _change(self, name: str, state: int | None) -> None:
        random = self.random
        timeout = 5000
        if state is None:
            after: int | None = random.choice([1, 3])
            topic: dict[str, Any] = {
                "name": name,
                "num_partitions": after,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            asking = self.ask("CreateTopics", topics=[topic], timeout_ms=timeout, timeout=timeout, validate_only=False)
        elif random.random() < 0.5:
            after = None
            asking = self.ask(
                "DeleteTopics", topic_names=[name], topics=[{"name": name, "topic_id": None}], timeout=timeout
            )
        else:
            after = state + 1
            topic = {"name": name, "count": after, "assignments": None}
            asking = self.ask("CreatePartitions", topics=[topic], timeout=timeout, validate_only=False)
        self.history.topics[name] = {state, after}
        answer = await asking
        (result,) = (
            answer.responses
            if hasattr(answer, "responses")
            else (answer.topics if hasattr(answer, "topics") else answer.results)
        )
        if result.error_code is ErrorCode.none:
            self.history.topics[name] = {after}
        elif result.error_code not in (ErrorCode.kafka_storage_error, ErrorCode.request_timed_out):
            raise Violation(f"{self.name} is told {result.error_code.name} of {name}, which had {state} partitions")

    async def _ask(self) -> None:
        """Ask for something large."""
        questions: list[tuple[str, dict[str, Any]]] = [
            ("Metadata", {"topics": None}),
            ("ListGroups", {"states_filter": [], "types_filter": []}),
            ("DescribeGroups", {"groups": ["g0", "g1", "nobody"]}),
            ("DescribeClientQuotas", {"components": [], "strict": False}),
            (
                "DescribeConfigs",
                {"resources": [{"resource_type": 2, "resource_name": "a", "configuration_keys": None}]},
            ),
            ("DescribeCluster", {}),
        ]
        name, fields = self.random.choice(questions)
        await self.ask(name, **fields)
