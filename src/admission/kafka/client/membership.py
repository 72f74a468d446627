# -*- test-case-name: tests.unit.kafka.client.test_membership -*-
"""
Being a member of a group: joining, heartbeats, leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from .backoff import Backoff
from .beating import Beating
from .cluster import checkError
from .consumersettings import ConsumerSettings
from .coordinator import NO_GENERATION, NO_MEMBER, Coordinator, Identity
from .errors import BrokerRefused, ClientError
from .leading import Leadership
from .protocol import PROTOCOL_TYPE, MalformedMembership, decodeAssignment, encodeSubscription
from .topicpartition import TopicPartition

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
"""How often in a row joining is tried again without a pause."""


class MembershipLost(ClientError):
    """
    While we joined, what we joined came to an end.
    """

    isRetriable = True


class Membership:
    """
    One member of one group, as its consumer sees it.

    @ivar state: L{UNJOINED}, L{PREPARING} (waiting for the others),
        L{COMPLETING} (waiting for the assignment) or L{STABLE}.
    @ivar rejoinNeeded: whether the consumer should L{join}.
    @ivar isLost: whether the partitions assigned last are not ours any more,
        so that nothing can be committed for them.
    @ivar failure: why the member cannot go on, if it cannot.
    @ivar beating: its heartbeats, to be told what the application does.
    @ivar onChange: called when C{rejoinNeeded} or C{failure} changes.
    """

    log = Logger()

    def __init__(
        self,
        coordinator: Coordinator,
        settings: ConsumerSettings,
        clock: IReactorTime,
        backoff: Backoff,
        leadership: Leadership,
    ) -> None:
        """
        @param clock: runs and measures timers; monotonic.
        @param leadership: decides for all members, if that falls to us.
        """
        self._coordinator = coordinator
        self._leadership = leadership
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._identity = Identity(NO_GENERATION, NO_MEMBER)
        self._departures = 0
        self.state = UNJOINED
        self.rejoinNeeded = False
        self.isLost = False
        self.failure: ClientError | None = None
        self.beating = Beating(
            coordinator,
            settings,
            clock,
            backoff,
            identity=lambda: self._identity,
            onError=self._beatRefused,
            onSilence=self._applicationIsSilent,
        )
        self.onChange: Callable[[], None] = lambda: None

    @property
    def identity(self) -> Identity:
        """
        Who we are to the coordinator.
        """
        return self._identity

    @property
    def mayCommit(self) -> bool:
        """
        Whether the coordinator would take a commit for what we were assigned.
        """
        return self.state == STABLE and not self.isLost

    def requestRejoin(self, reason: str) -> None:
        """
        Have the partitions handed out anew, from the next poll on.

        @param reason: why, for the log.
        """
        if not self.rejoinNeeded:
            self.rejoinNeeded = True
            self.log.info("rejoining group {group!r}: {reason}", group=self._coordinator.groupId, reason=reason)
            self.onChange()

    def metadataChanged(self) -> None:
        """
        If we lead the group and a topic has got more partitions, or there is
        a topic at last, somebody has to have them.
        """
        if self.state == STABLE and self._leadership.isOutdated:
            self.requestRejoin("the number of partitions has changed")

    # Joining

    @inlineCallbacks
    def join(self, topics: Collection[str]) -> Generator[Deferred[Any], Any, list[TopicPartition]]:
        """
        Join the group, or join it again, for as long as it takes.

        @param topics: what we want to read.
        @return: fires with the partitions that we get; fails with a
            L{ClientError} if trying again would not help.  When it is
            cancelled, the group takes us for a member still.
        """
        failures = atOnce = 0
        departures = self._departures
        while True:
            try:
                partitions: list[TopicPartition] = yield self._joinOnce(topics)
                return partitions
            except ClientError as error:
                if departures != self._departures:
                    raise MembershipLost("the group was left while joining it") from error
                self.beating.stop()
                self._coordinator.noteError(error)
                waits = self._noteJoinError(error)
                atOnce = 0 if waits else atOnce + 1
            if waits or atOnce > _MAX_AT_ONCE:
                failures += 1
                yield deferLater(self._clock, self._backoff.delaySeconds(failures))

    @inlineCallbacks
    def _joinOnce(self, topics: Collection[str]) -> Generator[Deferred[Any], Any, list[TopicPartition]]:
        self.beating.stop()
        self.state = PREPARING
        settings, group = self._settings, self._coordinator.groupId
        metadata = encodeSubscription(topics)
        joined = yield self._coordinator.ask(
            "JoinGroup",
            {
                "session_timeout_ms": round(settings.sessionTimeoutSeconds * 1000),
                "rebalance_timeout_ms": round(settings.maxPollIntervalSeconds * 1000),
                "member_id": self._identity.memberId,
                "group_instance_id": settings.groupInstanceId,
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": name, "metadata": metadata} for name in settings.assignors],
            },
            settings.joinTimeoutSeconds,
        )
        if joined.error_code == ErrorCode.member_id_required:
            self._identity = Identity(NO_GENERATION, joined.member_id)
        checkError(joined.error_code, f"joining group {group!r}")
        self._identity = identity = Identity(joined.generation_id, joined.member_id)
        # From here on the coordinator counts the session, though the assignment is still to come.
        self.state = COMPLETING
        self.beating.start()
        self._leadership.resign()
        assignments: Sequence[Mapping[str, Any]] = []
        if joined.leader == joined.member_id and not getattr(joined, "skip_assignment", False):
            assignments = yield self._leadership.assign(joined)
            self._checkIdentity(identity)
        synced = yield self._coordinator.ask(
            "SyncGroup",
            {
                "generation_id": identity.generation,
                "member_id": identity.memberId,
                "group_instance_id": settings.groupInstanceId,
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
        self.beating.coordinatorSpoke()
        self.log.info(
            "group {group!r}: generation {generation} as {member}, which gets {partitions}",
            group=group,
            generation=identity.generation,
            member=identity.memberId,
            partitions=", ".join(map(str, partitions)) or "nothing",
        )
        return partitions

    def _checkIdentity(self, identity: Identity) -> None:
        if identity != self._identity:
            raise MembershipLost(f"generation {identity.generation} of group {self._coordinator.groupId!r} is over")

    def _noteJoinError(self, error: ClientError) -> bool:
        """
        Take back what C{error} says does not hold.

        @return: whether to wait before trying again.
        @raise ClientError: if trying again would not help.
        """
        self.state = UNJOINED
        if not isinstance(error, BrokerRefused):
            if error.isRetriable:
                return True
            raise error
        if error.errorCode in _FORGET_GENERATION:
            self._identity = Identity(NO_GENERATION, self._identity.memberId)
        elif error.errorCode in _FORGET_MEMBER:
            self._identity = Identity(NO_GENERATION, NO_MEMBER)
        if error.errorCode in _REJOIN_LATER:
            return True
        if error.errorCode in _REJOIN_AT_ONCE | _FORGET_GENERATION or error.errorCode == ErrorCode.unknown_member_id:
            return False
        if error.errorCode == ErrorCode.fenced_instance_id:
            self._fail(error)
        raise error

    # Errors

    def _beatRefused(self, errorCode: ErrorCode, identity: Identity) -> None:
        error = BrokerRefused(errorCode.value, "a heartbeat")
        if errorCode == ErrorCode.group_authorization_failed:
            self._fail(error)
        elif errorCode != ErrorCode.rebalance_in_progress or self.state == STABLE:
            self.noteError(error, identity)

    def noteError(self, error: BrokerRefused, identity: Identity) -> None:
        """
        The coordinator has answered a heartbeat or a commit with an error:
        give up what it says does not hold.

        @param identity: as whom it was asked; what it says of the past does
            not matter.
        """
        self._coordinator.noteError(error)
        if identity != self._identity:
            return
        if error.errorCode == ErrorCode.rebalance_in_progress:
            self.requestRejoin(str(error))
        elif error.errorCode in _FORGET_GENERATION:
            self._forget(self._identity.memberId, str(error))
        elif error.errorCode in _FORGET_MEMBER:
            self._forget(NO_MEMBER, str(error))
            if error.errorCode == ErrorCode.fenced_instance_id:
                self._fail(error)

    def _fail(self, error: ClientError) -> None:
        """
        To try again would be wrong: another consumer has our name, say, and
        we would only throw that one out in turn.
        """
        self.failure = error
        self.onChange()

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
        Leave the group: once, whether the coordinator hears it or not.  A
        static member only stops, to come back as who it was.

        @param reason: why, for the coordinator's log.
        @return: fires when the coordinator has answered, or will not.
        """
        left: Deferred[Any] = succeed(None)
        memberId = self._identity.memberId
        if self._settings.groupInstanceId is None and memberId and self.state != UNJOINED:
            if self.state == STABLE and not self._coordinator.isKnown:
                self.log.info(
                    "the coordinator of group {group!r} is not known, and not told that we leave",
                    group=self._coordinator.groupId,
                )
            else:
                if self.state != STABLE:
                    # The coordinator reads no further on this connection before it has answered.
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
        self.beating.stop()
        self._identity = Identity(NO_GENERATION, memberId)
        self.state = UNJOINED
        self.isLost = self.rejoinNeeded = True
        self.onChange()

    def close(self) -> None:
        """
        Leave no timer behind.
        """
        self.state = UNJOINED
        self.beating.close()
