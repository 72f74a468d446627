# -*- test-case-name: tests.unit.status.test_document -*-
"""
What the status page wants to know of a server and of its connections.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ..connection.debts import Debts
from ..connection.factory import ConnectionLimits
from ..connection.link import Link
from ..control import AdmissionControl
from ..gate.gate import Gate


class Connection(Protocol):
    """
    A connection, as far as the page shows it.

    @ivar peer: the address at the other end, for people.
    @ivar host: the same without its port.
    @ivar principal: the authenticated name of the client, as far as it is known.
    @ivar clientId: the client's name for itself; may be empty.
    @ivar throttledUntilSeconds: when its last delay ends or ended, by the clock of the sensors.
    @ivar heldBytes: all memory that the connection holds.
    @ivar requestBytes: the part of it that requests hold.
    """

    @property
    def peer(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def principal(self) -> str | None: ...

    @property
    def clientId(self) -> str: ...

    @property
    def throttledUntilSeconds(self) -> float: ...

    @property
    def heldBytes(self) -> int: ...

    @property
    def requestBytes(self) -> int: ...

    @property
    def link(self) -> Link: ...

    def unservedBytes(self) -> int:
        """
        Bytes that were received and not served yet.
        """


class Server(Protocol):
    """
    A server, as far as the page shows it.  The factories of C{admission.connection}
    and the results of C{wrapFactory} have all of this.

    @ivar refusedConnections: how many connections exceeded the limit.
    @ivar requestBytes: how many bytes were received.
    @ivar responseBytes: how many bytes were sent.
    @ivar fullSeconds: when one last exceeded that of all, by the clock of the sensors.
    """

    @property
    def gate(self) -> Gate: ...

    @property
    def control(self) -> AdmissionControl: ...

    @property
    def connections(self) -> Collection[Connection]: ...

    @property
    def debts(self) -> Debts: ...

    @property
    def requestBytes(self) -> int: ...

    @property
    def responseBytes(self) -> int: ...

    @property
    def limits(self) -> ConnectionLimits: ...

    @property
    def refusedConnections(self) -> int: ...

    @property
    def fullSeconds(self) -> float: ...

    def clientIdAt(self, host: str) -> str:
        """
        The client id of a client at an address that has not said who it is.
        """
