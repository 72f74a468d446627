"""
Kafka's protocol: the broker that C{twistd admission} runs, and the group
consumer.  Nothing outside this package knows Kafka.  Names that are not here
may move without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .client.consumer import Consumer as Consumer
    from .client.consumersettings import ConsumerSettings as ConsumerSettings, consumerSettings as consumerSettings
    from .client.errors import (
        AuthenticationFailed as AuthenticationFailed,
        BrokerRefused as BrokerRefused,
        ClientError as ClientError,
        CommitFailed as CommitFailed,
        ConsumerClosed as ConsumerClosed,
        Disconnected as Disconnected,
        NoOffset as NoOffset,
        RecordsRefused as RecordsRefused,
        RequestTimedOut as RequestTimedOut,
        UnsupportedApi as UnsupportedApi,
    )
    from .client.making import makeConsumer as makeConsumer
    from .client.service import ConsumerService as ConsumerService
    from .client.topicpartition import ConsumerRecord as ConsumerRecord, TopicPartition as TopicPartition
    from .wire.batches import Record as Record, encodeBatch as encodeBatch
    from .wire.requests import clientApi as clientApi, decodeResponse as decodeResponse, encodeRequest as encodeRequest

__all__, __getattr__, __dir__ = lazyNames(
    __name__,
    {
        "client.consumer": ("Consumer",),
        "client.errors": (
            "AuthenticationFailed",
            "BrokerRefused",
            "ClientError",
            "CommitFailed",
            "ConsumerClosed",
            "Disconnected",
            "NoOffset",
            "RecordsRefused",
            "RequestTimedOut",
            "UnsupportedApi",
        ),
        "client.making": ("makeConsumer",),
        "client.service": ("ConsumerService",),
        "client.consumersettings": (
            "ConsumerSettings",
            "consumerSettings",
        ),
        "client.topicpartition": (
            "ConsumerRecord",
            "TopicPartition",
        ),
        "wire.batches": (
            "Record",
            "encodeBatch",
        ),
        "wire.requests": (
            "clientApi",
            "decodeResponse",
            "encodeRequest",
        ),
    },
)
