# -*- test-case-name: tests.unit.kafka.client.test_errors -*-
"""
What can go wrong between a client and a broker, and how long to wait before
trying again.
"""

from __future__ import annotations

from random import Random

from attrs import frozen
from kio.schema.errors import ErrorCode

_FACTOR = 2.0
_JITTER = 0.2


class ClientError(Exception):
    """
    The base class of all errors of a client.

    @cvar isRetriable: whether the same may succeed later, or elsewhere.
    """

    isRetriable = False


class Disconnected(ClientError):
    """
    There is no connection to a broker, or it was lost.
    """

    isRetriable = True


class RequestTimedOut(Disconnected):
    """
    A broker did not answer in time.  The connection ends with it: responses
    come in order, so none behind this one would come either.
    """


class BrokerRefused(ClientError):
    """
    A broker answered with an error.

    @ivar errorCode: Kafka's error.
    @ivar request: what was asked, for messages.
    @ivar isRetriable: whether Kafka's clients would try again.
    """

    def __init__(self, errorCode: int, request: str, message: str | None = None) -> None:
        """
        @param message: what the broker says about it, if anything.
        """
        super().__init__(errorCode, request, message)
        self.errorCode = ErrorCode(errorCode)
        self.request = request
        self.message = message
        self.isRetriable = self.errorCode.retriable

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        return f"{self.request} was answered {self.errorCode.name.upper()} ({self.errorCode.value}){said}"


class UnsupportedApi(ClientError):
    """
    A broker speaks no version of an API that we speak.
    """


class AuthenticationFailed(ClientError):
    """
    A broker does not accept our credentials, or cannot prove its own.
    """


class CommitFailed(ClientError):
    """
    Offsets were not committed, because the partitions are not ours any more,
    or are about to be handed out anew.  Their next owner begins at the last
    commit.
    """


class NoOffset(ClientError):
    """
    There is nowhere to begin: no offset is committed, or none within the log,
    and C{auto.offset.reset} is C{none}.
    """


class RecordsRefused(ClientError):
    """
    A batch of a partition cannot be read.  L{Consumer.seek
    <admission.kafka.client.consumer.Consumer.seek>} past it to go on.

    @ivar offset: where reading stopped.
    @ivar nextOffset: where the next batch begins; L{None} if the header of this one is damaged.
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str, nextOffset: int | None = None) -> None:
        super().__init__(f"{topic}-{partition} cannot be read at offset {offset}: {reason}")
        self.nextOffset = nextOffset
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ConsumerClosed(ClientError):
    """
    The consumer was closed.
    """


def checkError(errorCode: int, request: str, message: str | None = None) -> None:
    """
    @raise BrokerRefused: unless C{errorCode} is zero.
    """
    if errorCode:
        raise BrokerRefused(errorCode, request, message)


@frozen
class Backoff:
    """
    Delays that double up to a maximum, each with a jitter of a fifth, so that
    clients which fail together do not come back together.
    """

    firstSeconds: float
    maxSeconds: float
    random: Random

    def delaySeconds(self, failures: int) -> float:
        """
        How long to wait.

        @param failures: failures in a row; one or more.
        """
        # Bounded, because floats overflow.
        seconds = min(self.firstSeconds * _FACTOR ** min(failures - 1, 64), self.maxSeconds)
        return seconds * self.random.uniform(1 - _JITTER, 1 + _JITTER)
