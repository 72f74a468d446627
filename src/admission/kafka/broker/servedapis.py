# -*- test-case-name: tests.unit.kafka.broker.test_servedapis -*-
"""
The table of served APIs: their functions, who may use them, and how policies can refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from admission.interfaces import Refusal
from admission.timeslices import Steps

from ..serving import quotaapi
from ..serving.kafkarequest import KafkaRequest
from ..serving.refusals import refusedProducerId
from .api import (
    authorization,
    configapi,
    credentialapi,
    fetchapi,
    groupadminapi,
    groupapi,
    metadataapi,
    offsetapi,
    produceapi,
    replicaapi,
    topicapi,
    transactionapi,
)
from .broker import Answer, Broker, Serve, Waiting


@frozen
class ServedApi:
    """
    An API that is served.

    @ivar serve: answers a request.
    @ivar refusal: how quota policies can refuse a request.
    @ivar refuse: makes the answer to a refused request; L{None} if there is none.
    @ivar forbid: where only super users may make a request, makes the answer to
        others, given the reason; L{None} if everybody may.
    """

    serve: Serve
    refusal: Refusal = Refusal.DELAY
    refuse: Callable[[KafkaRequest], Answer] | None = None
    forbid: Callable[[KafkaRequest, str], Answer] | None = None

    def answer(self, broker: Broker, request: KafkaRequest) -> Answer | Waiting | Steps[Answer | Waiting]:
        """
        Serve a request, or tell its client that it may not make it.
        """
        if self.forbid is not None:
            assert request.principal is not None
            reason = broker.superUsers.refusal(request.principal)
            if reason is not None:
                request.reject(reason)
                return self.forbid(request, reason)
        return self.serve(broker, request)


SERVED: Mapping[str, ServedApi] = {
    "AlterClientQuotas": ServedApi(quotaapi.alterClientQuotas, Refusal.NEVER, forbid=quotaapi.quotasForbidden),
    "AlterConfigs": ServedApi(configapi.alterConfigs, forbid=authorization.configsForbidden),
    "AlterUserScramCredentials": ServedApi(
        credentialapi.alterUserScramCredentials, Refusal.NEVER, forbid=authorization.credentialsForbidden
    ),
    "ApiVersions": ServedApi(metadataapi.apiVersions, Refusal.NEVER),
    "CreatePartitions": ServedApi(topicapi.createPartitions, forbid=authorization.partitionsForbidden),
    "CreateTopics": ServedApi(topicapi.createTopics, forbid=authorization.creationForbidden),
    "DeleteGroups": ServedApi(groupadminapi.deleteGroups, forbid=authorization.groupsForbidden),
    "DeleteRecords": ServedApi(topicapi.deleteRecords, forbid=authorization.recordsForbidden),
    "DeleteTopics": ServedApi(topicapi.deleteTopics, forbid=authorization.deletionForbidden),
    "DescribeAcls": ServedApi(authorization.describeAcls),
    "DescribeClientQuotas": ServedApi(quotaapi.describeClientQuotas, Refusal.NEVER),
    "DescribeCluster": ServedApi(metadataapi.describeCluster),
    "DescribeConfigs": ServedApi(configapi.describeConfigs),
    "DescribeGroups": ServedApi(groupadminapi.describeGroups),
    "DescribeLogDirs": ServedApi(replicaapi.describeLogDirs, forbid=authorization.directoriesForbidden),
    "DescribeProducers": ServedApi(transactionapi.describeProducers),
    "DescribeTopicPartitions": ServedApi(metadataapi.describeTopicPartitions),
    "DescribeUserScramCredentials": ServedApi(
        credentialapi.describeUserScramCredentials, forbid=authorization.credentialsHidden
    ),
    "ElectLeaders": ServedApi(replicaapi.electLeaders),
    "Fetch": ServedApi(fetchapi.fetch, Refusal.ERROR, fetchapi.refused),
    "FindCoordinator": ServedApi(metadataapi.findCoordinator),
    "Heartbeat": ServedApi(groupapi.heartbeat),
    "IncrementalAlterConfigs": ServedApi(configapi.incrementalAlterConfigs, forbid=authorization.configsForbidden),
    "InitProducerId": ServedApi(produceapi.initProducerId, Refusal.ERROR, refusedProducerId),
    "JoinGroup": ServedApi(groupapi.joinGroup),
    "LeaveGroup": ServedApi(groupapi.leaveGroup, Refusal.NEVER),
    "ListConfigResources": ServedApi(configapi.listConfigResources),
    "ListGroups": ServedApi(groupadminapi.listGroups),
    "ListOffsets": ServedApi(fetchapi.listOffsets),
    "ListPartitionReassignments": ServedApi(replicaapi.listPartitionReassignments),
    "ListTransactions": ServedApi(transactionapi.listTransactions),
    "Metadata": ServedApi(metadataapi.metadata),
    "OffsetCommit": ServedApi(offsetapi.offsetCommit),
    "OffsetDelete": ServedApi(offsetapi.offsetDelete, forbid=authorization.offsetsForbidden),
    "OffsetFetch": ServedApi(offsetapi.offsetFetch),
    "OffsetForLeaderEpoch": ServedApi(fetchapi.offsetForLeaderEpoch),
    "SyncGroup": ServedApi(groupapi.syncGroup),
}
"""By the name of the API.  The session serves logins, and Produce, which has a fast path."""
