"""
Members of a group, one in a process.

C{groupclients.py CLIENT ADDRESS NAME GROUP TOPIC SETTINGS} reads the topic as a member of the group until standard
input says so or ends, see L{serve}.  It writes what happens as lines of JSON: a time on the clock that all processes
share, a word, and what belongs to it.  It imports nothing that its one client does not need, since many are started at
once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from attrs import frozen

LEAVE = "leave"
"""The command to leave the group."""

GO_ON = "go on"
"""The command to be done with the record at hand."""

POLL_SECONDS = 0.5
_RECONNECT_MS = 100
_REST_SECONDS = 0.1

_lock = threading.Lock()


def say(word: str, *values: object) -> None:
    """Write a line."""
    with _lock:
        print(json.dumps([time.monotonic(), word, *values]), flush=True)


@frozen
class Settings:
    """
    How a member behaves.

    @ivar sessionMs: for how long the group does without its heartbeats.
    @ivar heartbeatMs: between them.
    @ivar maxPollMs: how long it may work on a record.
    @ivar maxWorkSeconds: how long it does so at most, whatever the record asks for; finite, should nobody be there any
        more to give commands.
    """

    sessionMs: int
    heartbeatMs: int
    maxPollMs: int
    maxWorkSeconds: float = 60.0


class Refused(Exception):
    """A commit failed; whether that matters is the group's to know."""


class GroupClient(ABC):
    """
    A member.  Its partitions are numbers.

    @ivar uncommitted: where to go on in the partitions that we have; another mapping whenever they change, so that
        nothing is committed for a partition that has been another's meanwhile.
    @ivar received: the same, as it was when the last record came.
    """

    def __init__(self, address: str, name: str, group: str, topic: str, settings: Settings) -> None:
        self.address, self.name, self.group, self.topic, self.settings = address, name, group, topic, settings
        self.uncommitted: dict[int, int] = {}
        self.received = self.uncommitted

    @abstractmethod
    def poll(self) -> list[tuple[int, int, bytes]]:
        """
        Wait a moment for one record, and L{note} it.

        @return: its partition, offset and value.
        """

    @abstractmethod
    def commit(self, offsets: Mapping[int, int]) -> None:
        """
        Commit, and wait for the answer.

        @raise Refused: if it is refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""

    def assigned(self, partitions: Iterable[int]) -> None:
        """All partitions that we have are these."""
        self.uncommitted = {}
        say("assigned", sorted(partitions))

    def revoked(self, partitions: Iterable[int]) -> None:
        """We have these no longer."""
        self.uncommitted = {}
        say("revoked", sorted(partitions))

    def note(self, records: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
        """Tell of records at a moment when we have their partitions."""
        self.received = self.uncommitted
        for partition, offset, _ in records:
            say("record", partition, offset)
        return records


class Confluent(GroupClient):
    """librdkafka."""

    def __init__(self, *arguments: Any) -> None:
        from confluent_kafka import Consumer

        super().__init__(*arguments)
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "client.id": self.name,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": self.settings.sessionMs,
                "heartbeat.interval.ms": self.settings.heartbeatMs,
                "max.poll.interval.ms": self.settings.maxPollMs,
                "reconnect.backoff.ms": _RECONNECT_MS,
                "reconnect.backoff.max.ms": _RECONNECT_MS,
                "log_level": 2,
            }
        )
        self._consumer.subscribe(
            [self.topic],
            on_assign=lambda _, places: self.assigned(place.partition for place in places),
            on_revoke=lambda _, places: self.revoked(place.partition for place in places),
        )

    def poll(self) -> list[tuple[int, int, bytes]]:
        """See L{GroupClient.poll}."""
        message = self._consumer.poll(POLL_SECONDS)
        if message is None:
            return []
        partition, offset, value = message.partition(), message.offset(), message.value()
        if message.error() is not None or partition is None or offset is None or value is None:
            say("trouble", str(message.error()))
            return []
        return self.note([(partition, offset, value)])

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See L{GroupClient.commit}."""
        from confluent_kafka import KafkaException, TopicPartition

        places = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise Refused(str(error)) from error

    def close(self) -> None:
        """See L{GroupClient.close}."""
        self._consumer.close()


class KafkaPython(GroupClient):
    """kafka-python."""

    def __init__(self, *arguments: Any) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        super().__init__(*arguments)
        self._consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            client_id=self.name,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=self.settings.sessionMs,
            heartbeat_interval_ms=self.settings.heartbeatMs,
            max_poll_interval_ms=self.settings.maxPollMs,
            reconnect_backoff_ms=_RECONNECT_MS,
            reconnect_backoff_max_ms=_RECONNECT_MS,
        )
        client = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                client.assigned(place.partition for place in assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                client.revoked(place.partition for place in revoked)

        self._consumer.subscribe([self.topic], listener=Listener())

    def poll(self) -> list[tuple[int, int, bytes]]:
        """See L{GroupClient.poll}."""
        from kafka.errors import KafkaError

        try:
            polled = self._consumer.poll(timeout_ms=int(POLL_SECONDS * 1000), max_records=1)
        except KafkaError as error:
            # That a broker is not there is for the application to know.
            say("trouble", repr(error))
            time.sleep(_REST_SECONDS)
            return []
        return self.note([(each.partition, each.offset, each.value) for each in chain(*polled.values())])

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See L{GroupClient.commit}."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError
        from kafka.structs import OffsetAndMetadata

        places = {TopicPartition(self.topic, partition): offset for partition, offset in offsets.items()}
        try:
            self._consumer.commit({place: OffsetAndMetadata(offset) for place, offset in places.items()})
        except KafkaError as error:
            raise Refused(repr(error)) from error

    def close(self) -> None:
        """See L{GroupClient.close}."""
        self._consumer.close()


class Aiokafka(GroupClient):
    """aiokafka, whose loop runs in a thread, so that it goes on while we work."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._start())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        client = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                client.assigned(place.partition for place in assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                client.revoked(place.partition for place in revoked)

        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address,
            client_id=self.name,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=self.settings.sessionMs,
            heartbeat_interval_ms=self.settings.heartbeatMs,
            max_poll_interval_ms=self.settings.maxPollMs,
            rebalance_timeout_ms=self.settings.maxPollMs,
        )
        self._consumer.subscribe([self.topic], listener=Listener())
        await self._consumer.start()

    def poll(self) -> list[tuple[int, int, bytes]]:
        """See L{GroupClient.poll}."""
        records: list[tuple[int, int, bytes]] = self._run(self._poll())
        return records

    async def _poll(self) -> list[tuple[int, int, bytes]]:
        polled = await self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=1)
        # Here, because the group may take partitions from us while the application works.
        return self.note([(each.partition, each.offset, each.value) for each in chain(*polled.values())])

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See L{GroupClient.commit}."""
        from aiokafka import TopicPartition
        from aiokafka.errors import KafkaError

        async def commit() -> None:
            if offsets is not self.uncommitted:
                raise Refused("the partitions have changed hands")
            places = {TopicPartition(self.topic, partition): offset for partition, offset in offsets.items()}
            try:
                await self._consumer.commit(places)
            except KafkaError as error:
                raise Refused(repr(error)) from error

        self._run(commit())

    def close(self) -> None:
        """See L{GroupClient.close}."""
        self._run(self._consumer.stop())


class Ours(GroupClient):
    """L{admission.kafka.client}, whose reactor runs in a thread, so that it goes on while we work."""

    def __init__(self, *arguments: Any) -> None:
        from twisted.internet import reactor

        super().__init__(*arguments)
        self._reactor: Any = reactor
        running = threading.Thread(target=self._reactor.run, kwargs={"installSignalHandlers": False}, daemon=True)
        running.start()
        self._run(self._start)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from twisted.internet.threads import blockingCallFromThread

        return blockingCallFromThread(self._reactor, function, *arguments)

    def _start(self) -> None:
        from admission.kafka.client.consumer import makeConsumer
        from admission.kafka.client.consumersettings import consumerSettings

        self._consumer = makeConsumer(
            self._reactor,
            consumerSettings(
                {
                    "bootstrap.servers": self.address,
                    "client.id": self.name,
                    "group.id": self.group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": "false",
                    "partition.assignment.strategy": "range",
                    "session.timeout.ms": str(self.settings.sessionMs),
                    "heartbeat.interval.ms": str(self.settings.heartbeatMs),
                    "max.poll.interval.ms": str(self.settings.maxPollMs),
                    "max.poll.records": "1",
                }
            ),
        )
        self._consumer.subscribe(
            [self.topic],
            onAssigned=lambda places: self.assigned(place.partition for place in places),
            onRevoked=lambda places: self.revoked(place.partition for place in places),
        )

    def poll(self) -> list[tuple[int, int, bytes]]:
        """See L{GroupClient.poll}."""
        from admission.kafka.client.errors import ClientError

        try:
            records = self._run(self._consumer.poll, POLL_SECONDS)
        except ClientError as error:
            say("trouble", str(error))
            return []
        return self.note([(each.partition, each.offset, each.value) for each in records])

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See L{GroupClient.commit}."""
        from admission.kafka.client.errors import ClientError
        from admission.kafka.client.subscriptionstate import TopicPartition

        places = {TopicPartition(self.topic, partition): offset for partition, offset in offsets.items()}
        try:
            self._run(self._consumer.commit, places)
        except ClientError as error:
            raise Refused(str(error)) from error

    def close(self) -> None:
        """See L{GroupClient.close}."""
        self._run(self._consumer.close)


CLIENTS: dict[str, Callable[..., GroupClient]] = {
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "ours": Ours,
}
"""By the name of the library."""


def command(seconds: float) -> str | None:
    """The next command, if it comes in time."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return None
    # The end of all commands is one, too.
    return sys.stdin.readline().strip() or LEAVE


def work(seconds: float) -> bool:
    """
    Do what a record asks for: so many seconds of work, less if the command L{GO_ON} comes.

    @return: whether to read on.
    """
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        told = command(remaining)
        if told is not None:
            return told != LEAVE
    return True


def commit(client: GroupClient) -> None:
    """Commit what is done with, if it is not; what cannot be committed now is the next time, if it is ours still."""
    offsets = client.uncommitted
    if not offsets:
        return
    begin = time.monotonic()
    try:
        client.commit(offsets)
    except Refused as refusal:
        say("refused", str(refusal))
    else:
        say("committed", begin, offsets)
        offsets.clear()


def serve(client: GroupClient) -> None:
    """
    Read records, one at a time, and commit each when it is done with.  A record's value says for how many seconds to
    work on it.
    """
    goesOn = True
    while goesOn:
        for partition, offset, value in client.poll():
            seconds = min(float(value), client.settings.maxWorkSeconds)
            if seconds:
                say("working", partition, offset)
                goesOn = work(seconds)
            client.received[partition] = offset + 1
        commit(client)
        goesOn = goesOn and command(0) != LEAVE
    client.close()
    say("left")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    kind, *arguments, settings = sys.argv[1:]
    serve(CLIENTS[kind](*arguments, Settings(**json.loads(settings))))
