"""
What the tests of the record log share.
"""

import os
from collections.abc import Callable
from typing import Any

import lmdb
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import AppendResult, Partition
from admission.kafka.broker.log.lmdb_log import LmdbLog
from admission.kafka.wire.batches import Record, RecordBatch, encodeBatch, readBatch


def makeBatch(
    *timestampsMs: int,
    producerId: int = -1,
    producerEpoch: int = -1,
    baseSequence: int = -1,
    valueBytes: int = 0,
    attributes: int = 0,
) -> tuple[bytearray, RecordBatch]:
    """
    A batch of one record for each timestamp, and its header.
    """
    encoded = bytearray(
        encodeBatch(
            [Record(value=bytes(valueBytes), timestampMs=timestampMs) for timestampMs in timestampsMs],
            attributes=attributes,
            producerId=producerId,
            producerEpoch=producerEpoch,
            baseSequence=baseSequence,
        )
    )
    return encoded, readBatch(encoded)


class TurnClock(Clock):
    """
    A clock with turns, as a reactor has them: what is to be called without a
    delay is called by the next L{turn}, not by the one that is going on.
    """

    TURN_SECONDS = 2.0**-20

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> IDelayedCall:
        """
        See L{twisted.internet.interfaces.IReactorTime.callLater}.
        """
        return super().callLater(max(delay, self.TURN_SECONDS), callable, *args, **kw)

    def turn(self) -> None:
        """
        Call what is due.
        """
        self.advance(self.TURN_SECONDS)


def storageError(code: int) -> lmdb.Error:
    """
    An error of the operating system as LMDB reports it.

    @param code: one of L{errno}.
    """
    error = lmdb.Error(os.strerror(code))
    # The class itself takes no code, whatever its stub says; LMDB adds it afterwards.
    vars(error)["code"] = code
    return error


def skipDisk(synchronise: Callable[[], Any]) -> Deferred[None]:
    """
    Say that the disk has been synchronised: a test does not lose power.
    """
    return succeed(None)


class Threads:
    """
    Threads that do nothing before they are told to.

    @ivar waiting: what they have been given.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    def deferToThread(self, function: Callable[[], Any]) -> Deferred[Any]:
        """
        Keep a function for L{run}.
        """
        result: Deferred[Any] = Deferred()
        self.waiting.append((result, function))
        return result

    def run(self) -> None:
        """
        Call the oldest function that waits.
        """
        result, function = self.waiting.pop(0)
        maybeDeferred(function).chainDeferred(result)


class FailingEnvironment:
    """
    An environment whose transactions can be made to fail when they are committed.

    @ivar error: what their commits raise; L{None} for nothing.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.error: Exception | None = None

    def begin(self, *args: Any, **kwargs: Any) -> "FailingTransaction":
        """
        As the environment's own.
        """
        return FailingTransaction(self, self._environment.begin(*args, **kwargs))


class FailingTransaction:
    """
    A transaction of a L{FailingEnvironment}.
    """

    def __init__(self, owner: FailingEnvironment, transaction: Any) -> None:
        self._owner = owner
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def commit(self) -> None:
        """
        Commit, or lose everything and raise.
        """
        if self._owner.error is not None:
            self._transaction.abort()
            raise self._owner.error
        self._transaction.commit()


class LogTestCase(SynchronousTestCase):
    """
    A test with a log.

    @ivar clock: the log's clock.
    @ivar wallSeconds: what the log takes for the time.
    @ivar path: the log's directory.
    @ivar log: the log.
    @ivar limits: arguments for the log; records do not age unless they say so.
    """

    limits: dict[str, Any] = {"retentionSeconds": None}

    def setUp(self) -> None:
        """
        Open a log in a new directory, and let its first sweep pass.
        """
        self.clock = TurnClock()
        self.wallSeconds = 1_000_000.0
        self.path = self.mktemp()
        self.log = self.openLog()

    def openLog(self, **limits: Any) -> LmdbLog:
        """
        Open the log in the test's directory; closed when the test ends.
        """
        log = LmdbLog(self.path, self.clock, lambda: self.wallSeconds, skipDisk, **{**self.limits, **limits})
        self.addCleanup(lambda: self.successResultOf(log.close()))
        self.environment = FailingEnvironment(log._commits._environment)
        log._commits._environment = self.environment  # type: ignore[assignment]
        self.clock.turn()
        return log

    def reopenLog(self, **limits: Any) -> None:
        """
        Close the log and open it again.
        """
        self.successResultOf(self.log.close())
        self.log = self.openLog(**limits)

    def settle(self) -> None:
        """
        Let turns pass until nothing is left to be done soon.
        """
        while any(call.getTime() - self.clock.seconds() <= self.clock.TURN_SECONDS for call in self.clock.calls):
            self.clock.turn()

    def sweep(self) -> None:
        """
        Let the log sweep once from beginning to end.
        """
        self.settle()
        self.clock.advance(30.0)
        self.settle()

    def partition(self, topicName: str = "events", index: int = 0) -> Partition:
        """
        A partition of a topic; the topic is made if it is not there.
        """
        if topicName not in self.log.topics:
            self.log.createTopic(topicName, index + 1, {})
        return self.log.topic(topicName).partitions[index]

    def append(self, partition: Partition, *timestampsMs: int, **header: int) -> AppendResult:
        """
        Append a batch of one record for each timestamp, or of one record.
        """
        buffer, batch = makeBatch(*(timestampsMs or (0,)), **header)
        return self.log.append(partition, buffer, batch)

    def failCommits(self, error: Exception | None) -> None:
        """
        Have commits raise something from now on, or succeed again.
        """
        self.environment.error = error
