# -*- test-case-name: tests.clients.gateway.test_processes -*-
"""
A gateway of several processes: the parent opens the ports, has the store, and asks the cluster; the others serve.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from string import ascii_lowercase
from typing import Any, Final

from attrs import define, evolve, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, maybeDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Factory, ProcessProtocol
from twisted.internet.threads import deferToThreadPool
from twisted.logger import InvalidLogLevelError, Logger, LogLevel
from twisted.python.usage import UsageError

from admission.clock import MonotonicClock, useMonotonicTimers, wallSeconds
from admission.status.wholepages import SERVING, ProcessAnswer, WholePages
from admission.units import formatSeconds

from ..serving.kafkarequest import Address
from ..serving.logformat import observeLog
from ..serving.reload import ReloadSignal
from ..serving.secondsignal import SecondSignal
from ..serving.serveroptions import certificatesAnew, endpointOf
from ..serving.serverports import CannotStart, ServerPorts, raiseDescriptorLimit, statusPortOf
from ..serving.serversettings import RESERVED_DESCRIPTORS
from ..serving.serverstatus import describeAddresses
from ..storage.itable import LogRefusal
from .backing import GatewayStore, OwnBacking
from .gatewayconfig import GatewayConfig
from .gatewayoptions import whyPortsMayBeTaken
from .nodes import FoundNode
from .parentbacking import TABLES, Begin, encodedNodes
from .processchannel import CHANNEL_DESCRIPTOR, ProcessChannel, Word
from .sharedsockets import ReservedPort, ReservingReactor
from .usagerelay import UsageRelay

RESTART_SECONDS: Final = (0.5, 30.0)
"""
How long to wait before a process that has died is begun again, at first and at most; the time doubles with each death.
"""

STEADY_SECONDS: Final = 60.0
"""A process that has served for this long has died of something else than the one before it."""

ANSWER_SECONDS: Final = 5.0
"""How long the answer to a question about a process may take."""

MEMORY_SECONDS: Final = 110.0
"""The same of a snapshot of memory: less than C{admission memory} waits by itself, which so hears who is silent."""

SILENT_SECONDS: Final = 12.0
"""
After so long without a word of a process the gateway is not healthy; each says something every five seconds at least.
"""

KILL_SECONDS: Final = 10.0
"""How much longer than C{close.grace.timeout} a process may take to end."""

WAITING: Final = "waiting to be started again"

# The descriptors of a process: the sockets to it, and what it writes.
_DESCRIPTORS_OF_PROCESS: Final = 3

_LONGEST_LINE: Final = 1 << 20


@define(eq=False)
class OneProcess(ProcessProtocol):
    """
    A process that serves clients, from its start to its end.

    @ivar number: its number, from 1.
    @ivar state: what it does, in words.
    """

    _parent: GatewayProcesses
    number: int
    state: str = "starting"
    sinceSeconds: float = 0.0
    heardSeconds: float = 0.0
    ended: Deferred[None] = field(factory=Deferred)
    channel: ProcessChannel = field(init=False)
    _unread: dict[int, bytes] = field(factory=dict)
    _questions: dict[int, Deferred[tuple[int, str]]] = field(factory=dict)
    _asked: int = 0
    _killing: IDelayedCall | None = None

    def __attrs_post_init__(self) -> None:
        self.channel = ProcessChannel(self._received, self.killLater)
        self._enters("starting")
        self.heardSeconds = self.sinceSeconds

    @property
    def pid(self) -> int | None:
        pid: int | None = getattr(self.transport, "pid", None)
        return pid

    def _enters(self, state: str) -> None:
        self.state, self.sinceSeconds = state, self._parent.clock.seconds()

    def ask(self, page: str, question: Mapping[str, str]) -> Deferred[tuple[int, str]]:
        """
        Ask for a page.

        @return: fails if there is no answer in time.
        """
        self._asked += 1
        number = self._asked

        def forget(_: object) -> None:
            self._questions.pop(number, None)

        asked: Deferred[tuple[int, str]] = Deferred(forget)
        self._questions[number] = asked
        self.channel.tell(Word.ASK, (number, page, question))
        seconds = MEMORY_SECONDS if page == "memory" else ANSWER_SECONDS
        return asked.addTimeout(seconds, self._parent.clock)

    def killLater(self) -> None:
        """
        It has been told to end, or cannot be told anything any more: kill it if it does not end in time.
        """
        if self._killing is None and not self.ended.called:
            graceSeconds = self._parent.graceSeconds + KILL_SECONDS
            self._killing = self._parent.reactor.callLater(graceSeconds, self._kill)

    def _kill(self) -> None:
        self._parent.log.error(
            "process {number} has not ended within {grace} more than close.grace.timeout, and is killed",
            number=self.number,
            grace=formatSeconds(KILL_SECONDS),
        )
        if self.transport is not None and self.pid is not None:
            self.transport.signalProcess("KILL")

    # What it says

    def _received(self, word: Word, payload: bytes) -> None:
        parent = self._parent
        self.heardSeconds = parent.clock.seconds()
        if word is Word.PUBLISH:
            parent.relay.publish(payload, False, None)
        elif word is Word.PUBLISH_KEPT:
            parent.relay.publish(payload, True, None)
        elif word is Word.PUBLISH_KEYED:
            key, _, message = payload.partition(b"\0")
            parent.relay.publish(message, True, key.decode())
        elif word is Word.PUT:
            parent.put(self.number, *json.loads(payload))
        elif word is Word.FLUSH:
            number = json.loads(payload)
            parent.whenFlushed(
                lambda error: self.channel.tell(Word.FLUSHED, (number, None if error is None else str(error)))
            )
        elif word is Word.NOTED:
            parent.noted(self, *json.loads(payload))
        elif word is Word.REMEMBER:
            parent.backing.remember(json.loads(payload))
        elif word is Word.ANSWER:
            number, code, text = json.loads(payload)
            asked = self._questions.pop(number, None)
            if asked is not None:
                asked.callback((code, text))
        elif word is Word.SERVING:
            self._enters(SERVING)
            parent.serves()
        elif word is Word.DRAINING:
            self._enters("draining")

    # What it writes, and its end

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        *lines, rest = (self._unread.get(childFD, b"") + data).split(b"\n")
        self._unread[childFD] = rest[:_LONGEST_LINE]
        for line in lines:
            self._parent.logLine(self.number, line.decode("utf-8", "replace"))

    def processEnded(self, reason: Any) -> None:
        for rest in self._unread.values():
            if rest:
                self._parent.logLine(self.number, rest.decode("utf-8", "replace"))
        for asked in [*self._questions.values()]:
            asked.cancel()
        if self._killing is not None and self._killing.active():
            self._killing.cancel()
        self._parent.hasEnded(self, reason.value)
        self.ended.callback(None)


class ToldNodes:
    """
    What the parent knows of the cluster's nodes.
    """

    def __init__(self) -> None:
        self.addresses: Mapping[int, Address] = {}

    def learnAll(self, found: Collection[FoundNode]) -> None:
        self.addresses = {each.nodeId: Address(each.host, each.port) for each in found}


class GatewayProcesses(Service):
    """
    The parent process: it does what has to be done once for the whole gateway.
    """

    log = Logger()

    backing: OwnBacking
    relay: UsageRelay

    def __init__(self, reactor: Any, config: GatewayConfig, arguments: Sequence[str], directory: str) -> None:
        """
        @param arguments: the options of the command line, which each process reads, too.
        @param directory: the directory in which they were given.
        """
        self.reactor = reactor
        self.graceSeconds = config.settings.closeGraceTimeoutSeconds
        reserving = ReservingReactor(reactor)
        listeners = [
            evolve(each, endpoint=endpointOf("listen", each.description, reserving)) for each in config.listeners
        ]
        self._config = evolve(config, listeners=listeners)
        self._arguments = arguments
        self._directory = directory
        self._statusPort = statusPortOf(config.statusListener, config.listeners, reactor)
        self._ports = ServerPorts(self._statusPort)
        self._hasListened = False
        self._reloadSignal = ReloadSignal(reactor, self._reload)
        self._started = AsyncExitStack()
        self._processes: dict[int, OneProcess] = {}
        self._restarts: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        # The reasons that processes have last given for not serving.
        self._critical: dict[int, str] = {}
        self._waiting: dict[int, tuple[float, IDelayedCall]] = {}
        self._nodes = ToldNodes()
        self._hasServed = self._isStopping = False

    # What twistd calls

    def setServiceParent(self, parent: Any) -> None:
        """
        Also tell the application, which C{twistd} makes, how to log.
        """
        observeLog(parent, self._config.makeLogObserver)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def privilegedStartService(self) -> None:
        """
        Open the ports while the process still has its privileges.
        """
        self._hasListened = True
        self._ports.listen(self._config.listeners, lambda listener: Factory(), lambda port: None, self._giveUp)
        for listener, port in zip(self._config.listeners, self._ports.open, strict=False):
            if not isinstance(port, ReservedPort):
                self._ports.stop()
                raise CannotStart(
                    f"admission: --listen {listener.description} cannot be shared among processes (--processes); use "
                    "an endpoint such as tcp: or ssl:"
                )

    def startService(self) -> None:
        """
        Begin everything, and have the others serve.
        """
        if not self._hasListened:
            self.privilegedStartService()
        try:
            self._start()
        except BaseException:
            self._ports.stop()
            raise
        super().startService()  # type: ignore[no-untyped-call]
        self._reloadSignal.start()
        config = self._config
        self.log.info(
            "{count} processes are to serve {addresses}, each with 1/{count} of the memory pool and of the connections",
            count=config.processes,
            addresses=" and ".join(self.listeners()),
        )

    @inlineCallbacks
    def stopService(self) -> Any:
        """
        Have all processes end after their last responses, and wait for that.  A second SIGTERM ends their wait for
        clients.
        """
        yield maybeDeferred(super().stopService)
        self._isStopping = True
        self._reloadSignal.stop()
        for _, call in self._waiting.values():
            call.cancel()
        self._waiting.clear()
        yield self._ports.stopAccepting()
        processes = [*self._processes.values()]
        for process in processes:
            process.channel.send(Word.DRAIN)
            process.killLater()
        with SecondSignal(self.reactor, self._hurry):
            yield DeferredList([process.ended for process in processes])
        yield Deferred.fromCoroutine(self._started.aclose())
        self.log.info("stopped: all processes have ended")

    def _start(self) -> None:
        config, reactor = self._config, self.reactor
        started = self._started = AsyncExitStack()
        useMonotonicTimers(reactor)
        clock = self.clock = MonotonicClock(reactor)
        warning = whyPortsMayBeTaken(config.listeners)
        if warning is not None:
            self.log.warn("{warning}", warning=warning)
        if self._statusPort is not None:
            started.push_async_callback(self._statusPort.stop)
        backing = self.backing = OwnBacking(reactor, config, clock, self._deferToThread)
        self._store: GatewayStore = backing.openStore(started)
        discovery = backing.discover(self._nodes, started)
        discovery.onAsked = self._tellNodes
        exchange = backing.makeExchange()
        if exchange is not None:
            started.push_async_callback(exchange.stop)
        relay = self.relay = UsageRelay(backing.producers, exchange, clock)
        relay.start()
        started.callback(relay.stop)
        if self._statusPort is not None:
            pages = WholePages(reactor, clock.seconds, wallSeconds, self)
            pages.history.start()
            started.callback(pages.history.stop)
            self._statusPort.serve(pages.root)
        raiseDescriptorLimit(len(self._ports.open) + _DESCRIPTORS_OF_PROCESS * config.processes + RESERVED_DESCRIPTORS)
        for number in range(1, config.processes + 1):
            self._begin(number)
        if not self._processes:
            raise CannotStart("admission: no process can begin; the log says why")

    # Processes

    def _begin(self, number: int) -> None:
        self._waiting.pop(number, None)
        process = OneProcess(self, number)
        try:
            self._spawn(process)
        except OSError as error:
            process.ended.callback(None)
            self.log.error("process {number} cannot begin: {error}", number=number, error=error)
            self._beginLater(number, RESTART_SECONDS[1])
            return
        store, backing = self._store, self.backing
        begin = Begin(
            {name: [*store.table(self._tableOf(name, number)).items()] for name in TABLES},
            [each.description for each in self._config.listeners],
            backing.gateways,
            backing.ownTopics,
        )
        self._tellProducers(process)
        process.channel.send(Word.BEGIN, begin.encoded())
        self.relay.join(process.channel)
        self._tellNodes(process)

    def _beginLater(self, number: int, delaySeconds: float) -> None:
        now = self.clock.seconds()
        self._waiting[number] = now, self.reactor.callLater(delaySeconds, self._begin, number)

    def _spawn(self, process: OneProcess) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, open(os.devnull, "rb") as nothing:
            ours.setblocking(False)
            factory: Any = Factory.forProtocol(lambda: process.channel)
            factory.noisy = False
            self.reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, factory)
            descriptors = [nothing.fileno(), "r", "r", theirs.fileno(), *self._sockets()]
            assert descriptors[CHANNEL_DESCRIPTOR] == theirs.fileno()
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or self._directory for each in sys.path)}
            module = "admission.kafka.gateway.childmain"
            arguments = (str(process.number), os.getcwd(), type(self.reactor).__module__, *self._arguments)
            self.reactor.spawnProcess(
                process,
                sys.executable,
                [sys.executable, "-m", module, *arguments],
                environment,
                self._directory,
                childFDs=dict(enumerate(descriptors)),
            )
            self._processes[process.number] = process

    def _sockets(self) -> Iterator[int]:
        for port in self._ports.open:
            assert isinstance(port, ReservedPort)
            yield port.socket.fileno()

    def serves(self) -> None:
        """
        A process has begun to serve, so that others can.
        """
        self._hasServed = True

    def hasEnded(self, process: OneProcess, reason: Any) -> None:
        """
        A process has ended; begin it again, unless that makes no sense.
        """
        number = process.number
        now = self.clock.seconds()
        if self._processes.get(number) is not process:
            # It is not, or no longer, the process of that number.
            return
        del self._processes[number]
        self.relay.leave(process.channel)
        if self._isStopping:
            return
        how = "has ended" if reason.signal is None else f"was ended by {_nameOf(reason.signal)}"
        if reason.exitCode:
            how += f" with exit code {reason.exitCode}"
        if not self._hasServed and reason.exitCode:
            self._giveUp(f"process {number} cannot start: {self._critical.get(number, how)}")
            return
        self._restarts[number] = self._restarts.get(number, 0) + 1
        if process.state == "draining" and reason.exitCode == 0:
            self.log.info("process {number} has ended as it was told to, and begins again", number=number)
            self._begin(number)
            return
        wasSteady = process.state == SERVING and now - process.sinceSeconds >= STEADY_SECONDS
        failures = 0 if wasSteady else self._failures.get(number, 0)
        self._failures[number] = failures + 1
        first, most = RESTART_SECONDS
        delaySeconds = min(first * 2.0**failures, most)
        self.log.error(
            "process {number} {how}; it begins again in {delay}, and its clients go to the others meanwhile",
            number=number,
            how=how,
            delay=formatSeconds(delaySeconds),
        )
        self._beginLater(number, delaySeconds)

    def _giveUp(self, reason: str) -> None:
        self.log.critical("{reason}", reason=reason)
        if self.running and not self._isStopping:
            self._isStopping = True
            # Nothing else tells C{twistd} that this was no success.
            atexit.register(_endInVain)
            self.reactor.stop()

    def _hurry(self) -> None:
        self.log.warn("asked to stop again: connections are cut off")
        for process in self._processes.values():
            process.channel.send(Word.HURRY)

    def _reload(self) -> None:
        """
        Have the processes read everything again; they say what is wrong with it.
        """
        status, read = self._config.statusListener, self._config.read
        with suppress(UsageError):
            found = None if read is None else read()
            if found is not None:
                self.graceSeconds = found.settings.closeGraceTimeoutSeconds
        try:
            for endpoint, context in certificatesAnew([] if status is None else [status]):
                endpoint.use(context)
        except UsageError as error:
            self.log.error("the certificate of the status port stays as it is: {error}", error=error)
        for process in self._processes.values():
            process.channel.send(Word.RELOAD)

    def logLine(self, number: int, line: str) -> None:
        """
        A process has written a line: an event of its log as JSON, or text from before it had a log.
        """
        try:
            event = json.loads(line)
            level, text = LogLevel.lookupByName(event["level"]), event["message"]
            source, fields, traceback = event["source"], event["fields"], event.get("traceback")
        except (ValueError, KeyError, TypeError, InvalidLogLevelError):
            level, text, source, fields, traceback = LogLevel.error, line, "stderr", {}, None
        if traceback is not None:
            text = f"{text}\n{traceback}"
        if level is LogLevel.critical:
            self._critical[number] = text
        fields = {name: value for name, value in fields.items() if name not in ("level", "format", "process")}
        Logger(namespace=source).emit(level, "process {process}: {log_text}", **fields, process=number, log_text=text)

    # What is kept for processes

    def put(self, number: int, name: str, key: str, value: str | None) -> None:
        """
        A process has written to a table.
        """
        table = self._store.table(self._tableOf(name, number))
        try:
            if value is None:
                table.delete(key.encode("latin-1"))
            else:
                table.put(key.encode("latin-1"), value.encode("latin-1"))
        except LogRefusal:
            # The process is told when it asks for a flush.
            pass

    def noted(self, process: OneProcess, principal: str, producerIds: Sequence[int]) -> None:
        """
        A process has let producers through that it did not know.
        """
        new = self.backing.producers.note(principal, producerIds)
        if new:
            for each in self._processes.values():
                if each is not process:
                    each.channel.tell(Word.NOTED, (principal, new))

    def _tellProducers(self, process: OneProcess) -> None:
        byUser: dict[str, list[int]] = {}
        for principal, producerId in self._store.producers():
            byUser.setdefault(principal, []).append(producerId)
        for principal, producerIds in byUser.items():
            process.channel.tell(Word.NOTED, (principal, producerIds))

    def whenFlushed(self, callback: Callable[[Exception | None], object]) -> None:
        self._store.whenFlushed(callback)

    @staticmethod
    def _tableOf(name: str, number: int) -> str:
        # Each process keeps what its own policies know; the first goes on with what a gateway of one process has kept.
        # Names of tables have letters only.
        if name != "policies" or number == 1:
            return name
        first, second = divmod(number, len(ascii_lowercase))
        return f"{name}{ascii_lowercase[first]}{ascii_lowercase[second]}"

    def _tellNodes(self, process: OneProcess | None = None) -> None:
        discovery = self.backing.discovery
        reached = discovery.reachedSeconds
        agoSeconds = None if reached is None else self.clock.seconds() - reached
        told = encodedNodes(self._nodes.addresses, agoSeconds, discovery.lastError)
        for each in self._processes.values() if process is None else [process]:
            each.channel.tell(Word.NODES, told)

    def _deferToThread(self, function: Any, *args: Any) -> Deferred[Any]:
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), function, *args)

    # What the pages show

    def ask(self, page: str, question: Mapping[str, str], process: int | None = None) -> Deferred[list[ProcessAnswer]]:
        """
        See L{Processes<admission.status.wholepages.Processes>}.
        """
        asked = [each for each in self._processes.values() if process in (None, each.number)]
        asked.sort(key=lambda each: each.number)
        answers = [each.ask(page, question).addErrback(lambda failure: None) for each in asked]

        def together(found: Any) -> list[ProcessAnswer]:
            return [
                ProcessAnswer(each.number, *answer)
                for each, (_, answer) in zip(asked, found, strict=True)
                if answer is not None
            ]

        return DeferredList(answers).addCallback(together)

    def fields(self, now: float) -> list[dict[str, Any]]:
        rows = []
        for number in range(1, self._config.processes + 1):
            process = self._processes.get(number)
            waiting = self._waiting.get(number)
            since = process.sinceSeconds if process is not None else waiting[0] if waiting is not None else now
            rows.append(
                {
                    "process": number,
                    "pid": None if process is None else process.pid,
                    "state": process.state if process is not None else "ended" if self._isStopping else WAITING,
                    "sinceSeconds": now - since,
                    "restarts": self._restarts.get(number, 0),
                }
            )
        return rows

    def troubles(self, now: float) -> Iterator[str]:
        """
        Why the gateway is not well, beside what processes say of themselves.
        """
        if self._isStopping:
            yield "the gateway is being stopped"
        for number in range(1, self._config.processes + 1):
            process = self._processes.get(number)
            if process is None or process.state != SERVING:
                yield f"process {number} of {self._config.processes} does not serve"
            elif now - process.heardSeconds > SILENT_SECONDS:
                yield f"process {number} has said nothing for {now - process.heardSeconds:.0f} s"

    def listeners(self) -> list[str]:
        return describeAddresses(port.getHost() for port in self._ports.open)


def _nameOf(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _endInVain() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
