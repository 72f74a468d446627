"""
The APIs that the broker serves, in which versions, and how large each may be.

Serving another API takes one more row in L{APIS}; everything else here, and
the list that clients are told, follows from the rows.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from attrs import field, frozen

_KIB: Final = 2**10
_MIB: Final = 2**20

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_ACLS: Final = 29
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
LIST_TRANSACTIONS: Final = 66
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75


@frozen
class Api:
    """
    One API: the versions served and the bounds on its requests.

    @ivar apiKey: the number that the protocol gives it.
    @ivar name: as Kafka's documentation spells it.
    @ivar minVersion: the oldest version that is served.
    @ivar maxVersion: the newest version that is served.
    @ivar firstFlexibleVersion: from here on lengths are varints and structures
        end in tagged fields (KIP-482).
    @ivar advertisedMinVersion: the oldest version that clients are told of.
    @ivar largestFrameBytes: the largest request frame, without its length
        prefix; L{None} where the configured request limit alone counts.
    @ivar maxElements: how many array elements one request may decode to, at
        all depths together.
    """

    apiKey: int
    name: str
    minVersion: int
    maxVersion: int
    firstFlexibleVersion: int
    advertisedMinVersion: int = field(kw_only=True)
    largestFrameBytes: int | None = field(kw_only=True, default=_MIB)
    maxElements: int = field(kw_only=True, default=20_000)

    @advertisedMinVersion.default
    def _advertiseWhatIsServed(self) -> int:
        return self.minVersion

    def isFlexible(self, apiVersion: int) -> bool:
        """
        Whether requests and responses of C{apiVersion} carry tagged fields.
        """
        return apiVersion >= self.firstFlexibleVersion


#: The table.  Produce is advertised from 0 though served from 3: librdkafka up to 2.8 silently stores its batches
#: uncompressed otherwise (KAFKA-18659).  Fetch must begin at 4 or librdkafka producers fall back to old message sets.
APIS: Final[tuple[Api, ...]] = (
    Api(PRODUCE, "Produce", 3, 12, 9, advertisedMinVersion=0, largestFrameBytes=None, maxElements=10_000),
    Api(FETCH, "Fetch", 4, 17, 12),
    Api(LIST_OFFSETS, "ListOffsets", 1, 10, 6),
    Api(METADATA, "Metadata", 0, 13, 9),
    Api(OFFSET_COMMIT, "OffsetCommit", 2, 9, 8),
    Api(OFFSET_FETCH, "OffsetFetch", 1, 9, 6),
    Api(FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
    Api(JOIN_GROUP, "JoinGroup", 0, 9, 6, maxElements=1_000),
    Api(HEARTBEAT, "Heartbeat", 0, 4, 4),
    Api(LEAVE_GROUP, "LeaveGroup", 0, 5, 4, maxElements=5_000),
    Api(SYNC_GROUP, "SyncGroup", 0, 5, 4),
    Api(DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
    Api(LIST_GROUPS, "ListGroups", 0, 5, 3),
    # Clients would follow version 0 with messages without Kafka's headers.
    Api(SASL_HANDSHAKE, "SaslHandshake", 1, 1, 2, largestFrameBytes=4 * _KIB, maxElements=16),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, largestFrameBytes=4 * _KIB, maxElements=16),
    Api(CREATE_TOPICS, "CreateTopics", 2, 7, 5),
    Api(DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
    Api(DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
    Api(INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
    Api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2),
    Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
    Api(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
    Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 4, 2),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, largestFrameBytes=512 * _KIB, maxElements=16),
    Api(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
    Api(DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
    Api(ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
    Api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
    Api(LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
    # It never became flexible.
    Api(OFFSET_DELETE, "OffsetDelete", 0, 0, 1),
    Api(DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1, maxElements=16),
    Api(ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1, maxElements=1_000),
    Api(DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0),
    Api(ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0, 0, maxElements=1_000),
    Api(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    Api(DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
    Api(LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0),
    Api(LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0),
    Api(DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
)

#: The same rows by their API key.
BY_KEY: Final[Mapping[int, Api]] = MappingProxyType({api.apiKey: api for api in APIS})

#: For L{admission.kafka.wire.headers}: by API key the first version whose requests and responses have tagged fields.
FLEXIBLE_FROM: Final[Mapping[int, int]] = {api.apiKey: api.firstFlexibleVersion for api in APIS}

_SERVED: Final = {(api.apiKey, version): api for api in APIS for version in range(api.minVersion, api.maxVersion + 1)}


def served(apiKey: int, apiVersion: int) -> Api | None:
    """
    The API to dispatch a request to, or L{None} if this version of it is not
    served, advertised or not.

    Close a connection that sends a request that is not served, except for
    ApiVersions, which is answered
    (L{admission.kafka.wire.codec.encodeResponse} knows how).
    """
    return _SERVED.get((apiKey, apiVersion))


def advertised(apis: Iterable[Api] = APIS) -> list[dict[str, int]]:
    """
    The C{api_keys} of an ApiVersions response.
    """
    return [
        {"api_key": api.apiKey, "min_version": api.advertisedMinVersion, "max_version": api.maxVersion} for api in apis
    ]
