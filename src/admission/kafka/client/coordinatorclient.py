# -*- test-case-name: tests.unit.kafka.client.test_groupmember -*-
"""
The broker that coordinates our group: finding it, and asking it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.logger import Logger

from .clientconnection import ClientConnection
from .cluster import GROUP, Cluster, checkError
from .errors import BrokerRefused, ClientError, Disconnected

_GROUP_KEY = 0

COORDINATOR_MOVED = frozenset(("coordinator_not_available", "not_coordinator"))
"""The errors, 15 and 16, after which the coordinator must be found again."""


class Identity(NamedTuple):
    """
    As whom a member speaks to the coordinator.
    """

    generation: int
    memberId: str


NO_GENERATION = -1
NO_MEMBER = ""


class Coordinator:
    """
    The coordinator of one group, which is found when somebody first asks it
    something, and again whenever it is lost.

    @ivar groupId: the group.
    """

    log = Logger()

    def __init__(self, cluster: Cluster, groupId: str) -> None:
        self._cluster = cluster
        self.groupId = groupId
        self._connection: ClientConnection | None = None
        self._place: tuple[str, int] | None = None
        self._finding: Deferred[ClientConnection] | None = None
        self._waiting: list[Deferred[ClientConnection]] = []

    @property
    def isKnown(self) -> bool:
        """
        Whether it can be asked without being found first.
        """
        return self._connection is not None and self._connection.isOpen

    def find(self) -> Deferred[ClientConnection]:
        """
        Find it and connect, once however many ask.

        @return: fails with a L{ClientError}; nothing is tried again.
        """
        waiting: Deferred[ClientConnection] = Deferred(lambda cancelled: self._waiting.remove(cancelled))
        self._waiting.append(waiting)
        if self._connection is not None and not self._connection.isOpen:
            self.lost("it has closed the connection")
        if self._finding is None:
            self._finding = self._find()
            self._finding.addBoth(self._found)
        return waiting

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

    def _found(self, result: Any) -> None:
        self._finding = None
        if isinstance(result, ClientConnection):
            self._connection = result
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(result)

    def lost(self, reason: str) -> None:
        """
        It is not known any more, or not to be relied on.  What it was asked
        and has not answered fails.

        @param reason: why, for the log.
        """
        self._place = None
        connection, self._connection = self._connection, None
        if connection is not None:
            self.log.info("the coordinator of group {group!r} is lost: {reason}", group=self.groupId, reason=reason)
            connection.close()

    def hangUp(self) -> None:
        """
        Ask the next question on another connection; what was asked on this
        one and is not answered fails.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @inlineCallbacks
    def ask(
        self, apiName: str, fields: Mapping[str, Any], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, Any]:
        """
        Ask it something, after finding it if need be.

        @param fields: as L{ClientConnection.request} takes them; the group's
            id is added.
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
        If C{error} says that another broker is the coordinator, look for it
        at the next question.
        """
        if isinstance(error, BrokerRefused) and error.errorCode.name in COORDINATOR_MOVED:
            self.lost(str(error))
