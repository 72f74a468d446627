# -*- test-case-name: tests.unit.kafka.client.test_consumer -*-
"""
A consumer: one application's share of some topics.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.metrics.registry import SensorRegistry

from .backoff import Backoff
from .cluster import Cluster
from .connecting import ConnectionSettings, EndpointMaker
from .consumersettings import ConsumerSettings
from .errors import ConsumerClosed
from .group import Group
from .metadata import Metadata
from .reading import Reading
from .rebalance import PartitionsCallback, ignore
from .sasl import Credentials
from .throttle import ThrottleTimes
from .topicpartition import ConsumerRecord, TopicPartition


class Consumer:
    """
    Reads topics, together with the other members of its group.

    L{poll} gives records.  Between two polls the application works on them,
    in Deferreds or in threads, for as long as C{max.poll.interval.ms} says;
    heartbeats go on meanwhile.  Partitions change hands during polls only, so
    that what was polled can be finished and committed first.  Everything here
    is for the reactor's thread.
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
        See L{makeConsumer <admission.kafka.client.making.makeConsumer>} for the
        usual way to make one.

        @param endpointFor: makes the endpoint for a broker's host and port.
        @param clock: runs and measures everything; monotonic.
        @param random: spreads what clients do when they fail together.
        @param credentials: who we are, if the brokers want to know.
        """
        self._settings = settings
        self._clock = clock
        backoff = Backoff(settings.retryBackoffSeconds, settings.retryBackoffMaxSeconds, random)
        connections = ConnectionSettings(
            clientId=settings.clientId,
            credentials=credentials,
            requestTimeoutSeconds=settings.requestTimeoutSeconds,
            maxResponseBytes=settings.receiveMessageMaxBytes,
        )
        self._cluster = cluster = Cluster(
            endpointFor,
            clock,
            connections,
            settings.bootstrapServers,
            random,
            allowAutoCreateTopics=settings.allowAutoCreateTopics,
        )
        metadata = Metadata(cluster, clock, backoff, settings.metadataMaxAgeSeconds, self._wantedTopics)
        self._group: Group | None = None
        if settings.groupId is not None:
            self._group = Group(settings.groupId, settings, cluster, metadata, clock, backoff)
        commits = None if self._group is None else self._group.commits
        self._reading = Reading(settings, cluster, clock, backoff, commits, metadata)
        self._reading.onReady = self._wake
        if self._group is not None:
            self._group.begin(self._reading)
            self._group.membership.onChange = self._wake
            self._group.rebalances.onEnd = self._rebalanced
            self._reading.onMetadata = self._group.membership.metadataChanged
        self._isManual = False
        self._poll: Deferred[list[ConsumerRecord]] | None = None
        self._pollTimer: IDelayedCall | None = None
        self._turn: IDelayedCall | None = None
        self._error: Exception | None = None
        self._isClosing = self._isClosed = False
        self._waitForClose: list[Deferred[None]] = []

    # What to read

    @property
    def subscription(self) -> frozenset[str]:
        """
        The topics that are subscribed to.
        """
        return self._reading.subscribed

    @property
    def assignment(self) -> list[TopicPartition]:
        """
        The partitions that are read.
        """
        return self._reading.partitions

    @property
    def throttleTimes(self) -> ThrottleTimes:
        """
        For how long brokers have asked us to be quiet.
        """
        return self._cluster.throttle

    def subscribe(
        self,
        topics: Iterable[str],
        onRevoked: PartitionsCallback = ignore,
        onAssigned: PartitionsCallback = ignore,
    ) -> None:
        """
        Read C{topics} as a member of the group, from the next poll on; in
        place of those subscribed to before.

        @param onRevoked: called with the partitions that are about to go to
            others, or are gone already if the group has given us up.  Nothing
            goes on before the L{Deferred} that it may return fires.
        @param onAssigned: called with all partitions that are ours now,
            before any record of theirs is polled; likewise.
        @raise ValueError: without a C{group.id}, without topics, or if
            partitions were assigned by hand.
        """
        wanted = frozenset((topics,) if isinstance(topics, str) else topics)
        if self._group is None:
            raise ValueError("subscribing takes a group: group.id is missing")
        if not wanted:
            raise ValueError("there are no topics to subscribe to")
        if self._isManual:
            raise ValueError("partitions were assigned by hand, and the group knows nothing of them")
        self._group.subscribe(wanted, onRevoked, onAssigned)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read C{partitions}, whoever else does; in place of those assigned
        before.  There is no membership then, and no heartbeat.

        @raise ValueError: if topics are subscribed to.
        """
        if self.subscription:
            raise ValueError("topics are subscribed to, and the group assigns their partitions")
        self._isManual = True
        self._reading.assign(partitions)
        if self._group is not None:
            self._group.startAutoCommit()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Hand over nothing of C{partitions} until L{resume}.  What was fetched
        of them already is fetched again then.

        @raise KeyError: if one is not assigned.
        """
        self._reading.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Hand over records of C{partitions} again.

        @raise KeyError: if one is not assigned.
        """
        self._reading.resume(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """
        Go on with C{offset}.

        @raise KeyError: if the partition is not assigned.
        @raise ValueError: if the offset is negative.
        """
        self._reading.seek(partition, offset)

    def position(self, partition: TopicPartition) -> int | None:
        """
        The offset of the next record to be polled; L{None} until it is known.

        @raise KeyError: if the partition is not assigned.
        """
        return self._reading.assigned(partition).position

    def _wantedTopics(self) -> frozenset[str]:
        return self._reading.topics if self._group is None else self._reading.topics | self._group.topics

    # Records

    def poll(self, timeoutSeconds: float | None = None) -> Deferred[list[ConsumerRecord]]:
        """
        Wait for records.  To ask says that those of earlier polls are done
        with, as far as commits without being asked are concerned.

        @param timeoutSeconds: for how long; for ever unless given.  A
            rebalance that takes longer goes on meanwhile.
        @return: fires with one to C{max.poll.records} records, in the order
            of their partitions, or with none when the time is over.  Fails
            with a L{ClientError} for what trying again does not cure, or
            whatever a callback has raised.  It can be cancelled.
        @raise RuntimeError: if another poll is waiting, or there is nothing
            to read.
        """
        if self._isClosing:
            return fail(ConsumerClosed("the consumer was closed"))
        if self._poll is not None:
            raise RuntimeError("another poll is waiting")
        if not self.subscription and not self._isManual:
            raise RuntimeError("there is nothing to read: subscribe or assign first")
        poll: Deferred[list[ConsumerRecord]] = Deferred(self._pollCancelled)
        self._poll = poll
        if timeoutSeconds is not None:
            self._pollTimer = self._clock.callLater(timeoutSeconds, self._pollTimedOut)
        if self._group is not None:
            self._group.polled()
        self._wake()
        return poll

    def _pollTimedOut(self) -> None:
        self._pollTimer = None
        self._endPoll([])

    def _pollCancelled(self, _: object) -> None:
        self._pollEnded()

    def _endPoll(self, result: Any) -> None:
        poll = self._pollEnded()
        poll.callback(result)

    def _pollEnded(self) -> Deferred[list[ConsumerRecord]]:
        poll, self._poll = self._poll, None
        assert poll is not None
        if self._pollTimer is not None:
            self._pollTimer.cancel()
            self._pollTimer = None
        if self._group is not None and not self._isClosing:
            self._group.handedOver()
        return poll

    def _wake(self) -> None:
        """
        See in the next turn what can be done.  Never at once, so that an
        application that finds records at every poll leaves the reactor time
        for heartbeats.
        """
        if self._turn is None and not self._isClosing:
            self._turn = self._clock.callLater(0, self._work)

    def _work(self) -> None:
        self._turn = None
        if self._poll is not None:
            try:
                self._raiseError()
                if self._group is not None and not self._group.settle():
                    return
                records = self._reading.take(self._settings.maxPollRecords)
            except Exception:
                self._endPoll(Failure())  # type: ignore[no-untyped-call]
            else:
                if records:
                    self._endPoll(records)
        self._reading.advance()

    def _raiseError(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _rebalanced(self, error: Exception | None) -> None:
        self._error = error
        self._wake()

    # Commits

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> Deferred[None]:
        """
        Commit, trying again for C{default.api.timeout.ms} if need be.

        @param offsets: for each partition the offset behind the last record
            that is done with; unless given, all that was polled.
        @return: fails with L{CommitFailed
            <admission.kafka.client.errors.CommitFailed>} if the partitions are
            not ours any more, or another L{ClientError}.
        @raise ValueError: without a C{group.id}.
        """
        if offsets is None:
            offsets = self._reading.offsets
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        return self._groupOrRaise.commit(wanted, self._settings.defaultApiTimeoutSeconds)

    def committed(self, partitions: Iterable[TopicPartition]) -> Deferred[dict[TopicPartition, int]]:
        """
        What the group has committed last; partitions without are left out.

        @return: fails with a L{ClientError}.
        @raise ValueError: without a C{group.id}.
        """
        return self._groupOrRaise.committed([TopicPartition(*place) for place in partitions])

    @property
    def _groupOrRaise(self) -> Group:
        if self._group is None:
            raise ValueError("there is no group to commit for: group.id is missing")
        return self._group

    # The end

    def close(self, commit: bool = True) -> Deferred[None]:
        """
        Give up the partitions, leave the group, close all connections.  A
        poll that waits fails with L{ConsumerClosed}.

        @param commit: whether what was polled is committed, if it would be
            without being asked.
        @return: fires when all is done; may be asked for several times.
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
        if self._group is not None:
            yield self._group.close(commit)
        yield self._reading.close()

    def _hasClosed(self, _: object) -> None:
        self._isClosed = True
        waiting, self._waitForClose = self._waitForClose, []
        for each in waiting:
            each.callback(None)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the consumer knows.
        """
        throttle = self._cluster.throttle
        registry.addGauge("ConsumerThrottleAvgSeconds", lambda now: throttle.averageSeconds(now))
        registry.addGauge("ConsumerThrottleMaxSeconds", lambda now: throttle.largestSeconds(now))
        registry.addGauge("ConsumerHeldBytes", lambda now: self._reading.fetcher.heldBytes)
        registry.addGauge("ConsumerAssignedPartitions", lambda now: len(self._reading.fetcher.assigned))
