"""
Kafka's protocol: the broker that C{twistd admission} runs, and the group
consumer.  Nothing outside this package knows Kafka.  Only the names in this
module and in L{admission.kafka.testing} are stable; others may move without
notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .client.consumer import Consumer as Consumer, makeConsumer as makeConsumer
    from .client.consumerservice import ConsumerService as ConsumerService
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
    from .client.recordsets import ConsumerRecord as ConsumerRecord
    from .client.subscriptionstate import TopicPartition as TopicPartition
    from .wire.batches import Record as Record, encodeBatch as encodeBatch
    from .wire.requests import clientApi as clientApi, decodeResponse as decodeResponse, encodeRequest as encodeRequest

__all__, __getattr__, __dir__ = lazyNames(__name__)
