"""
A broker process that tells what its memory pool has been through: the real
service with the real options, plus one line of JSON on standard output for
each line on standard input.
"""

import json
import sys

from twisted.internet import reactor, stdio
from twisted.logger import FileLogObserver, formatEventAsClassicLogText, globalLogBeginner
from twisted.protocols.basic import LineOnlyReceiver

from admission.kafka.options import Options
from admission.kafka.service import BrokerService, makeService


class Reporter(LineOnlyReceiver):
    """
    Answers each line with what the pool says; the end of input ends the broker.
    """

    delimiter = b"\n"

    def __init__(self, service: BrokerService) -> None:
        self.service = service

    def lineReceived(self, line: bytes) -> None:
        """
        Report.
        """
        pool = self.service.broker.gate.pool
        report = {
            "availableBytes": pool.availableBytes,
            "idleBytes": pool.idleBytes,
            "ledger": dict(pool.usedBytesByPurpose),
            "peakFrameBytes": pool.peakFrameBytes,
            "reclaimedLeases": pool.reclaimedLeases,
            "sizeBytes": pool.sizeBytes,
            "sensors": dict(self.service.sensors),
            "ports": [port.getHost().port for port in self.service._ports],
        }
        self.sendLine(json.dumps(report).encode("ascii"))

    def connectionLost(self, reason: object) -> None:
        """
        Whoever watched is gone.
        """
        if reactor.running:
            reactor.stop()


def main() -> None:
    """
    Run the broker with the options of the command line.
    """
    globalLogBeginner.beginLoggingTo(
        [FileLogObserver(sys.stderr, formatEventAsClassicLogText)], redirectStandardIO=False
    )
    options = Options()
    options.parseOptions(sys.argv[1:])
    service = makeService(options)
    service.privilegedStartService()
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    stdio.StandardIO(Reporter(service))
    reactor.run()


if __name__ == "__main__":
    main()
