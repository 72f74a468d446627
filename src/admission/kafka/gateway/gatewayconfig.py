# -*- test-case-name: tests.unit.kafka.gateway.test_gatewayoptions -*-
"""
What a gateway is configured with.
"""

from __future__ import annotations

from attrs import field, frozen

from ..client.sasl import Credentials
from ..serving.kafkaservice import ServerConfig
from .gatewayoptions import GatewayOptions, Upstream
from .gatewaysettings import GatewaySettings


@frozen
class GatewayConfig(ServerConfig[GatewaySettings]):
    """
    The configuration of a gateway.

    @ivar upstream: where the cluster is.
    @ivar nodeIds: the lowest and the highest id that its nodes may have.
    @ivar credentials: the login for asking which nodes there are, if that takes one.
    @ivar share: how much of each limit it enforces.
    @ivar exchange: the description of the exchange by which it tells other gateways what clients take; L{None} if it
        tells none.
    @ivar gateways: how many gateways there are then, at least.
    @ivar requiresLogin: see L{Gateway}, also for the next two.
    """

    upstream: Upstream = field(kw_only=True)
    nodeIds: tuple[int, int] = field(kw_only=True)
    credentials: Credentials | None = None
    share: float = 1.0
    exchange: str | None = None
    gateways: int = 1
    requiresLogin: bool = False
    mayHide: bool = False
    hasLimits: bool = True

    @property
    def sharesLimits(self) -> bool:
        return self.exchange is not None or self.processes > 1


def configOf(options: GatewayOptions) -> GatewayConfig:
    """
    The configuration that the options of a command line describe.
    """
    return GatewayConfig.of(
        options,
        upstream=options["upstream"],
        nodeIds=options["nodeIds"],
        credentials=options["credentials"],
        share=options["share"],
        exchange=options["shared-limits"],
        gateways=options["gateways"],
        requiresLogin=bool(options["require-login"]),
        mayHide=bool(options["hidden-users"]),
        hasLimits=options["hasLimits"],
        processes=options["processes"],
    )
