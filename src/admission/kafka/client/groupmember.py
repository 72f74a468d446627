# -*- test-case-name: tests.unit.kafka.client.test_groupmember -*-
"""
A member of a group: joining, leading, leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from .assignors import (
    ASSIGNORS,
    PROTOCOL_TYPE,
    MalformedMembership,
    decodeAssignment,
    encodeAssignment,
    encodeSubscription,
    subscribersOf,
)
from .cluster import Cluster
from .consumersettings import ConsumerSettings
from .coordinatorclient import NO_GENERATION, NO_MEMBER, CoordinatorClient, Identity
from .errors import Backoff, BrokerRefused, ClientError, checkError
from .heartbeats import HeartbeatSender
from .subscriptionstate import SubscriptionState, TopicPartition

UNJOINED = "unjoined"
PREPARING = "preparing"
COMPLETING = "completing"
STABLE = "stable"

_REJOIN_AT_ONCE = frozenset((ErrorCode.member_id_required, ErrorCode.rebalance_in_progress))
_REJOIN_LATER = frozenset(
    (
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    )
)
_FORGET_GENERATION = frozenset((ErrorCode.illegal_generation,))
_FORGET_MEMBER = frozenset((ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id))

_MAX_AT_ONCE = 5
"""How often in a row joining is tried again without a delay."""


class MembershipLost(ClientError):
    """
    The membership ended while it was being renewed.
    """

    isRetriable = True


class GroupMember:
    """
    One member of one group.

    @ivar state: L{UNJOINED}, L{PREPARING} (waiting for the other members),
        L{COMPLETING} (waiting for the assignment) or L{STABLE}.
    @ivar identity: as what the coordinator knows this member.
    @ivar rejoinNeeded: whether the consumer should L{join}.
    @ivar isLost: whether the partitions assigned last are not ours any more,
        so that nothing can be committed for them.
    @ivar failure: why the member cannot go on, if it cannot.
    @ivar heartbeats: to be told what the application does.
    """

    log = Logger()

    def __init__(
        self,
        subscription: SubscriptionState,
        coordinator: CoordinatorClient,
        cluster: Cluster,
        settings: ConsumerSettings,
        clock: IReactorTime,
        backoff: Backoff,
        onChange: Callable[[], None],
    ) -> None:
        """
        @param cluster: says how many partitions topics have.
        @param clock: runs and measures timers; monotonic.
        @param onChange: called when C{rejoinNeeded} or C{failure} changes.
        """
        self._subscription = subscription
        self._coordinator = coordinator
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._onChange = onChange
        self.identity = Identity(NO_GENERATION, NO_MEMBER)
        self._departures = 0
        # The partitions of each topic, as of the last assignment that we decided as the leader.
        self._assignedCounts: Mapping[str, int] | None = None
        self.state = UNJOINED
        self.rejoinNeeded = False
        self.isLost = False
        self.failure: ClientError | None = None
        self.heartbeats = HeartbeatSender(
            coordinator,
            settings,
            clock,
            backoff,
            identity=lambda: self.identity,
            onError=self._heartbeatRefused,
            onSilence=self._applicationIsSilent,
        )

    def requestRejoin(self, reason: str) -> None:
        """
        Join again at the next poll.

        @param reason: why, for the log.
        """
        if not self.rejoinNeeded:
            self.rejoinNeeded = True
            self.log.info("rejoining group {group!r}: {reason}", group=self._coordinator.groupId, reason=reason)
            self._onChange()

    def metadataRefreshed(self) -> None:
        """
        Join again if we lead the group and the number of partitions differs
        from what we assigned.
        """
        if self.state == STABLE and self._assignedCounts not in (None, self._partitionCounts()):
            self.requestRejoin("the number of partitions has changed")

    # Joining

    @inlineCallbacks
    def join(self) -> Generator[Deferred[Any], Any, list[TopicPartition]]:
        """
        Join the group, or join it again, for as long as it takes.

        @return: fires with the assigned partitions; fails with
            L{MembershipLost} if L{leave} is called meanwhile, or a
            L{ClientError} if trying again would not help.  Cancelling it does
            not leave the group.
        """
        failures = atOnce = 0
        departures = self._departures
        while True:
            try:
                partitions: list[TopicPartition] = yield self._joinOnce()
                return partitions
            except ClientError as error:
                if departures != self._departures:
                    raise MembershipLost("the group was left while joining it") from error
                self.heartbeats.stop()
                self._coordinator.noteError(error)
                waits = self._noteJoinError(error)
                atOnce = 0 if waits else atOnce + 1
            if waits or atOnce > _MAX_AT_ONCE:
                failures += 1
                yield deferLater(self._clock, self._backoff.delaySeconds(failures))

    @inlineCallbacks
    def _joinOnce(self) -> Generator[Deferred[Any], Any, list[TopicPartition]]:
        self.heartbeats.stop()
        self.state = PREPARING
        settings, group = self._settings, self._coordinator.groupId
        topics = self._subscription.topics
        metadata = encodeSubscription(topics)
        joined = yield self._coordinator.ask(
            "JoinGroup",
            {
                "session_timeout_ms": round(settings.sessionTimeoutSeconds * 1000),
                "rebalance_timeout_ms": round(settings.maxPollIntervalSeconds * 1000),
                "member_id": self.identity.memberId,
                "group_instance_id": settings.groupInstanceId,
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": name, "metadata": metadata} for name in settings.assignors],
            },
            settings.joinTimeoutSeconds,
        )
        if joined.error_code == ErrorCode.member_id_required:
            self.identity = Identity(NO_GENERATION, joined.member_id)
        checkError(joined.error_code, f"joining group {group!r}")
        self.identity = identity = Identity(joined.generation_id, joined.member_id)
        # From here on the coordinator counts the session, though the assignment is still to come.
        self.state = COMPLETING
        self.heartbeats.start()
        self._assignedCounts = None
        self._subscription.groupTopics = frozenset()
        assignments: Sequence[Mapping[str, Any]] = []
        if joined.leader == joined.member_id and not getattr(joined, "skip_assignment", False):
            assignments = yield self._assignAll(joined)
            self._checkIdentity(identity)
        synced = yield self._coordinator.ask(
            "SyncGroup",
            {
                **self._coordinator.memberFields(identity),
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": joined.protocol_name,
                "assignments": assignments,
            },
        )
        checkError(synced.error_code, f"the assignment of group {group!r}")
        self._checkIdentity(identity)
        try:
            partitions = decodeAssignment(synced.assignment)
        except MalformedMembership as malformed:
            raise BrokerRefused(
                ErrorCode.inconsistent_group_protocol.value, f"the assignment of group {group!r}", str(malformed)
            ) from malformed
        self.state = STABLE
        self.rejoinNeeded = self.isLost = False
        self.heartbeats.restartSession()
        self.log.info(
            "group {group!r}: generation {generation} as {member}, which gets {partitions}",
            group=group,
            generation=identity.generation,
            member=identity.memberId,
            partitions=", ".join(map(str, partitions)) or "nothing",
        )
        if topics != self._subscription.topics:
            self.requestRejoin("the subscription has changed meanwhile")
        return partitions

    @inlineCallbacks
    def _assignAll(self, joined: Any) -> Generator[Deferred[Any], Any, list[dict[str, Any]]]:
        """
        Decide for the group, as its leader.

        @return: the assignments for SyncGroup.
        """
        try:
            members = subscribersOf(joined.members)
            assignor = ASSIGNORS[joined.protocol_name]
        except (MalformedMembership, KeyError) as error:
            raise BrokerRefused(
                ErrorCode.inconsistent_group_protocol.value,
                f"leading the group by {joined.protocol_name!r}",
                f"it makes no sense: {error}",
            ) from error
        self._subscription.groupTopics = frozenset[str]().union(*(member.topics for member in members))
        yield self._cluster.refresh()
        self._assignedCounts = counts = self._partitionCounts()
        return [
            {"member_id": memberId, "assignment": encodeAssignment(partitions)}
            for memberId, partitions in assignor(members, counts).items()
        ]

    def _partitionCounts(self) -> Mapping[str, int]:
        return self._cluster.partitionCounts(self._subscription.groupTopics)

    def _checkIdentity(self, identity: Identity) -> None:
        if identity != self.identity:
            raise MembershipLost(f"generation {identity.generation} of group {self._coordinator.groupId!r} is over")

    def _noteJoinError(self, error: ClientError) -> bool:
        """
        Forget the part of the identity that C{error} denies.

        @return: whether to wait before trying again.
        @raise ClientError: if trying again would not help.
        """
        self.state = UNJOINED
        if not isinstance(error, BrokerRefused):
            if error.isRetriable:
                return True
            raise error
        if error.errorCode in _FORGET_GENERATION:
            self.identity = Identity(NO_GENERATION, self.identity.memberId)
        elif error.errorCode in _FORGET_MEMBER:
            self.identity = Identity(NO_GENERATION, NO_MEMBER)
        if error.errorCode in _REJOIN_LATER:
            return True
        if error.errorCode in _REJOIN_AT_ONCE | _FORGET_GENERATION or error.errorCode == ErrorCode.unknown_member_id:
            return False
        if error.errorCode == ErrorCode.fenced_instance_id:
            self._fail(error)
        raise error

    # Errors

    def _heartbeatRefused(self, errorCode: ErrorCode, identity: Identity) -> None:
        error = BrokerRefused(errorCode.value, "a heartbeat")
        if errorCode == ErrorCode.group_authorization_failed:
            self._fail(error)
        elif errorCode != ErrorCode.rebalance_in_progress or self.state == STABLE:
            self.noteError(error, identity)

    def noteError(self, error: BrokerRefused, identity: Identity) -> None:
        """
        The coordinator has answered a heartbeat or a commit with an error:
        forget the part of the identity that it denies.

        @param identity: what the request was sent with; errors of a former
            identity are ignored.
        """
        self._coordinator.noteError(error)
        if identity != self.identity:
            return
        if error.errorCode == ErrorCode.rebalance_in_progress:
            self.requestRejoin(str(error))
        elif error.errorCode in _FORGET_GENERATION:
            self._forget(self.identity.memberId, str(error))
        elif error.errorCode in _FORGET_MEMBER:
            self._forget(NO_MEMBER, str(error))
            if error.errorCode == ErrorCode.fenced_instance_id:
                self._fail(error)

    def _fail(self, error: ClientError) -> None:
        # Not tried again: if another consumer has our name, we would only throw that one out in turn.
        self.failure = error
        self._onChange()

    # Leaving

    def _applicationIsSilent(self) -> None:
        timeoutSeconds = self._settings.processTimeoutSeconds
        self.log.warn(
            "leaving group {group!r}: the application has not polled for {timeout:g} seconds; take fewer records"
            " (max.poll.records) or longer (max.poll.interval.ms)",
            group=self._coordinator.groupId,
            timeout=timeoutSeconds,
        )
        self.leave(f"it has not polled for {timeoutSeconds:g} seconds")

    def leave(self, reason: str) -> Deferred[Any]:
        """
        Leave the group.  LeaveGroup is sent once, and not by a static member,
        which comes back under its C{group.instance.id}.

        @param reason: why, for the coordinator's log.
        @return: fires when the coordinator has answered, or the request failed.
        """
        left: Deferred[Any] = succeed(None)
        memberId = self.identity.memberId
        if self._settings.groupInstanceId is None and memberId and self.state != UNJOINED:
            if self.state == STABLE and not self._coordinator.isKnown:
                self.log.info(
                    "the coordinator of group {group!r} is not known, and not told that we leave",
                    group=self._coordinator.groupId,
                )
            else:
                if self.state != STABLE:
                    # The coordinator reads no further on this connection before it has answered JoinGroup.
                    self._coordinator.hangUp()
                left = self._coordinator.ask(
                    "LeaveGroup",
                    {
                        "member_id": memberId,
                        "members": [{"member_id": memberId, "group_instance_id": None, "reason": reason}],
                    },
                )
                left.addErrback(self._couldNotLeave)
        self._departures += 1
        self._forget(NO_MEMBER, reason)
        return left

    def _couldNotLeave(self, failure: Failure) -> None:
        failure.trap(ClientError, CancelledError)  # type: ignore[no-untyped-call]

    def _forget(self, memberId: str, reason: str) -> None:
        self.log.info("out of group {group!r}: {reason}", group=self._coordinator.groupId, reason=reason)
        self.heartbeats.stop()
        self.identity = Identity(NO_GENERATION, memberId)
        self.state = UNJOINED
        self.isLost = self.rejoinNeeded = True
        self._onChange()

    def close(self) -> None:
        self.state = UNJOINED
        self.heartbeats.close()
