# -*- test-case-name: tests.unit.kafka.wire.test_relayedapis -*-
"""
The APIs that clients use, in the versions whose messages a gateway understands.

A gateway passes on far more than the broker serves.  It has to know little of it:
where the header ends, where the throttle time is, and whether there are addresses
of nodes.  What only nodes and controllers say to each other is not here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import field, frozen

from .versions import API_VERSIONS, DESCRIBE_CLUSTER, FETCH, FIND_COORDINATOR, METADATA, PRODUCE, SASL_HANDSHAKE

#: The largest greeting, and the largest message of a login (Kafka's own limit, for tickets of Kerberos).
_SMALL_BYTES: Final = 4 << 10
_LOGIN_BYTES: Final = 512 << 10

SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79


@frozen
class RelayedApi:
    """
    One API: the versions understood and what their responses contain.

    @ivar apiKey: the number that the protocol gives it.
    @ivar name: as Kafka's documentation spells it.
    @ivar minVersion: the oldest version that is understood.
    @ivar maxVersion: the newest version that is understood.
    @ivar firstFlexibleVersion: from here on lengths are varints and structures
        end in tagged fields (KIP-482).
    @ivar firstThrottledVersion: from here on responses have a throttle time; L{None}
        if they never do.
    @ivar throttleTimeOffset: where in the body it is; L{None} if that depends on
        the fields before it.
    @ivar firstVersionWithAddresses: from here on responses may say under which host
        and port a node is reached; L{None} if they never do.
    @ivar largestFrameBytes: the largest request frame, without its length prefix;
        L{None} where the configured request limit alone counts.
    """

    apiKey: int
    name: str
    minVersion: int
    maxVersion: int
    firstFlexibleVersion: int
    firstThrottledVersion: int | None = field(kw_only=True)
    throttleTimeOffset: int | None = field(kw_only=True, default=0)
    firstVersionWithAddresses: int | None = field(kw_only=True, default=None)
    largestFrameBytes: int | None = field(kw_only=True, default=None)

    @firstThrottledVersion.default
    def _throttledFromTheStart(self) -> int:
        return self.minVersion

    def isFlexible(self, apiVersion: int) -> bool:
        """
        Whether requests and responses of C{apiVersion} carry tagged fields.
        """
        return apiVersion >= self.firstFlexibleVersion


#: The table.  Flexible versions beyond the newest are those of APIs that never became flexible.
RELAYED_APIS: Final[tuple[RelayedApi, ...]] = (
    # Version 13 names topics by their ids, which the parser of requests does not know.
    RelayedApi(PRODUCE, "Produce", 3, 12, 9, throttleTimeOffset=None, firstVersionWithAddresses=10),
    RelayedApi(FETCH, "Fetch", 4, 18, 12, firstVersionWithAddresses=16),
    RelayedApi(2, "ListOffsets", 1, 11, 6, firstThrottledVersion=2),
    RelayedApi(METADATA, "Metadata", 0, 13, 9, firstThrottledVersion=3, firstVersionWithAddresses=0),
    RelayedApi(8, "OffsetCommit", 2, 10, 8, firstThrottledVersion=3),
    RelayedApi(9, "OffsetFetch", 1, 10, 6, firstThrottledVersion=3),
    RelayedApi(FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, firstThrottledVersion=1, firstVersionWithAddresses=0),
    RelayedApi(11, "JoinGroup", 0, 9, 6, firstThrottledVersion=2),
    RelayedApi(12, "Heartbeat", 0, 4, 4, firstThrottledVersion=1),
    RelayedApi(13, "LeaveGroup", 0, 5, 4, firstThrottledVersion=1),
    RelayedApi(14, "SyncGroup", 0, 5, 4, firstThrottledVersion=1),
    RelayedApi(15, "DescribeGroups", 0, 6, 5, firstThrottledVersion=1),
    RelayedApi(16, "ListGroups", 0, 5, 3, firstThrottledVersion=1),
    # Clients would follow version 0 with messages without Kafka's headers.
    RelayedApi(SASL_HANDSHAKE, "SaslHandshake", 1, 1, 2, firstThrottledVersion=None, largestFrameBytes=_SMALL_BYTES),
    RelayedApi(
        API_VERSIONS,
        "ApiVersions",
        0,
        4,
        3,
        firstThrottledVersion=1,
        throttleTimeOffset=None,
        largestFrameBytes=_SMALL_BYTES,
    ),
    RelayedApi(19, "CreateTopics", 2, 7, 5),
    RelayedApi(20, "DeleteTopics", 1, 6, 4),
    RelayedApi(21, "DeleteRecords", 0, 2, 2),
    RelayedApi(22, "InitProducerId", 0, 6, 2),
    RelayedApi(23, "OffsetForLeaderEpoch", 2, 4, 4),
    RelayedApi(24, "AddPartitionsToTxn", 0, 5, 3),
    RelayedApi(25, "AddOffsetsToTxn", 0, 4, 3),
    RelayedApi(26, "EndTxn", 0, 5, 3),
    # For Admin.abortTransaction.
    RelayedApi(27, "WriteTxnMarkers", 1, 2, 1, firstThrottledVersion=None),
    RelayedApi(28, "TxnOffsetCommit", 0, 5, 3),
    RelayedApi(29, "DescribeAcls", 1, 3, 2),
    RelayedApi(30, "CreateAcls", 1, 3, 2),
    RelayedApi(31, "DeleteAcls", 1, 3, 2),
    RelayedApi(32, "DescribeConfigs", 1, 4, 4),
    RelayedApi(33, "AlterConfigs", 0, 2, 2),
    RelayedApi(34, "AlterReplicaLogDirs", 1, 2, 2),
    RelayedApi(35, "DescribeLogDirs", 1, 5, 2),
    RelayedApi(36, "SaslAuthenticate", 0, 2, 2, firstThrottledVersion=None, largestFrameBytes=_LOGIN_BYTES),
    RelayedApi(37, "CreatePartitions", 0, 3, 2),
    RelayedApi(38, "CreateDelegationToken", 1, 3, 2, throttleTimeOffset=None),
    RelayedApi(39, "RenewDelegationToken", 1, 2, 2, throttleTimeOffset=10),
    RelayedApi(40, "ExpireDelegationToken", 1, 2, 2, throttleTimeOffset=10),
    RelayedApi(41, "DescribeDelegationToken", 1, 3, 2, throttleTimeOffset=None),
    RelayedApi(42, "DeleteGroups", 0, 2, 2),
    RelayedApi(43, "ElectLeaders", 0, 2, 2),
    RelayedApi(44, "IncrementalAlterConfigs", 0, 1, 1),
    RelayedApi(45, "AlterPartitionReassignments", 0, 1, 0),
    RelayedApi(46, "ListPartitionReassignments", 0, 0, 0),
    RelayedApi(47, "OffsetDelete", 0, 0, 1, throttleTimeOffset=2),
    RelayedApi(48, "DescribeClientQuotas", 0, 1, 1),
    RelayedApi(49, "AlterClientQuotas", 0, 1, 1),
    RelayedApi(50, "DescribeUserScramCredentials", 0, 0, 0),
    RelayedApi(51, "AlterUserScramCredentials", 0, 0, 0),
    # Its addresses are those of controllers, which clients of brokers do not connect to.  Administrators ask for them,
    # and DescribeConfigs, which is passed on as it is, shows them as well.
    RelayedApi(55, "DescribeQuorum", 0, 2, 0, firstThrottledVersion=None),
    RelayedApi(57, "UpdateFeatures", 0, 2, 0),
    RelayedApi(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, firstVersionWithAddresses=0),
    RelayedApi(61, "DescribeProducers", 0, 0, 0),
    RelayedApi(64, "UnregisterBroker", 0, 0, 0),
    RelayedApi(65, "DescribeTransactions", 0, 0, 0),
    RelayedApi(66, "ListTransactions", 0, 2, 0),
    RelayedApi(68, "ConsumerGroupHeartbeat", 0, 1, 0),
    RelayedApi(69, "ConsumerGroupDescribe", 0, 1, 0),
    RelayedApi(71, "GetTelemetrySubscriptions", 0, 0, 0),
    RelayedApi(72, "PushTelemetry", 0, 0, 0),
    RelayedApi(74, "ListConfigResources", 0, 1, 0),
    RelayedApi(75, "DescribeTopicPartitions", 0, 0, 0),
    RelayedApi(76, "ShareGroupHeartbeat", 1, 1, 1),
    RelayedApi(77, "ShareGroupDescribe", 1, 1, 1),
    RelayedApi(SHARE_FETCH, "ShareFetch", 1, 2, 1, firstVersionWithAddresses=1),
    RelayedApi(SHARE_ACKNOWLEDGE, "ShareAcknowledge", 1, 2, 1, firstVersionWithAddresses=1),
    RelayedApi(80, "AddRaftVoter", 0, 1, 0),
    RelayedApi(81, "RemoveRaftVoter", 0, 0, 0),
    # The endpoints in these two are those of the application's own instances.
    RelayedApi(88, "StreamsGroupHeartbeat", 0, 0, 0),
    RelayedApi(89, "StreamsGroupDescribe", 0, 0, 0),
    RelayedApi(90, "DescribeShareGroupOffsets", 0, 1, 0),
    RelayedApi(91, "AlterShareGroupOffsets", 0, 0, 0),
    RelayedApi(92, "DeleteShareGroupOffsets", 0, 0, 0),
)

#: The same rows by their API key.
RELAYED_BY_KEY: Final[Mapping[int, RelayedApi]] = MappingProxyType({api.apiKey: api for api in RELAYED_APIS})

#: For L{admission.kafka.wire.headers}: by API key the first version whose requests and responses have tagged fields.
RELAYED_FLEXIBLE_FROM: Final[Mapping[int, int]] = {api.apiKey: api.firstFlexibleVersion for api in RELAYED_APIS}


def relayed(apiKey: int, apiVersion: int) -> RelayedApi | None:
    """
    The API of a request that may be passed on, or L{None} if this version of it
    is not understood.

    Close a connection that sends such a request, except for ApiVersions, which the
    gateway answers by itself.
    """
    api = RELAYED_BY_KEY.get(apiKey)
    return api if api is not None and api.minVersion <= apiVersion <= api.maxVersion else None


def hasThrottleTime(apiKey: int, apiVersion: int) -> bool:
    """
    Whether a response to a request that is relayed has a throttle time.
    """
    return _isSince(RELAYED_BY_KEY[apiKey].firstThrottledVersion, apiVersion)


def throttleTimeOffset(apiKey: int, apiVersion: int) -> int | None:
    """
    Where the throttle time is in the body of a response to a request that is
    relayed; L{None} if it has none, or none at a fixed place.
    """
    return RELAYED_BY_KEY[apiKey].throttleTimeOffset if hasThrottleTime(apiKey, apiVersion) else None


def hasAddresses(apiKey: int, apiVersion: int) -> bool:
    """
    Whether a response to a request that is relayed may contain addresses of nodes.
    """
    return _isSince(RELAYED_BY_KEY[apiKey].firstVersionWithAddresses, apiVersion)


def _isSince(firstVersion: int | None, apiVersion: int) -> bool:
    return firstVersion is not None and apiVersion >= firstVersion
