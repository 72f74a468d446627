"""
Servers to be measured from outside, each in a process of its own.

C{python -m benchmarks.servers NAME [ARGUMENT ...]} prints its ports as JSON, then serves until its standard input is
closed, so that it never outlives who started it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from attrs import frozen
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.threads import deferToThread
from twisted.web.server import Site

from admission import Admission, wrapFactory
from admission.clock import MonotonicClock, wallSeconds
from admission.control import AdmissionControl
from admission.gate.gate import buildGate
from admission.interfaces import PolicyContext
from admission.kafka.broker.broker import Broker
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.broker.service import makeService
from admission.web import protectSite
from admission_plugins.bounded import UnboundedPool
from admission_plugins.purgatory import WheelPurgatory
from admission_plugins.wheel import TimingWheel

from .peers import (
    BareBroker,
    Counting,
    OneAtATime,
    OrderlyBareBroker,
    Page,
    Preallocating,
    Relaying,
    Replying,
    Strings,
    admittedFactory,
    limited,
)

TOPIC = "produced"
FETCHED_TOPIC = "fetched"
PARTITIONS = 8
WEB_POOL = "bounded:64MiB"


@frozen
class Server:
    """
    A server that runs.

    @ivar pid: its process.
    @ivar ports: where it listens, by the name of what serves there.
    """

    pid: int
    ports: Mapping[str, int]

    @property
    def port(self) -> int:
        """
        The port of a server that has one.
        """
        (port,) = self.ports.values()
        return port


@contextmanager
def running(name: str, *arguments: str) -> Iterator[Server]:
    """
    Run a server for the duration of a block.

    @param name: one of L{SERVERS}.
    """
    command = [sys.executable, "-m", __name__, name, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server {name} did not start")
        yield Server(process.pid, json.loads(line))
        process.stdin.close()
        process.wait(30)


class UntilClosed(Protocol):
    """
    Standard input: stops the reactor at its end.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def connectionLost(self, reason: object = None) -> None:
        """
        The process that started this one is done, or gone.
        """
        self._reactor.stop()


def listen(reactor: Any, factory: Any) -> int:
    """
    @return: the port.
    """
    factory.noisy = False
    return int(reactor.listenTCP(0, factory, interface="127.0.0.1", backlog=128).getHost().port)


def serveFrames(reactor: Any) -> Mapping[str, int]:
    """
    Everything that receives frames, and ours.
    """
    factories = {
        "admission": admittedFactory(reactor),
        "preallocated": ServerFactory.forProtocol(Preallocating),
        "counting": ServerFactory.forProtocol(Counting),
        "Int32StringReceiver": ServerFactory.forProtocol(Strings),
    }
    return {name: listen(reactor, factory) for name, factory in factories.items()}


def serveBroker(reactor: Any, dataPath: str, *arguments: str) -> Mapping[str, int]:
    """
    The broker as C{twistd admission} runs it.

    @param arguments: for its command line.
    """
    options = Options()
    options.parseOptions(  # type: ignore[no-untyped-call]
        ["--data", dataPath, "--listen", "tcp:0:interface=127.0.0.1", *arguments]
    )
    service = makeService(options)
    service.startService()
    for topic in (TOPIC, FETCHED_TOPIC):
        service.broker.log.createTopic(topic, PARTITIONS, {})
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    (port,) = service._ports.open
    return {"admission": port.getHost().port}


def serveBare(reactor: Any, dataPath: str, responseBytes: str, *requestBytes: str) -> Mapping[str, int]:
    """
    The broker's codec and log behind nothing but a framer; and the floor: bare Twisted, which counts the bytes of
    requests and answers each with as many as the broker would.

    @param responseBytes: the size of every response at the floor.
    @param requestBytes: the sizes that requests come in there, each at a port of its own and named after it; all
        without length prefixes.
    """
    clock = MonotonicClock(reactor)
    log = SegmentLog(dataPath, clock, wallSeconds, deferToThread, checkIntervalSeconds=300.0)
    purgatory = WheelPurgatory(TimingWheel(clock))
    gate = buildGate(UnboundedPool(), PolicyContext(clock, wallSeconds, random=Random(0)))
    broker = Broker(loadSettings(None, []), gate, AdmissionControl([], 0.0), clock, wallSeconds, log, purgatory)
    log.createTopic(TOPIC, PARTITIONS, {})
    reactor.addSystemEventTrigger("before", "shutdown", log.close)
    response = int(responseBytes).to_bytes(4, "big") + bytes(int(responseBytes))
    factories = {
        "bare": ServerFactory.forProtocol(lambda: BareBroker(broker)),
        "bareOneAtATime": ServerFactory.forProtocol(lambda: OrderlyBareBroker(broker)),
        **{each: ServerFactory.forProtocol(partial(Replying, 4 + int(each), response)) for each in requestBytes},
    }
    return {name: listen(reactor, factory) for name, factory in factories.items()}


def serveRelay(reactor: Any, port: str) -> Mapping[str, int]:
    """
    Bare Twisted in front of a server.

    @param port: where that is.
    """
    return {"relay": listen(reactor, ServerFactory.forProtocol(partial(Relaying, reactor, int(port))))}


def serveWeb(reactor: Any, *quota: str) -> Mapping[str, int]:
    """
    A site that is protected.

    @param quota: by which policies, if any.
    """
    admission = Admission(pool=WEB_POOL, quota=quota)
    return {"web": listen(reactor, protectSite(admission, Site(Page())))}


def serveWebBytes(reactor: Any) -> Mapping[str, int]:
    """
    The same site, of which only the bytes are known.
    """
    return {"web": listen(reactor, wrapFactory(Site(Page()), pool=WEB_POOL))}


def servePlainWeb(reactor: Any, *items: str) -> Mapping[str, int]:
    """
    The same site as it is.

    @param items: what the library C{limits} is to allow an address, if it is to limit any.
    """
    page: Any = Page()
    for item in items:
        page.render = limited(item)(page.render)
    return {"web": listen(reactor, Site(page))}


def serveSlowWeb(reactor: Any, workSeconds: str, looksForHangUps: str, *quota: str) -> Mapping[str, int]:
    """
    A site that works on one request at a time; protected, if there is a policy.

    @param looksForHangUps: C{yes} if it does not begin to work for a client that has left.
    """
    factory: Any = Site(OneAtATime(reactor, float(workSeconds), looksForHangUps == "yes"))
    if quota:
        factory = protectSite(Admission(pool=WEB_POOL, quota=quota), factory)
    return {"web": listen(reactor, factory)}


SERVERS = {
    "frames": serveFrames,
    "broker": serveBroker,
    "bare": serveBare,
    "relay": serveRelay,
    "web": serveWeb,
    "webBytes": serveWebBytes,
    "plainWeb": servePlainWeb,
    "slowWeb": serveSlowWeb,
}


def main(name: str, *arguments: str) -> None:
    """
    Run one of L{SERVERS}.
    """
    from twisted.internet import reactor, stdio

    serve: Any = SERVERS[name]
    stdio.StandardIO(UntilClosed(reactor))  # type: ignore[no-untyped-call]
    ports = serve(reactor, *arguments)
    print(json.dumps(ports), flush=True)
    running: Any = reactor
    running.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
