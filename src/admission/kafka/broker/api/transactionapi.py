# -*- test-case-name: tests.unit.kafka.broker.api.test_transactionapi -*-
"""
What tools ask about transactions, of which there are none: ListTransactions, DescribeProducers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import errorOf
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.codec import Rows

from ..broker import Broker
from .topicapi import partitionIn


def listTransactions(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    return {"error_code": ErrorCode.none, "transaction_states": []}


def describeProducers(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeProducers: the producers that may have a transaction open in a partition, of which there are none.
    """
    wanted: dict[str, dict[int, None]] = {}
    for each in request.entity.topics:
        wanted.setdefault(each.name, {}).update(dict.fromkeys(each.partition_indexes))

    def described(topicName: str) -> Mapping[str, Any]:
        def looked(index: int) -> Mapping[str, Any]:
            try:
                partitionIn(broker.log.topic(topicName), index)
            except LogRefusal as refusal:
                return {"partition_index": index, **errorOf(refusal)}
            return {"partition_index": index, "error_code": ErrorCode.none}

        return {"name": topicName, "partitions": Rows(list(wanted[topicName]), looked)}

    return {"topics": Rows(list(wanted), described)}
