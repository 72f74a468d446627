"""
What can go wrong between a client and a broker, in words.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode


class ClientError(Exception):
    """
    Anything of the below.

    @cvar isRetriable: whether the same may succeed later, or elsewhere.
    """

    isRetriable = False


class Disconnected(ClientError):
    """
    There is no connection to a broker, or there is none any more.
    """

    isRetriable = True


class RequestTimedOut(Disconnected):
    """
    A broker did not answer in time, which ends its connection: responses come
    in order, so nothing behind this one would come either.
    """


class BrokerRefused(ClientError):
    """
    A broker answered with an error.

    @ivar errorCode: Kafka's error.
    @ivar request: what was asked, in words.
    """

    def __init__(self, errorCode: int, request: str, message: str | None = None) -> None:
        """
        @param message: what the broker says about it, if anything.
        """
        super().__init__(errorCode, request, message)
        self.errorCode = ErrorCode(errorCode)
        self.request = request
        self.message = message

    @property
    def isRetriable(self) -> bool:  # type: ignore[override]
        """
        Whether Kafka's clients would try again.
        """
        return self.errorCode.retriable

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        return f"{self.request} was answered {self.errorCode.name.upper()} ({self.errorCode.value}){said}"


class UnsupportedApi(ClientError):
    """
    A broker speaks no version of an API that we speak.
    """


class AuthenticationFailed(ClientError):
    """
    A broker does not believe who we are, or we do not believe the broker.
    """


class CommitFailed(ClientError):
    """
    Offsets were not committed, because the partitions are not ours any more,
    or are about to be handed out anew: whoever has them next begins where the
    last commit says.
    """


class NoOffset(ClientError):
    """
    There is nowhere to begin: no offset is committed, or none within the log,
    and C{auto.offset.reset} is C{none}.
    """


class RecordsRefused(ClientError):
    """
    What a partition holds cannot be read.  L{Consumer.seek
    <admission.kafka.client.consumer.Consumer.seek>} past it to go on.

    @ivar offset: where reading stopped.
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(f"{topic}-{partition} cannot be read at offset {offset}: {reason}")
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ConsumerClosed(ClientError):
    """
    The consumer was closed.
    """
