# -*- test-case-name: tests.unit.kafka.gateway.test_gatewayoptions -*-
"""
The gateway's settings: those of any server, and how to treat the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from ..property import DURATION, INTEGER, setting
from ..serving.serversettings import ServerSettings, load


@frozen(kw_only=True)
class GatewaySettings(ServerSettings):
    """
    The values in force in a gateway.
    """

    upstreamConnectTimeoutSeconds: float = setting(
        "upstream.connect.timeout",
        DURATION,
        "10s",
        "How long connecting to a node may take; then its client is closed.",
        minimum="1ms",
    )
    upstreamSendTimeoutSeconds: float = setting(
        "upstream.send.timeout",
        DURATION,
        "10s",
        "A node that takes nothing of a request for this long loses the connection, and its client is closed.",
        minimum="1ms",
    )
    upstreamRefreshSeconds: float = setting(
        "upstream.refresh", DURATION, "5s", "How often the cluster is asked which nodes it has.", minimum="100ms"
    )
    upstreamPoolPercent: int = setting(
        "upstream.pool.percent",
        INTEGER,
        "50",
        "The percentage of the pool that requests may hold while they wait for one node; so a node that takes nothing "
        "does not stop the others.",
        minimum="1",
        maximum="100",
    )


def loadGatewaySettings(
    path: str | None = None, assignments: Sequence[str] = (), isPoolChosen: bool = False
) -> GatewaySettings:
    """
    Put the settings of a gateway together; see L{load}.
    """
    return load(GatewaySettings, path, assignments, isPoolChosen)
