"""
A gateway process that tells what it holds: the real service with the real options, plus one line of JSON on standard
output for each line on standard input.
"""

from __future__ import annotations

import gc
import json
import os

from twisted.internet import reactor

from admission.kafka.gateway.gatewayoptions import GatewayOptions
from admission.kafka.gateway.gatewayservice import GatewayService, makeService
from tests.kit.memorybroker import Reporter, run


class GatewayReporter(Reporter):
    """Answers each line with a report of a gateway."""

    service: GatewayService

    def lineReceived(self, line: bytes) -> None:
        """Report."""
        gc.collect()
        pool = self.service.gateway.gate.pool
        report = {
            "connections": self.service.sensors["Connections"],
            "descriptors": len(os.listdir("/proc/self/fd")),
            "ledger": {name: held for name, held in pool.usedBytesByPurpose.items() if held},
            "timers": len(reactor.getDelayedCalls()),
        }
        self.sendLine(json.dumps(report).encode("ascii"))


if __name__ == "__main__":
    run(GatewayOptions(), makeService, GatewayReporter)
