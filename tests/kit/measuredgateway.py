"""
A gateway process that tells what it holds: the real service with the real options, plus one line of JSON on standard
output for each line on standard input.
"""

from __future__ import annotations

import gc
import json
import os

from twisted.internet import reactor
from twisted.protocols.basic import LineOnlyReceiver

from admission.kafka.gateway.gatewayoptions import GatewayOptions
from admission.kafka.gateway.gatewayservice import GatewayService, makeService
from tests.kit.memorybroker import run


class Reporter(LineOnlyReceiver):
    """Answers each line with a report, and ends the process when asking ends."""

    delimiter = b"\n"

    def __init__(self, service: GatewayService) -> None:
        self._service = service

    def lineReceived(self, line: bytes) -> None:
        """Report."""
        gc.collect()
        pool = self._service.gateway.gate.pool
        report = {
            "connections": self._service.sensors["Connections"],
            "descriptors": len(os.listdir("/proc/self/fd")),
            "ledger": {name: held for name, held in pool.usedBytesByPurpose.items() if held},
            "timers": len(reactor.getDelayedCalls()),
        }
        self.sendLine(json.dumps(report).encode("ascii"))

    def connectionLost(self, reason: object = None) -> None:
        """Whoever asked is gone."""
        if reactor.running:
            reactor.stop()


if __name__ == "__main__":
    run(GatewayOptions(), makeService, Reporter)
