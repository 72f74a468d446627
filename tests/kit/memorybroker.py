"""
A broker process that tells what its memory pool has been through: the real
service with the real options, plus one line of JSON on standard output for
each line on standard input.  The line C{watch} also begins to note the largest
values anew.
"""

import json
import sys
from collections.abc import Callable

from twisted.internet import reactor, stdio
from twisted.logger import FileLogObserver, formatEventAsClassicLogText, globalLogBeginner
from twisted.protocols.basic import LineOnlyReceiver

from admission.kafka.options import Options
from admission.kafka.service import BrokerService, makeService
from tests.kit.fairclock import FairClock

_WATCHED_EVERY_SECONDS = 0.005


class Watch:
    """
    What an observer from outside would miss, since the beginning.

    @ivar stallSeconds: the longest time in which the reactor did not get to its timers, without the waits for a
        processor.
    @ivar peakLedgerBytes: the most that the ledger had in all.
    @ivar leastAvailableBytes: the least that the pool had left.
    """

    def __init__(self, service: BrokerService) -> None:
        self._gate = service.broker.gate
        self._clock = FairClock("thread-self")
        self.begin()
        self._last = self._clock.seconds()
        self._look()

    def begin(self) -> None:
        """
        Forget what has been.
        """
        self.stallSeconds = 0.0
        self.peakLedgerBytes = self.ledgerBytes()
        self.leastAvailableBytes = self._gate.pool.availableBytes

    def ledgerBytes(self) -> int:
        """
        What the ledger has in all, the accounts included.
        """
        return sum(self._gate.ledger.values())

    def _look(self) -> None:
        now = self._clock.seconds()
        self.stallSeconds = max(self.stallSeconds, now - self._last - _WATCHED_EVERY_SECONDS)
        self._last = now
        self.peakLedgerBytes = max(self.peakLedgerBytes, self.ledgerBytes())
        self.leastAvailableBytes = min(self.leastAvailableBytes, self._gate.pool.availableBytes)
        reactor.callLater(_WATCHED_EVERY_SECONDS, self._look)


class Reporter(LineOnlyReceiver):
    """
    Answers each line with what the pool says; the end of input ends the broker.
    """

    delimiter = b"\n"

    def __init__(self, service: BrokerService) -> None:
        self.service = service
        self._watch: Watch | None = None

    def lineReceived(self, line: bytes) -> None:
        """
        Report.
        """
        if line == b"watch" and self._watch is None:
            self._watch = Watch(self.service)
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
        if self._watch is not None:
            report["ledgerBytes"] = self._watch.ledgerBytes()
            report["peakLedgerBytes"] = self._watch.peakLedgerBytes
            report["leastAvailableBytes"] = self._watch.leastAvailableBytes
            report["stallSeconds"] = self._watch.stallSeconds
        if line == b"watch" and self._watch is not None:
            self._watch.begin()
        self.sendLine(json.dumps(report).encode("ascii"))

    def connectionLost(self, reason: object) -> None:
        """
        Whoever watched is gone.
        """
        if reactor.running:
            reactor.stop()


def main(makeReporter: Callable[[BrokerService], Reporter] = Reporter) -> None:
    """
    Run the broker with the options of the command line.

    @param makeReporter: makes what answers.
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
    stdio.StandardIO(makeReporter(service))
    reactor.run()


if __name__ == "__main__":
    main()
