# -*- test-case-name: tests.clients.gateway.test_processes -*-
"""
One of several processes of a gateway; its parent, L{admission.kafka.gateway.gatewayprocesses}, begins it as C{python -m
admission.kafka.gateway.childmain}.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.protocol import Factory
from twisted.logger import FileLogObserver, Logger, globalLogBeginner
from twisted.python.reflect import namedModule
from twisted.python.usage import UsageError

from admission.clock import MonotonicClock
from admission.status.pages import StatusPages

from ..serving.logformat import asJson
from ..serving.serveroptions import endpointOf
from .gatewayconfig import GatewayConfig, configOf
from .gatewayoptions import GatewayOptions
from .gatewayservice import GatewayService
from .knownproducers import KnownProducers
from .parentbacking import Begin, ParentBacking
from .processchannel import CHANNEL_DESCRIPTOR, ProcessChannel, Word
from .sharedsockets import AdoptingReactor


class ChildService(GatewayService):
    """
    A gateway whose pages the parent shows.
    """

    pages: StatusPages | None = None
    hasPages = True

    def __init__(self, reactor: Any, config: GatewayConfig, backing: ParentBacking, channel: ProcessChannel) -> None:
        super().__init__(reactor, config, backing)
        self._parent = backing
        self._channel = channel

    def servePages(self, pages: StatusPages, started: AsyncExitStack) -> None:
        self.pages = pages

    def stopService(self) -> Any:
        self._channel.send(Word.DRAINING)
        stopping: Deferred[Any] = super().stopService()
        return stopping.addCallback(self._untilKept)

    def _untilKept(self, _: object) -> Deferred[None]:
        """
        Wait until the parent has what was said last, which would be lost if the process ended before.
        """
        kept: Deferred[None] = Deferred()
        self._parent.whenFlushed(lambda error: kept.callback(None))
        return kept


class ChildProcess:
    """
    Does what the parent says.

    @ivar exitCode: the exit code that the process is to end with.
    """

    log = Logger()

    def __init__(self, reactor: Any, process: int, options: GatewayOptions) -> None:
        """
        @param process: which one it is, from 1.
        @raise UsageError: if what an endpoint names cannot be read.
        """
        self._reactor = reactor
        self._process = process
        config = configOf(options)
        count = len(config.listeners)
        adopting = AdoptingReactor(reactor, range(CHANNEL_DESCRIPTOR + 1, CHANNEL_DESCRIPTOR + 1 + count))
        self._config = evolve(
            config,
            listeners=[
                evolve(each, endpoint=endpointOf("listen", each.description, adopting)) for each in config.listeners
            ],
            statusListener=None,
            process=process,
        )
        self._clock = MonotonicClock(reactor)
        self._known = KnownProducers(None, self._clock, maybeDeferred)
        self._service: ChildService | None = None
        self._backing: ParentBacking | None = None
        self._isStopping = False
        self.exitCode = 0
        self._channel = ProcessChannel(self._received, self._parentLost)

    def connect(self) -> None:
        """
        Listen to the parent, which then says how to begin.
        """
        factory: Any = Factory.forProtocol(lambda: self._channel)
        factory.noisy = False
        self._reactor.addSystemEventTrigger("before", "shutdown", self._stops)
        self._reactor.adoptStreamConnection(CHANNEL_DESCRIPTOR, socket.AF_UNIX, factory)
        os.close(CHANNEL_DESCRIPTOR)

    def stop(self) -> None:
        """
        End after the last response.
        """
        if not self._isStopping:
            self._isStopping = True
            # A signal may have stopped it in this turn.
            with suppress(ReactorNotRunning):
                self._reactor.stop()

    def _stops(self) -> None:
        self._isStopping = True

    def _received(self, word: Word, payload: bytes) -> None:
        if word is Word.BEGIN:
            self._beginOrEnd(payload)
        elif word is Word.NOTED and self._backing is None:
            self._known.note(*json.loads(payload))
        elif word is Word.ASK:
            self._asked(*json.loads(payload))
        elif word is Word.RELOAD:
            if self._service is not None:
                self._service.reload()
        elif word is Word.DRAIN:
            self.stop()
        elif word is Word.HURRY:
            if self._service is not None:
                self._service.hurry()
        elif self._backing is not None:
            self._backing.received(word, payload)

    def _beginOrEnd(self, payload: bytes) -> None:
        try:
            self._begin(Begin.of(payload))
        except (SystemExit, UsageError) as error:
            self._cannotStart()
            self.log.critical("{reason}", reason=str(error))
        except Exception:
            self._cannotStart()
            self.log.failure("this process cannot start")
        else:
            self._channel.send(Word.SERVING)

    def _cannotStart(self) -> None:
        self.exitCode = 1
        self.stop()

    def _begin(self, begin: Begin) -> None:
        config = self._config
        found = [each.description for each in config.listeners]
        if found != [*begin.listeners]:
            raise UsageError(
                f"the ports of the gateway are {', '.join(begin.listeners)}, and its options say {', '.join(found)} "
                "now: put that back, or restart the gateway"
            )
        profile = config.memoryProfile
        if profile is not None:
            profile = evolve(profile, directory=profile.directory / f"process-{self._process}")
        self._backing = ParentBacking(begin, self._known, self._channel, self._clock)
        service = self._service = ChildService(
            self._reactor, evolve(config, memoryProfile=profile), self._backing, self._channel
        )
        self._reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
        service.startService()

    def _asked(self, number: int, page: str, question: dict[str, str]) -> None:
        pages = None if self._service is None else self._service.pages
        if pages is None:
            return

        def answer(answered: tuple[int, str]) -> None:
            self._channel.tell(Word.ANSWER, (number, *answered))

        answering: Deferred[tuple[int, str]] = pages.answer(page, question)
        answering.addCallback(answer)
        answering.addErrback(lambda failure: self.log.failure("the page {page} failed", failure, page=page))

    def _parentLost(self) -> None:
        if self._backing is not None:
            self._backing.parentLost()
        if not self._isStopping:
            self.log.error("the parent of this process is gone, so it ends after its last response")
            self.stop()


def serve(arguments: Sequence[str]) -> int:
    """
    Serve until the parent says otherwise.

    @param arguments: the number of the process, the directory to work in, the module of the reactor, and the options of
        C{twistd admission-gateway}.
    @return: the exit code.
    """
    process, directory, reactorModule, *given = arguments
    namedModule(reactorModule).install()  # type: ignore[no-untyped-call]
    from twisted.internet import reactor

    globalLogBeginner.beginLoggingTo([FileLogObserver(sys.stdout, asJson)], redirectStandardIO=False)
    options = GatewayOptions()
    try:
        options.parseOptions(given)
        # Before it changes to the parent's directory, since files are named as they were on the command line.
        child = ChildProcess(reactor, int(process), options)
    except UsageError as error:
        Logger().critical("{reason}", reason=str(error))
        return 1
    os.chdir(directory)
    child.connect()
    reactor.run()
    return child.exitCode
