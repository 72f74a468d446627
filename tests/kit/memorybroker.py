"""
A broker process that tells what its memory pool has been through: the real
service with the real options, plus one line of JSON on standard output for
each line on standard input.  The line C{watch} also begins to note the largest
values anew; C{audit} counts anew what the broker keeps count of, and C{collect}
looks for garbage before.
"""

import ctypes
import gc
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet import reactor, stdio
from twisted.internet.interfaces import IProtocol
from twisted.logger import FileLogObserver, formatEventAsClassicLogText, globalLogBeginner
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.usage import Options as CommandLine

from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.service import BrokerService, makeService
from admission_plugins.bounded import Lease
from tests.kit.fairclock import FairClock

_WATCHED_EVERY_SECONDS = 0.005

_Options = TypeVar("_Options", bound=CommandLine)
_Service = TypeVar("_Service", bound=Service)


class Watch:
    """
    What an observer from outside would miss, since the beginning.

    @ivar stallSeconds: the longest time in which the reactor did not get to its timers, without the waits for a
        processor.
    @ivar stallCpuSeconds: the most CPU time that was used between two of them.
    @ivar peakLedgerBytes: the most that the ledger had in all.
    @ivar leastAvailableBytes: the least that the pool had left.
    """

    def __init__(self, service: BrokerService) -> None:
        self._gate = service.broker.gate
        self._clock = FairClock("thread-self")
        self.begin()
        self._last = self._clock.seconds()
        self._lastCpu = time.process_time()
        # A peak within one turn of the reactor is over when the next timer is due.
        pool: Any = self._gate.pool
        pool.tryAllocate, pool.charge = self._seen(pool.tryAllocate), self._seen(pool.charge)
        self._look()

    def begin(self) -> None:
        """Forget what has been."""
        self.stallSeconds = self.stallCpuSeconds = 0.0
        self.peakLedgerBytes = self.ledgerBytes()
        self.leastAvailableBytes = self._gate.pool.availableBytes

    def ledgerBytes(self) -> int:
        """What the ledger has in all, the accounts included."""
        return sum(self._gate.ledger.usedBytes.values())

    def _seen(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        def allocated(*arguments: Any, **named: Any) -> Any:
            lease = allocate(*arguments, **named)
            self._lookAtMemory()
            return lease

        return allocated

    def _lookAtMemory(self) -> None:
        self.peakLedgerBytes = max(self.peakLedgerBytes, self.ledgerBytes())
        self.leastAvailableBytes = min(self.leastAvailableBytes, self._gate.pool.availableBytes)

    def _look(self) -> None:
        now = self._clock.seconds()
        self.stallSeconds = max(self.stallSeconds, now - self._last - _WATCHED_EVERY_SECONDS)
        self._last = now
        cpu = time.process_time()
        self.stallCpuSeconds = max(self.stallCpuSeconds, cpu - self._lastCpu)
        self._lastCpu = cpu
        self._lookAtMemory()
        reactor.callLater(_WATCHED_EVERY_SECONDS, self._look)


def auditOf(service: BrokerService) -> dict[str, Any]:
    """
    What the broker holds, by another count than its own: of all objects that there are.  That takes some 50 ms.

    @return: the ledger with its accounts, and beside it the bytes of all leases that are not released, by purpose, and
        how many there are; the timers of the reactor; the blocks of Python's allocator and the bytes of the C
        library's that are in use; the numbers of connections, of those that are paused by reason, of groups, of topics
        and of open files of the log.
    """
    broker, factory = service.broker, service.factory
    # Anything may be among them, and some things cannot even be asked for their class.
    leases = [each for each in gc.get_objects() if type(each) is Lease and each._pool is not None]
    leasedBytes: Counter[str] = Counter()
    for lease in leases:
        leasedBytes[lease.purpose] += lease.sizeBytes
    return {
        "ledger": dict(broker.gate.ledger.usedBytes),
        "leasedBytes": {purpose: leasedBytes[purpose] for purpose in broker.gate.pool.usedBytesByPurpose},
        "leases": dict(Counter(lease.purpose for lease in leases)),
        "timers": len(reactor.getDelayedCalls()),
        "pythonBlocks": sys.getallocatedblocks(),
        "heapBytes": heapBytes(),
        "connections": len(factory.connections),
        "paused": _counted(reason.value for each in factory.connections for reason in each.link.pauses.reasons),
        "groups": len(broker.groups.all),
        "topics": len(broker.log.topics),
        "openFiles": len(service.broker.log._openFiles),
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names))


class _Mallinfo2(ctypes.Structure):
    _counts = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in re.findall(r"\w+", _counts)]


def heapBytes() -> int:
    """What is in use of the memory of the C library, Python's small objects apart; 0 where it cannot tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo2
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


class Reporter(LineOnlyReceiver):
    """Answers each line with what the pool says; the end of input ends the broker."""

    delimiter = b"\n"

    def __init__(self, service: Any) -> None:
        self.service = service
        self._watch: Watch | None = None

    def lineReceived(self, line: bytes) -> None:
        """Report."""
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
            "ports": [port.getHost().port for port in self.service._ports.open],
        }
        if self._watch is not None:
            report["ledgerBytes"] = self._watch.ledgerBytes()
            report["peakLedgerBytes"] = self._watch.peakLedgerBytes
            report["leastAvailableBytes"] = self._watch.leastAvailableBytes
            report["stallSeconds"] = self._watch.stallSeconds
            report["stallCpuSeconds"] = self._watch.stallCpuSeconds
        if line == b"watch" and self._watch is not None:
            self._watch.begin()
        if line == b"collect":
            gc.collect()
        if line in (b"audit", b"collect"):
            report["audit"] = auditOf(self.service)
        self.sendLine(json.dumps(report).encode("ascii"))

    def connectionLost(self, reason: object) -> None:
        """The test that watched is gone."""
        if reactor.running:
            reactor.stop()


def main(makeReporter: Callable[[BrokerService], IProtocol] = Reporter) -> None:
    """
    Run the broker with the options of the command line.

    @param makeReporter: makes what answers.
    """
    run(Options(), makeService, makeReporter)


def run(options: _Options, make: Callable[[_Options], _Service], makeReporter: Callable[[_Service], IProtocol]) -> None:
    """
    Run a service with the options of the command line.

    @param options: not parsed yet.
    @param make: makes the service.
    @param makeReporter: makes what answers on standard output.
    """
    globalLogBeginner.beginLoggingTo(
        [FileLogObserver(sys.stderr, formatEventAsClassicLogText)], redirectStandardIO=False
    )
    options.parseOptions(sys.argv[1:])
    service = make(options)
    service.privilegedStartService()
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    stdio.StandardIO(makeReporter(service))
    reactor.run()


if __name__ == "__main__":
    main()
