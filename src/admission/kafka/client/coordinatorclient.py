# -*- test-case-name: tests.unit.kafka.client.test_groupmember -*-
"""
Finding the broker that coordinates our group, and sending it requests.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.logger import Logger

from .clientconnection import ClientConnection
from .cluster import GROUP, Cluster, SharedCall
from .errors import BrokerRefused, ClientError, Disconnected, checkError

_GROUP_KEY = 0

_MOVED = frozenset((ErrorCode.coordinator_not_available, ErrorCode.not_coordinator))


class Identity(NamedTuple):
    """
    As what a member is known to the coordinator.
    """

    generation: int
    memberId: str


NO_GENERATION = -1
NO_MEMBER = ""


class CoordinatorClient:
    """
    A client of the coordinator of one group, which is found by the first
    request, and again whenever it is lost.

    @ivar isKnown: whether it can be asked without being found first.
    """

    log = Logger()

    def __init__(self, cluster: Cluster, groupId: str, groupInstanceId: str | None) -> None:
        """
        @param groupInstanceId: the name of a static member.
        """
        self._cluster = cluster
        self._groupInstanceId = groupInstanceId
        self._connection: ClientConnection | None = None
        self._place: tuple[str, int] | None = None
        self._finding = SharedCall(self._find)
        self.groupId = groupId

    @property
    def isKnown(self) -> bool:
        return self._connection is not None and self._connection.isOpen

    def find(self) -> Deferred[ClientConnection]:
        """
        Find it and connect.

        @return: fails with a L{ClientError}; nothing is tried again.
        """
        if self._connection is not None and not self._connection.isOpen:
            self.lost("it has closed the connection")
        return self._finding.wait()

    @inlineCallbacks
    def _find(self) -> Generator[Deferred[Any], Any, ClientConnection]:
        if self._place is None:
            self._place = yield self._search()
        host, port = self._place
        try:
            connection: ClientConnection = yield self._cluster.connectionAt(host, port, GROUP)
        except ClientError:
            self._place = None
            raise
        self._connection = connection
        return connection

    @inlineCallbacks
    def _search(self) -> Generator[Deferred[Any], Any, tuple[str, int]]:
        response = yield self._cluster.askAny(
            "FindCoordinator", {"key": self.groupId, "key_type": _GROUP_KEY, "coordinator_keys": [self.groupId]}
        )
        # From version 4 on several can be looked for at once.
        coordinators = getattr(response, "coordinators", [response])
        if not coordinators:
            raise Disconnected(f"a broker was asked for the coordinator of {self.groupId!r} and named none")
        (found, *_) = coordinators
        checkError(found.error_code, f"who coordinates group {self.groupId!r}", getattr(found, "error_message", None))
        return found.host, found.port

    def lost(self, reason: str) -> None:
        """
        Find it again before the next request.  Requests without an answer fail.

        @param reason: why, for the log.
        """
        self._place = None
        if self._connection is not None:
            self.log.info("the coordinator of group {group!r} is lost: {reason}", group=self.groupId, reason=reason)
        self.hangUp()

    def hangUp(self) -> None:
        """
        Send the next request on another connection.  Requests without an answer
        fail.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def memberFields(self, identity: Identity) -> dict[str, Any]:
        """
        The fields by which requests say which member sends them.
        """
        return {
            "generation_id": identity.generation,
            "member_id": identity.memberId,
            "group_instance_id": self._groupInstanceId,
        }

    @inlineCallbacks
    def ask(
        self, apiName: str, fields: Mapping[str, Any], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, Any]:
        """
        Send a request, after finding the coordinator if need be.

        @param fields: as for L{ClientConnection.request}; the group's id is
            added.
        @return: fails with a L{ClientError}.
        """
        connection = self._connection
        if connection is None or not connection.isOpen:
            connection = yield self.find()
        try:
            return (yield connection.request(apiName, {"group_id": self.groupId, **fields}, timeoutSeconds))
        except Disconnected as error:
            # Another may have been found meanwhile.
            if connection is self._connection:
                self.lost(str(error))
            raise

    def noteError(self, error: ClientError) -> None:
        """
        Find the coordinator again if C{error} says that it has moved.
        """
        if isinstance(error, BrokerRefused) and error.errorCode in _MOVED:
            self.lost(str(error))
