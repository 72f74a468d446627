# -*- test-case-name: tests.unit.kafka.client.test_consumer -*-
"""
A consumer: one application's share of some topics.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from random import Random, SystemRandom
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, inlineCallbacks, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall, IOpenSSLClientConnectionCreator, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.clock import MonotonicClock
from admission.metrics.registry import SensorRegistry

from .clientconnection import ConnectionSettings, EndpointMaker, endpointsOf
from .cluster import Cluster, ThrottleTimes
from .consumersettings import ConsumerSettings
from .coordinatorclient import CoordinatorClient
from .errors import Backoff, ConsumerClosed
from .fetcher import Fetcher
from .groupmember import GroupMember, MembershipLost
from .offsetcommits import OffsetCommits
from .recordsets import ConsumerRecord
from .sasl import Credentials
from .subscriptionstate import SubscriptionState, TopicPartition

CLOSE_TIMEOUT_SECONDS = 30.0
"""How long closing waits for the application, and tries to commit."""

#: Called with partitions that are revoked or assigned; what it returns is waited for.
PartitionsCallback = Callable[[list[TopicPartition]], Any]


def ignore(partitions: list[TopicPartition]) -> None:
    """
    The callback of applications that do not care about rebalances.
    """


class Consumer:
    """
    Reads topics, together with the other members of its group.

    L{poll} returns records.  Between two polls the application processes them,
    in Deferreds or in threads, for up to C{max.poll.interval.ms}; heartbeats go
    on meanwhile.  Partitions are revoked and assigned during polls only, so
    that polled records can be processed and committed first.  All methods are
    for the reactor's thread.
    """

    log = Logger()

    def __init__(
        self,
        settings: ConsumerSettings,
        endpointFor: EndpointMaker,
        clock: IReactorTime,
        random: Random,
        credentials: Credentials | None = None,
    ) -> None:
        """
        L{makeConsumer} is the usual way to make one.

        @param endpointFor: makes the endpoint for a broker's host and port.
        @param clock: runs and measures everything; monotonic.
        @param random: for jitter, and the order in which brokers are tried.
        @param credentials: to log in with, if the brokers ask for a login.
        """
        self._settings = settings
        self._clock = clock
        self._subscription = subscription = SubscriptionState(self._subscriptionChanged)
        backoff = Backoff(settings.retryBackoffSeconds, settings.retryBackoffMaxSeconds, random)
        self._cluster = cluster = Cluster(
            endpointFor,
            clock,
            ConnectionSettings(
                clientId=settings.clientId,
                credentials=credentials,
                requestTimeoutSeconds=settings.requestTimeoutSeconds,
                maxResponseBytes=settings.receiveMessageMaxBytes,
            ),
            settings.bootstrapServers,
            backoff,
            topics=lambda: subscription.ownTopics | subscription.groupTopics,
            onRefreshed=self._metadataRefreshed,
            maxAgeSeconds=settings.metadataMaxAgeSeconds,
            allowAutoCreateTopics=settings.allowAutoCreateTopics,
        )
        self._member: GroupMember | None = None
        self._commits: OffsetCommits | None = None
        committed = None
        if settings.groupId is not None:
            coordinator = CoordinatorClient(cluster, settings.groupId, settings.groupInstanceId)
            self._member = GroupMember(subscription, coordinator, cluster, settings, clock, backoff, self._wake)
            self._commits = OffsetCommits(subscription, coordinator, self._member, settings, clock, backoff)
            committed = self._commits.committed
        self._fetcher = Fetcher(subscription, cluster, settings, clock, backoff, committed, self._wake)
        self._isManual = False
        self._onRevoked: PartitionsCallback = ignore
        self._onAssigned: PartitionsCallback = ignore
        self._rebalancing: Deferred[None] | None = None
        self._error: Exception | None = None
        self._poll: Deferred[list[ConsumerRecord]] | None = None
        self._pollTimer: IDelayedCall | None = None
        self._turn: IDelayedCall | None = None
        self._isClosing = self._isClosed = False
        self._waitForClose: list[Deferred[None]] = []

    # What to read

    @property
    def subscription(self) -> frozenset[str]:
        """
        The topics that are subscribed to.
        """
        return self._subscription.topics

    @property
    def assignment(self) -> list[TopicPartition]:
        """
        The partitions that are read.
        """
        return self._subscription.assignment

    @property
    def throttleTimes(self) -> ThrottleTimes:
        """
        How long brokers have throttled us.
        """
        return self._cluster.throttle

    def subscribe(
        self,
        topics: Iterable[str],
        onRevoked: PartitionsCallback = ignore,
        onAssigned: PartitionsCallback = ignore,
    ) -> None:
        """
        Read C{topics} as a member of the group, from the next poll on; replaces
        an earlier subscription.

        @param onRevoked: called with the partitions that are about to be
            revoked, or are lost already if the group has removed us.  The
            rebalance waits for the L{Deferred} that it may return.
        @param onAssigned: called with all partitions of the new assignment,
            before any of their records is polled; likewise.
        @raise ValueError: without a C{group.id}, without topics, or if
            partitions were assigned by hand.
        """
        wanted = frozenset((topics,) if isinstance(topics, str) else topics)
        if self._member is None or self._commits is None:
            raise ValueError("subscribing takes a group: group.id is missing")
        if not wanted:
            raise ValueError("there are no topics to subscribe to")
        if self._isManual:
            raise ValueError("partitions were assigned by hand, and the group knows nothing of them")
        self._onRevoked, self._onAssigned = onRevoked, onAssigned
        if wanted != self._subscription.topics:
            self._subscription.subscribe(wanted)
            self._member.requestRejoin(f"the subscription is now {', '.join(sorted(wanted))}")
        self._commits.start()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read C{partitions}, whether other consumers do or not; replaces an
        earlier assignment.  The consumer is no member of the group then.

        @raise ValueError: if topics are subscribed to.
        """
        if self._subscription.topics:
            raise ValueError("topics are subscribed to, and the group assigns their partitions")
        self._isManual = True
        self._subscription.assign(partitions)
        if self._commits is not None:
            self._commits.start()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Return no records of C{partitions} until L{resume}.  Records that were
        fetched already are fetched again then.

        @raise KeyError: if one is not assigned.
        """
        self._subscription.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Return records of C{partitions} again.

        @raise KeyError: if one is not assigned.
        """
        self._subscription.pause(partitions, isPaused=False)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """
        Go on with C{offset}.

        @raise KeyError: if the partition is not assigned.
        @raise ValueError: if the offset is negative.
        """
        self._subscription.seek(partition, offset)

    def position(self, partition: TopicPartition) -> int | None:
        """
        The offset of the next record to be polled; L{None} until it is known.

        @raise KeyError: if the partition is not assigned.
        """
        return self._subscription.partition(partition).position

    def _subscriptionChanged(self) -> None:
        self._fetcher.subscriptionChanged()
        self._wake()

    def _metadataRefreshed(self) -> None:
        self._fetcher.metadataRefreshed()
        if self._member is not None:
            self._member.metadataRefreshed()
        self._wake()

    # Records

    def poll(self, timeoutSeconds: float | None = None) -> Deferred[list[ConsumerRecord]]:
        """
        Wait for records.  The records of earlier polls count as processed: an
        automatic commit includes them.

        @param timeoutSeconds: how long to wait; for ever unless given.  A
            rebalance that takes longer goes on meanwhile.
        @return: fires with one to C{max.poll.records} records, in the order
            of their partitions, or with none when the time is over.  Fails
            with a L{ClientError} for what trying again does not cure, or with
            the exception of a callback.  It can be cancelled.
        @raise RuntimeError: if another poll is waiting, or there is nothing
            to read.
        """
        if self._isClosing:
            return fail(ConsumerClosed("the consumer was closed"))
        if self._poll is not None:
            raise RuntimeError("another poll is waiting")
        if not self._subscription.topics and not self._isManual:
            raise RuntimeError("there is nothing to read: subscribe or assign first")
        poll: Deferred[list[ConsumerRecord]] = Deferred(lambda cancelled: self._pollEnded())
        self._poll = poll
        if timeoutSeconds is not None:
            self._pollTimer = self._clock.callLater(timeoutSeconds, self._pollTimedOut)
        if self._member is not None and self._commits is not None:
            self._member.heartbeats.pollStarted()
            self._commits.pollStarted()
        self._wake()
        return poll

    def _pollTimedOut(self) -> None:
        self._pollTimer = None
        self._endPoll([])

    def _endPoll(self, result: Any) -> None:
        poll = self._poll
        self._pollEnded()
        assert poll is not None
        poll.callback(result)

    def _pollEnded(self) -> None:
        self._poll = None
        if self._pollTimer is not None:
            self._pollTimer.cancel()
            self._pollTimer = None
        if self._member is not None and self._commits is not None and not self._isClosing:
            self._member.heartbeats.recordsReturned()
            self._commits.recordsReturned()

    def _wake(self) -> None:
        # In the next turn, never at once, so that an application that finds records at every poll leaves the reactor
        # time for heartbeats.
        if self._turn is None and not self._isClosing:
            self._turn = self._clock.callLater(0, self._work)

    def _work(self) -> None:
        self._turn = None
        if self._poll is not None:
            try:
                records = self._fetcher.take(self._settings.maxPollRecords) if self._ensureAssignment() else []
            except Exception:
                self._endPoll(Failure())  # type: ignore[no-untyped-call]
            else:
                if records:
                    self._endPoll(records)
        if self._rebalancing is None:
            self._fetcher.advance()
        else:
            # Records of revoked partitions go at once, not when all other members have joined.
            self._fetcher.applyChange()

    # Rebalances

    def _ensureAssignment(self) -> bool:
        """
        Begin a rebalance if the group asks for one.

        @return: whether the assignment is that of the group.
        @raise Exception: if the last rebalance has failed, or we cannot be a
            member any more.
        """
        if self._rebalancing is not None:
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        member = self._member
        if member is None or not self._subscription.topics:
            return True
        if member.failure is not None:
            raise member.failure
        if not member.rejoinNeeded:
            return True
        self._rebalancing = self._rebalance(member)
        self._rebalancing.addBoth(self._rebalanced)
        return False

    @inlineCallbacks
    def _rebalance(self, member: GroupMember) -> Generator[Deferred[Any], Any, None]:
        yield self._revoke()
        if self._isClosing:
            # By the callback, before it returned.
            return
        partitions = yield member.join()
        self._subscription.assign(partitions)
        yield self._callBack(self._onAssigned, partitions)

    def _rebalanced(self, result: Any) -> None:
        self._rebalancing = None
        error = result.value if isinstance(result, Failure) else None
        if isinstance(error, Exception) and not isinstance(error, MembershipLost | CancelledError):
            self._error = error
        self._wake()

    @inlineCallbacks
    def _revoke(self, callbackSeconds: float | None = None) -> Generator[Deferred[Any], Any, None]:
        """
        Give up the partitions: commit what was polled, call the application.

        @param callbackSeconds: how long the application is waited for; for ever
            unless given.
        """
        partitions = self._subscription.assignment
        if not partitions:
            return
        if self._commits is not None:
            yield self._commits.commitPositions(self._settings.requestTimeoutSeconds)
            self._commits.revoked()
        try:
            yield self._callBack(self._onRevoked, partitions, callbackSeconds)
        finally:
            # Even if it was cancelled, so that the application is not called twice.
            self._subscription.assign(())

    @inlineCallbacks
    def _callBack(
        self, callback: PartitionsCallback, partitions: list[TopicPartition], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, None]:
        """
        Call the application, whose processing time runs meanwhile.
        """
        member = self._member
        assert member is not None
        member.heartbeats.recordsReturned()
        try:
            finished = maybeDeferred(callback, partitions)
            if timeoutSeconds is not None:
                finished.addTimeout(timeoutSeconds, self._clock)
            yield finished
        except CancelledError:
            raise
        except Exception as error:
            # The rebalance goes on; the poll raises the error at its end.
            self._error = error
        finally:
            if self._poll is not None:
                member.heartbeats.pollStarted()

    # Commits

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> Deferred[None]:
        """
        Commit, trying again for C{default.api.timeout.ms} if need be.

        @param offsets: for each partition the offset behind the last record
            processed; the positions of all partitions unless given.
        @return: fails with L{CommitFailed
            <admission.kafka.client.errors.CommitFailed>} if the partitions are
            not ours any more, or another L{ClientError}.
        @raise ValueError: without a C{group.id}.
        """
        if offsets is None:
            offsets = self._subscription.offsets
        return self._groupCommits.commit({TopicPartition(*place): offset for place, offset in offsets.items()})

    def committed(self, partitions: Iterable[TopicPartition]) -> Deferred[dict[TopicPartition, int]]:
        """
        What the group has committed last; partitions without are left out.

        @return: fails with a L{ClientError}.
        @raise ValueError: without a C{group.id}.
        """
        return self._groupCommits.committed([TopicPartition(*place) for place in partitions])

    @property
    def _groupCommits(self) -> OffsetCommits:
        if self._commits is None:
            raise ValueError("there is no group to commit for: group.id is missing")
        return self._commits

    # The end

    def close(self, commit: bool = True) -> Deferred[None]:
        """
        Give up the partitions, leave the group, close all connections.  A
        poll that waits fails with L{ConsumerClosed}.

        @param commit: whether to do a last automatic commit, if the settings
            have them.
        @return: fires when all is done; may be called several times.
        """
        if self._isClosed:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._waitForClose.append(closed)
        if self._isClosing:
            return closed
        self._isClosing = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._poll is not None:
            self._endPoll(Failure(ConsumerClosed("the consumer was closed")))  # type: ignore[no-untyped-call]
        closing = self._close(commit)
        closing.addErrback(lambda failure: self.log.failure("closing a consumer went wrong", failure))
        closing.addBoth(self._hasClosed)
        return closed

    @inlineCallbacks
    def _close(self, commit: bool) -> Generator[Deferred[Any], Any, None]:
        if self._rebalancing is not None:
            self._rebalancing.cancel()
        if self._member is not None and self._commits is not None:
            yield self._commits.stop(commit)
            if self._subscription.topics:
                try:
                    yield self._revoke(CLOSE_TIMEOUT_SECONDS)
                except CancelledError:
                    # The application has cancelled what its callback returned; nothing cancels closing.
                    pass
                yield self._member.leave("the consumer was closed")
            else:
                yield self._commits.commitPositions(CLOSE_TIMEOUT_SECONDS)
            self._member.close()
        self._subscription.assign(())
        self._fetcher.close()
        yield self._cluster.close()

    def _hasClosed(self, _: object) -> None:
        self._isClosed = True
        waiting, self._waitForClose = self._waitForClose, []
        for each in waiting:
            each.callback(None)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Add the consumer's sensors.
        """
        throttle = self._cluster.throttle
        registry.addGauge("ConsumerThrottleAvgSeconds", throttle.averageSeconds)
        registry.addGauge("ConsumerThrottleMaxSeconds", throttle.largestSeconds)
        registry.addGauge("ConsumerHeldBytes", lambda now: self._fetcher.bufferedBytes)
        registry.addGauge("ConsumerAssignedPartitions", lambda now: len(self._subscription.partitions))


def makeConsumer(
    reactor: Any,
    settings: ConsumerSettings,
    *,
    tls: Callable[[str], IOpenSSLClientConnectionCreator] | None = None,
    credentials: Credentials | None = None,
) -> Consumer:
    """
    Make a consumer on the network.

    @param tls: given a broker's host name, makes the options of a TLS
        connection (L{twisted.internet.ssl.optionsForClientTLS} will do);
        L{None} for plain TCP.
    @param credentials: to log in with, if the brokers ask for a login.
    """
    endpointFor = endpointsOf(reactor, ConnectionSettings(tls=tls))
    random = Random(SystemRandom().getrandbits(64))
    return Consumer(settings, endpointFor, MonotonicClock(reactor), random, credentials)
