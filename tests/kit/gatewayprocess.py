"""The gateway of this tree in a process of its own, as an operator would run it."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from functools import cache

from tests.kit.brokerprocess import PATIENCE_SECONDS, MeasuredProcess, ServerProcess, endpoint, freePort

NODES = 16
"""Nodes have the ids 0 to 15 unless C{--node-ids} says otherwise, and each has a port."""

SMALL_POOL_BYTES = 16 << 20
SMALL_POOL = tuple(
    f"--set={name}={SMALL_POOL_BYTES}" for name in ("queued.max.request.bytes", "socket.request.max.bytes")
)
"""Options of a gateway that has little memory for requests."""

_POLL_SECONDS = 0.02


class GatewayProcess(ServerProcess):
    """
    C{twistd admission-gateway} before some cluster.

    @ivar port: where clients begin; node N is at C{port + 1 + N}.
    """

    plugin = "admission-gateway"

    def __init__(self, upstream: str, *options: str) -> None:
        """
        @param upstream: where nodes are, separated by commas.
        @param options: further options of C{twistd admission-gateway}.
        """
        self.port = freePort(count=NODES + 2)
        super().__init__("--upstream", upstream, "--listen", endpoint(self.port), *options)

    @property
    def address(self) -> str:
        """Where clients begin."""
        return f"127.0.0.1:{self.port}"

    def nodeAddress(self, nodeId: int) -> str:
        """Where clients find a node."""
        return f"127.0.0.1:{self.port + 1 + nodeId}"

    @property
    def addresses(self) -> list[str]:
        """All that clients may be sent to."""
        return [self.address, *map(self.nodeAddress, range(NODES))]

    def _waitUntilServing(self, begin: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS):
                return
            if time.monotonic() > deadline or not self.isRunning():
                raise AssertionError(f"nobody listens on port {self.port}:\n{self.log(begin)}")
            time.sleep(_POLL_SECONDS)


class MeasuredGateway(MeasuredProcess, GatewayProcess):
    """A gateway that tells its connections, descriptors, timers and the ledger; see L{tests.kit.measuredgateway}."""

    module = "tests.kit.measuredgateway"


@cache
def sharedGateway(upstream: str, *options: str) -> GatewayProcess:
    """
    A running gateway for tests that do not mind each other: one for each cluster and set of options, ended when the
    tests are.
    """
    gateway = GatewayProcess(upstream, *options)
    gateway.start()
    return gateway
