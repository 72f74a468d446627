# -*- test-case-name: tests.clients.gateway.test_shared_limits -*-
"""
What gateways of one cluster tell each other through topics of that cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from attrs import frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from zope.interface import implementer

from admission.interfaces import IUsageExchange, PolicyContext
from admission.units import formatSeconds, parseSeconds

from ..client.clientconnection import ConnectionSettings, EndpointMaker
from ..client.cluster import METADATA, Cluster
from ..client.consumer import Consumer
from ..client.consumersettings import ConsumerSettings
from ..client.errors import Backoff, BrokerRefused, ClientError, checkError
from ..client.sasl import Credentials
from ..client.subscriptionstate import TopicPartition
from ..serving.kafkarequest import Address
from ..wire.batches import Record, encodeBatch

NAME: Final = "__admission"
INTERVAL: Final = "100ms"
KEPT: Final = "25h"

USAGE_SECONDS: Final = 600.0
"""How long the topic of usage keeps messages; no gateway reads messages from before it began."""

MAX_UNANSWERED: Final = 8
"""How many messages may be on their way to the cluster; further ones are dropped."""

ANSWER_SECONDS: Final = 2.0
"""A node that does not answer for so long is given up."""

FETCH_SECONDS: Final = 2.0
"""How long a node waits for a message before it says that there is none."""

RETRY_SECONDS: Final = (0.1, 1.0)
LOGGED_SECONDS: Final = 60.0

_THE_ONLY_PARTITION = 0


@frozen
class ClusterAccess:
    """
    How to reach the cluster behind a gateway: what a plug-in finds as L{PolicyContext.upstream}.

    @ivar endpointFor: how to connect to a node.
    @ivar addresses: the servers to ask first.
    @ivar credentials: the login, if the cluster wants one.
    """

    endpointFor: EndpointMaker
    addresses: Sequence[Address]
    credentials: Credentials | None = None


@implementer(IUsageExchange)
class UsageTopic:
    """
    Three topics of one partition each, which are made if they are not there: C{NAME-usage}, of which each gateway reads
    what comes while it runs; C{NAME-kept}, of which it reads all that is there; and C{NAME-limits}, which keeps the
    last message of each key.

    One partition has one order, and a gateway that reads what it has written itself knows that the others can, too.
    """

    _log = Logger()

    def __init__(
        self,
        access: ClusterAccess,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        random: Random,
        name: str = NAME,
        intervalSeconds: float = 0.1,
        keptSeconds: float = 90_000.0,
    ) -> None:
        """
        @param wallSeconds: seconds since the epoch, for the records.
        @param name: the beginning of the names of the topics.
        @param keptSeconds: how long the second topic keeps what it has.
        """
        self.intervalSeconds = intervalSeconds
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._keptSeconds = keptSeconds
        self._usage, self._kept, self._limits = f"{name}-usage", f"{name}-kept", f"{name}-limits"
        servers = tuple((each.host, each.port) for each in access.addresses)
        backoff = Backoff(*RETRY_SECONDS, random)
        self._backoff = backoff
        self._cluster = Cluster(
            access.endpointFor,
            clock,
            ConnectionSettings(
                credentials=access.credentials,
                requestTimeoutSeconds=ANSWER_SECONDS,
                connectTimeoutSeconds=ANSWER_SECONDS,
            ),
            servers,
            backoff,
            topics=lambda: self.topics,
            onRefreshed=lambda: None,
            maxAgeSeconds=60.0,
            allowAutoCreateTopics=False,
        )
        settings = ConsumerSettings(
            bootstrapServers=servers,
            autoOffsetReset="latest",
            autoCommit=False,
            fetchMaxWaitSeconds=FETCH_SECONDS,
            requestTimeoutSeconds=ANSWER_SECONDS,
            retryBackoffSeconds=RETRY_SECONDS[0],
            retryBackoffMaxSeconds=RETRY_SECONDS[1],
            allowAutoCreateTopics=False,
        )
        self._access, self._settings = access, settings
        self._consumers: set[Consumer] = set()
        self._readings: list[Deferred[None]] = []
        self._unanswered = 0
        self._isReady = False
        self._trouble: str | None = "the topics have not been found yet"
        self._loggedSeconds = float("-inf")

    @property
    def topics(self) -> frozenset[str]:
        """
        The topics that are closed to clients.
        """
        return frozenset((self._usage, self._kept, self._limits))

    # What the gateway calls

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        self._readings.append(Deferred.fromCoroutine(self._run(deliver)).addErrback(self._ended))

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        if not self._isReady or self._unanswered >= MAX_UNANSWERED:
            return
        self._unanswered += 1
        topic = self._limits if key is not None else self._kept if isKept else self._usage
        sending = Deferred.fromCoroutine(self._send(message, topic, None if key is None else key.encode()))
        sending.addErrback(self._notSent)
        sending.addBoth(self._answered)

    def stop(self) -> Deferred[None]:
        self._isReady = False
        return Deferred.fromCoroutine(self._close())

    def trouble(self) -> str | None:
        return self._trouble

    # Writing

    async def _send(self, message: bytes, topic: str, key: bytes | None) -> None:
        leaderId = self._cluster.leaderOf(TopicPartition(topic, _THE_ONLY_PARTITION))
        if leaderId is None:
            self._cluster.refreshSoon()
            return
        connection = await self._cluster.connection(leaderId, METADATA)
        records = encodeBatch([Record(key, message, timestampMs=round(self._wallSeconds() * 1000))])
        partition = {"index": _THE_ONLY_PARTITION, "records": records}
        answer = await connection.request(
            "Produce",
            {
                "transactional_id": None,
                "acks": 1,
                "timeout_ms": round(ANSWER_SECONDS * 1000),
                "topic_data": [{"name": topic, "partition_data": [partition]}],
            },
        )
        for each in answer.responses:
            for found in each.partition_responses:
                checkError(found.error_code, f"Produce to {topic}")

    def _answered(self, _: object) -> None:
        self._unanswered -= 1

    def _notSent(self, failure: Any) -> None:
        if failure.check(CancelledError):
            return
        self._cluster.refreshSoon(isUrgent=True)
        self._failed(failure.value)

    # Reading

    async def _run(self, deliver: Callable[[bytes, bool], object]) -> None:
        begins, ends = await self._prepared()
        self._begin(TopicPartition(self._usage, _THE_ONLY_PARTITION), None, 0, deliver)
        for place in begins:
            self._begin(place, begins[place], ends[place], deliver)

    def _begin(self, place: TopicPartition, *arguments: Any) -> None:
        self._readings.append(Deferred.fromCoroutine(self._read(place, *arguments)).addErrback(self._ended))

    async def _read(
        self, place: TopicPartition, position: int | None, oldEnd: int, deliver: Callable[[bytes, bool], object]
    ) -> None:
        """
        Read one topic for ever, and begin again whenever that fails.  Each topic has a consumer of its own: with one
        for both, the other topic would wait for as long as a broker waits where nothing comes.

        @param position: where to begin; L{None} for the end.
        @param oldEnd: messages before this offset were there before the gateway began.
        """
        failures = 0
        while True:
            access, random = self._access, self._backoff.random
            consumer = Consumer(self._settings, access.endpointFor, self._clock, random, access.credentials)
            self._consumers.add(consumer)
            consumer.assign([place])
            if position is not None:
                consumer.seek(place, position)
            self._isReady, self._trouble = True, None
            try:
                while True:
                    for record in await consumer.poll():
                        position, failures = record.offset + 1, 0
                        deliver(record.value or b"", record.offset < oldEnd)
            except ClientError as error:
                failures += 1
                self._failed(error)
                self._consumers.discard(consumer)
                await consumer.close(commit=False)
                await deferLater(self._clock, self._backoff.delaySeconds(failures))

    async def _prepared(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """
        Make sure that the topics exist.

        @return: the beginnings and the ends of the topics that keep messages.
        """
        keeping = [TopicPartition(topic, _THE_ONLY_PARTITION) for topic in (self._limits, self._kept)]
        failures = 0
        while True:
            try:
                await self._cluster.refresh()
                await self._made(sorted(self.topics - self._cluster.leaders.keys()))
                begins = await self._cluster.listOffsets(keeping, isEarliest=True)
                ends = await self._cluster.listOffsets(keeping, isEarliest=False)
                return begins, ends
            except ClientError as error:
                failures += 1
                self._failed(error)
                await deferLater(self._clock, self._backoff.delaySeconds(failures))

    async def _made(self, missing: Sequence[str]) -> None:
        if not missing:
            return
        for topic in missing:
            error = self._cluster.errors.get(topic)
            if error not in (None, ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available):
                raise BrokerRefused(error, f"Metadata of {topic}")
        retention = {self._usage: USAGE_SECONDS, self._kept: self._keptSeconds}
        topics = [
            {
                "name": topic,
                "num_partitions": 1,
                "replication_factor": -1,
                "assignments": [],
                "configs": [
                    {"name": "retention.ms", "value": str(round(1000 * retention[topic]))}
                    if topic in retention
                    else {"name": "cleanup.policy", "value": "compact"}
                ],
            }
            for topic in missing
        ]
        answer = await self._cluster.askAny(
            "CreateTopics", {"topics": topics, "timeout_ms": round(ANSWER_SECONDS * 1000), "validate_only": False}
        )
        for each in answer.topics:
            if each.error_code != ErrorCode.topic_already_exists:
                checkError(each.error_code, f"CreateTopics of {each.name}", each.error_message)
        self._log.info("the topics {topics} were made", topics=" and ".join(missing))
        await self._cluster.refresh()

    # Trouble

    def _failed(self, error: Exception) -> None:
        self._trouble = str(error)
        now = self._clock.seconds()
        if now - self._loggedSeconds >= LOGGED_SECONDS:
            self._loggedSeconds = now
            self._log.warn("what clients take is not exchanged: {reason}; trying again", reason=error)

    def _ended(self, failure: Any) -> None:
        if not failure.check(CancelledError):
            self._trouble = failure.getErrorMessage()
            self._log.failure("what clients take is not exchanged any more", failure)

    async def _close(self) -> None:
        readings, self._readings = self._readings, []
        for reading in readings:
            reading.cancel()
        for consumer in [*self._consumers]:
            await consumer.close(commit=False)
        await self._cluster.close()


def buildUsageTopic(context: PolicyContext, name: str = NAME, interval: str = INTERVAL, kept: str = KEPT) -> UsageTopic:
    """
    C{topic[:name=__admission][:interval=100ms][:kept=25h]}.
    """
    if context.upstream is None:
        raise ValueError("topic is for a gateway, which has a cluster behind it")
    intervalSeconds, keptSeconds = parseSeconds(interval), parseSeconds(kept)
    if not 0.02 <= intervalSeconds <= 1.0:
        raise ValueError(f"interval={interval}: write a time from 20ms to 1s; more lets limits swing")
    if keptSeconds < USAGE_SECONDS:
        raise ValueError(f"kept={kept}: write a time of {formatSeconds(USAGE_SECONDS)} or more")
    if not name or len(name) > 200 or not all(each.isalnum() or each in "._-" for each in name):
        raise ValueError(f"name={name}: topics have letters, digits, dots, dashes and underscores, 200 at most")
    return UsageTopic(
        context.upstream, context.clock, context.wallSeconds, Random(), name, intervalSeconds, keptSeconds
    )
