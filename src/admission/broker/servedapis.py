# -*- test-case-name: tests.test_session -*-
"""
What serves each API, and how each says no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from ..interfaces import Refusal
from .api import configs, fetch, groupadmin, groups, metadata, offsets, produce, quotas, topics
from .broker import Answer, Serve
from .kafkarequest import KafkaRequest


@frozen
class ServedApi:
    """
    An API that is served.

    @ivar serve: does it.
    @ivar refusal: how quota policies can refuse it.
    @ivar refuse: makes the answer that says so, where that can be said.
    """

    serve: Serve
    refusal: Refusal = Refusal.DELAY
    refuse: Callable[[KafkaRequest], Answer] | None = None


SERVED: Mapping[str, ServedApi] = {
    "AlterClientQuotas": ServedApi(quotas.alterClientQuotas, Refusal.NEVER),
    "ApiVersions": ServedApi(metadata.apiVersions, Refusal.NEVER),
    "CreatePartitions": ServedApi(topics.createPartitions),
    "CreateTopics": ServedApi(topics.createTopics),
    "DeleteGroups": ServedApi(groupadmin.deleteGroups),
    "DeleteTopics": ServedApi(topics.deleteTopics),
    "DescribeClientQuotas": ServedApi(quotas.describeClientQuotas, Refusal.NEVER),
    "DescribeCluster": ServedApi(metadata.describeCluster),
    "DescribeConfigs": ServedApi(configs.describeConfigs),
    "DescribeGroups": ServedApi(groupadmin.describeGroups),
    "Fetch": ServedApi(fetch.fetch, Refusal.ERROR, fetch.refused),
    "FindCoordinator": ServedApi(metadata.findCoordinator),
    "Heartbeat": ServedApi(groups.heartbeat),
    "IncrementalAlterConfigs": ServedApi(configs.incrementalAlterConfigs),
    "InitProducerId": ServedApi(produce.initProducerId, Refusal.ERROR, produce.refusedProducerId),
    "JoinGroup": ServedApi(groups.joinGroup),
    "LeaveGroup": ServedApi(groups.leaveGroup, Refusal.NEVER),
    "ListGroups": ServedApi(groupadmin.listGroups),
    "ListOffsets": ServedApi(fetch.listOffsets),
    "Metadata": ServedApi(metadata.metadata),
    "OffsetCommit": ServedApi(offsets.offsetCommit),
    "OffsetDelete": ServedApi(offsets.offsetDelete),
    "OffsetFetch": ServedApi(offsets.offsetFetch),
    "SyncGroup": ServedApi(groups.syncGroup),
}
"""By the name of the API; logins and Produce, which has a fast path, are served by the session."""
