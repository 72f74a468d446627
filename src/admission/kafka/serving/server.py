# -*- test-case-name: tests.unit.kafka.broker.test_broker -*-
"""
What all sessions with clients share, whatever answers them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Generic, TypeVar

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

from admission.connection.debts import Debts
from admission.control import AdmissionControl
from admission.gate.gate import Gate

from .quotalimits import QuotaLimits
from .serversettings import ServerSettings

ANONYMOUS = "ANONYMOUS"
"""The principal of clients where no login is needed."""

S = TypeVar("S", bound=ServerSettings)


@define(eq=False)
class Server(Generic[S]):
    """
    The rule that admits requests, and the clients that it told to wait.

    @ivar control: the quota policies.
    @ivar clock: monotonic.
    @ivar wallSeconds: seconds since the epoch, for records.
    @ivar limits: the limits of the policies; can be changed at run time.
    @ivar debts: the clients that it told to wait.
    """

    settings: S
    gate: Gate
    control: AdmissionControl
    clock: IReactorTime
    wallSeconds: Callable[[], float]
    limits: QuotaLimits = field(init=False)
    debts: Debts = field(init=False, factory=Debts)

    def settingsChanged(self) -> None:
        """
        C{settings} are others, of which only those differ that may change while the server runs.
        """

    def longestRefusalSeconds(self, session: Any) -> float:
        """
        How long at most C{session} may be kept waiting for a refusal that became a delay: where its client is a member
        of groups, it must be heard of in time.
        """
        return inf

    def throttled(self, session: Any, delaySeconds: float) -> None:
        """
        C{session} is paused for C{delaySeconds}, because its client is over a quota.
        """
