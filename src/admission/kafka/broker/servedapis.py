# -*- test-case-name: tests.unit.kafka.broker.test_servedapis -*-
"""
The table of served APIs: their functions, and how policies can refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from admission.interfaces import Refusal

from ..kafkarequest import KafkaRequest
from .api import configapi, fetchapi, groupadminapi, groupapi, metadataapi, offsetapi, produceapi, quotaapi, topicapi
from .broker import Answer, Serve


@frozen
class ServedApi:
    """
    An API that is served.

    @ivar serve: answers a request.
    @ivar refusal: how quota policies can refuse a request.
    @ivar refuse: makes the answer to a refused request; L{None} if there is none.
    """

    serve: Serve
    refusal: Refusal = Refusal.DELAY
    refuse: Callable[[KafkaRequest], Answer] | None = None


SERVED: Mapping[str, ServedApi] = {
    "AlterClientQuotas": ServedApi(quotaapi.alterClientQuotas, Refusal.NEVER),
    "ApiVersions": ServedApi(metadataapi.apiVersions, Refusal.NEVER),
    "CreatePartitions": ServedApi(topicapi.createPartitions),
    "CreateTopics": ServedApi(topicapi.createTopics),
    "DeleteGroups": ServedApi(groupadminapi.deleteGroups),
    "DeleteTopics": ServedApi(topicapi.deleteTopics),
    "DescribeClientQuotas": ServedApi(quotaapi.describeClientQuotas, Refusal.NEVER),
    "DescribeCluster": ServedApi(metadataapi.describeCluster),
    "DescribeConfigs": ServedApi(configapi.describeConfigs),
    "DescribeGroups": ServedApi(groupadminapi.describeGroups),
    "Fetch": ServedApi(fetchapi.fetch, Refusal.ERROR, fetchapi.refused),
    "FindCoordinator": ServedApi(metadataapi.findCoordinator),
    "Heartbeat": ServedApi(groupapi.heartbeat),
    "IncrementalAlterConfigs": ServedApi(configapi.incrementalAlterConfigs),
    "InitProducerId": ServedApi(produceapi.initProducerId, Refusal.ERROR, produceapi.refusedProducerId),
    "JoinGroup": ServedApi(groupapi.joinGroup),
    "LeaveGroup": ServedApi(groupapi.leaveGroup, Refusal.NEVER),
    "ListGroups": ServedApi(groupadminapi.listGroups),
    "ListOffsets": ServedApi(fetchapi.listOffsets),
    "Metadata": ServedApi(metadataapi.metadata),
    "OffsetCommit": ServedApi(offsetapi.offsetCommit),
    "OffsetDelete": ServedApi(offsetapi.offsetDelete),
    "OffsetFetch": ServedApi(offsetapi.offsetFetch),
    "OffsetForLeaderEpoch": ServedApi(fetchapi.offsetForLeaderEpoch),
    "SyncGroup": ServedApi(groupapi.syncGroup),
}
"""By the name of the API.  The session serves logins, and Produce, which has a fast path."""
