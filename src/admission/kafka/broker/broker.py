# -*- test-case-name: tests.unit.kafka.broker.test_broker -*-
"""
The broker, as its APIs use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from attrs import Factory, define, field, frozen
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from admission.interfaces import PARKED, IPurgatory
from admission.names import boundedName
from admission.policyfailure import FAILURES
from admission.timeslices import SLICE_SECONDS, Places, Steps, TimeSlices

from ..security.login import Logins
from ..security.superusers import SuperUsers
from ..serving.kafkarequest import KafkaRequest
from ..serving.quotalimits import QuotaLimits
from ..serving.server import Server
from ..storage.holdings import RefusedShares
from ..wire.recordwalk import FoundRecord, RecordWalk
from .brokersettings import Settings
from .groups.groupcoordinator import GroupCoordinator
from .groups.groupstate import GroupLimits
from .log.interface import ILog, Partition


@frozen
class Body:
    """
    A response that encodes itself.

    @ivar encode: makes the body, given the C{throttle_time_ms} of the response;
        may be called twice.
    @ivar isCounted: whether the usage of the request is charged to the client.
    @ivar backOffSeconds: how long the client is to wait before its next request, whatever it has used.
    """

    encode: Callable[[int], list[bytes]]
    isCounted: bool = True
    backOffSeconds: float = 0.0


Answer = Mapping[str, Any] | Body
"""The fields of a response, without C{throttle_time_ms}, or a body that encodes itself."""

Work = Callable[[], Steps[Answer]]
"""The rest of the work once a request has waited; its time is charged to the client."""

Waiting = Deferred[Answer | Work]
"""The answer to a request that is parked; cancelled when the client disconnects."""

Serve = Callable[["Broker", KafkaRequest], "Answer | Waiting | Steps[Answer | Waiting]"]
"""A function that serves an API; in steps if it may take long, see L{TimeSlices}."""

GoOver = Callable[[RecordWalk, tuple[int, int], int], Steps[FoundRecord | None]]
"""L{Broker.goOver} on behalf of a request."""

MAX_LARGE_ANSWERS = 4
"""How many large answers are made at a time."""

SMALL_WORK_BYTES: Final = 5 << 19
"""What going over a batch may take without waiting for room: enough for zstd as Java's producers use it."""

DRAINED = "broker drained"
"""
The key in the purgatory of operations that wait for their time only: completed early when the broker drains.  Waits for
records have partitions as keys, and those for the disk the responses of their connection.
"""


@define(eq=False)
class Broker(Server[Settings]):
    """
    The one broker of a cluster of one.

    @ivar purgatory: where requests are parked.
    @ivar ageSeconds: the same, for how long groups are not in use; see L{admission.clock.AgeClock}.
    @ivar portal: checks the logins of clients, of whatever listener; L{None} if none needs any.
    @ivar asksForCertificates: whether clients of some port may have certificates.
    @ivar largestResponseBytes: the most a Fetch may return, except for its first batch.
    @ivar timeSlices: does what takes long.
    @ivar largeAnswers: places for those large answers that are made now, and for what long subscriptions become.
    @ivar logins: how its clients log in, unless their listener has a portal of its own.
    @ivar superUsers: who may change limits, topics and groups.
    @ivar groups: the groups of consumers; to be started and stopped with the
        broker.
    @ivar refusedShares: tells the log who may not have more topics.
    @ivar waitingFetches: how many partitions each large Fetch has that waits for records, by what answers it at once.
    @ivar isDraining: whether L{drain} was called.
    @ivar changed: the partition whose watchers are being checked, because it has changed; L{None} while none are.
    """

    _log = Logger()

    log: ILog
    purgatory: IPurgatory
    portal: Portal | None = None
    asksForCertificates: bool = False
    ageSeconds: Callable[[], float] = Factory(lambda broker: broker.wallSeconds, takes_self=True)
    largestResponseBytes: int = field(init=False)
    timeSlices: TimeSlices = field(init=False)
    largeAnswers: Places = field(init=False, factory=lambda: Places(MAX_LARGE_ANSWERS))
    logins: Logins = field(init=False)
    superUsers: SuperUsers = field(init=False)
    groups: GroupCoordinator = field(init=False)
    refusedShares: RefusedShares = field(init=False, factory=RefusedShares)
    waitingFetches: dict[Callable[[], object], int] = field(init=False, factory=dict)
    isDraining: bool = field(init=False, default=False)
    changed: Partition | None = field(init=False, default=None)
    _wakingSeconds: float | None = field(init=False, default=None)
    _unwoken: dict[Partition, None] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        # One answer must not take the memory that all requests share.
        self.largestResponseBytes = min(self.settings.fetchMaxBytes, max(self.gate.pool.sizeBytes // 4, 1 << 16))
        self.timeSlices = TimeSlices(self.clock)
        self.limits = QuotaLimits(self.log, self.control, self.control.limits, self.clock.seconds)
        self.logins = self.makeLogins(self.portal)
        self.superUsers = self._superUsers()
        self.gate.ledger.account("producers", lambda: self.log.producerStateBytes)
        self.gate.ledger.account("groups", lambda: self.groups.sizeBytes)
        self.groups = GroupCoordinator(
            self.log, self.purgatory, self.clock, self.ageSeconds, _groupLimits(self.settings)
        )
        self.log.subscribe(self._recordsChanged)
        self.gate.pressure.subscribe(self._pressed)

    def settingsChanged(self) -> None:
        settings = self.settings
        self.superUsers = self._superUsers()
        self.groups.limits = _groupLimits(settings)
        self.log.setRetention(settings.logRetentionBytes, settings.logRetentionSeconds)

    def _superUsers(self) -> SuperUsers:
        # An operator who names super users wants them to be the only ones, whatever a port of another kind knows about
        # its clients.
        hasNames = self.portal is not None or self.asksForCertificates
        names = frozenset(map(boundedName, self.settings.superUsers))
        return SuperUsers(names, hasNames or bool(names))

    def makeLogins(self, portal: Portal | None) -> Logins:
        """
        How the clients of a listener log in.
        """
        return Logins(
            portal,
            self.clock,
            self.settings.connectionFailedAuthenticationDelaySeconds,
            self.settings.saslServerMaxReceiveSize,
        )

    @property
    def nodeId(self) -> int:
        return self.settings.brokerId

    def drain(self) -> None:
        """
        Answer all parked requests and park no more.  A Fetch gets the records
        that are there; members of groups are told to find their coordinator
        again.  Requests that wait for the disk go on waiting.
        """
        self.isDraining = True
        self.groups.drain()
        self.purgatory.checkAndComplete(DRAINED)
        for topic in list(self.log.topics.values()):
            self._recordsChanged(topic.partitions)

    def goOver(
        self, request: KafkaRequest, walk: RecordWalk, times: tuple[int, int], memoryBytes: int
    ) -> Steps[FoundRecord | None]:
        """
        Go over records as L{RecordWalk.findOutside} does, charged for the memory that it takes.  If that is much, it
        waits for room.

        @param request: on whose behalf.
        @param memoryBytes: what the records and decompressing them take at most.
        """
        if memoryBytes > SMALL_WORK_BYTES:
            # In slices in any case: many such requests may come in one turn.
            yield None
            room = self.gate.answers.whenRoom(request.connection.holder, memoryBytes, request.decodedBytes)
            if room is not None:
                yield room
        lease = self.gate.pool.charge(memoryBytes, PARKED)
        try:
            return (yield from walk.findOutside(*times))
        finally:
            lease.release()

    def mayWake(self, partition: Partition) -> bool:
        """
        Whether one more of those who wait for C{partition} may go on in this turn.  If not, all of them are asked again
        in a later one.
        """
        if self.isDraining:
            return True
        now = self.clock.seconds()
        if self._wakingSeconds is None:
            self._wakingSeconds = now
        if now - self._wakingSeconds < SLICE_SECONDS:
            return True
        if not self._unwoken:
            self.clock.callLater(0, self._wakeOthers)
        self._unwoken[partition] = None
        return False

    def _wakeOthers(self) -> None:
        unwoken, self._unwoken = self._unwoken, {}
        self._recordsChanged(unwoken)

    def _recordsChanged(self, partitions: Iterable[Partition]) -> None:
        self._wakingSeconds = None
        for partition in partitions:
            self.changed = partition
            try:
                self.purgatory.checkAndComplete(partition)
            except FAILURES:
                self._log.failure(
                    "the purgatory failed; a fetch that waits for records of {partition} waits until its time is over",
                    partition=f"{partition.topicName}-{partition.index}",
                )
            finally:
                self.changed = None

    def _pressed(self, isPressed: bool) -> None:
        if isPressed and self.waitingFetches:
            self.timeSlices.run("", self._giveUpFetches())

    def _giveUpFetches(self) -> Steps[None]:
        """
        Waiting takes memory that others need more: answer the largest Fetches that wait, as many as it needs.
        """
        for giveUp in sorted(self.waitingFetches, key=lambda each: -self.waitingFetches[each]):
            if not self.gate.pool.isOutOfMemory():
                break
            giveUp()
            yield None

    def longestRefusalSeconds(self, session: Any) -> float:
        return self.groups.sessionSeconds(session) / 3

    def throttled(self, session: Any, delaySeconds: float) -> None:
        super().throttled(session, delaySeconds)
        self.groups.throttled(session, delaySeconds)


def _groupLimits(settings: Settings) -> GroupLimits:
    return GroupLimits(
        minSessionSeconds=settings.groupMinSessionTimeoutSeconds,
        maxSessionSeconds=settings.groupMaxSessionTimeoutSeconds,
        initialDelaySeconds=settings.groupInitialRebalanceDelaySeconds,
        maxMembers=settings.groupMaxSize,
        maxPending=settings.maxPendingMembers,
        maxGroups=settings.maxGroups,
        maxGroupBytes=settings.groupMaxBytes,
        maxBytes=settings.maxGroupsBytes,
        retentionSeconds=settings.offsetsRetentionSeconds,
        checkSeconds=settings.offsetsRetentionCheckIntervalSeconds,
    )
