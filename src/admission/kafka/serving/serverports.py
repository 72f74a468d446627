# -*- test-case-name: tests.unit.kafka.broker.test_service -*-
"""
The ports of a server, which are all opened, or none.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from socket import gethostname
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.python.failure import Failure

from admission.status.site import StatusPort

from .serveroptions import Listener


class CannotStart(SystemExit, Exception):
    """
    The broker cannot start; the message is for the operator.

    In the foreground L{SystemExit} ends the process with this message alone.
    But C{twistd} removes its process file, and tells the process that waits
    for a daemon to start, only when it sees an L{Exception}.
    """


class ServerPorts:
    """
    Where a server listens.

    @ivar open: the ports for clients that are open.
    """

    def __init__(self, statusPort: StatusPort | None) -> None:
        """
        @param statusPort: is opened and closed with the others.
        """
        self._statusPort = statusPort
        self.open: list[IListeningPort] = []

    def listen(
        self,
        listeners: Sequence[Listener],
        factoryOf: Callable[[Listener], IProtocolFactory],
        opened: Callable[[IListeningPort], object],
        failedLate: Callable[[str], object],
    ) -> None:
        """
        Open them.

        @param factoryOf: makes the factory of one.
        @param opened: called with each that is open.
        @param failedLate: called with a sentence, where that is not known before this has returned.
        @raise CannotStart: if one cannot be opened; then none is.
        """
        failures: dict[str, str] = {}
        isListening = True

        def listens(port: IListeningPort) -> None:
            self.open.append(port)
            opened(port)

        def cannotListen(failure: Failure, listener: Listener | StatusPort) -> None:
            option = "--listen" if isinstance(listener, Listener) else "--status"
            reason = f"cannot listen on {listener.description}: {_whyNotListening(failure)} ({option} says where)"
            failures[listener.description] = reason
            if not isListening:
                failedLate(reason)

        for listener in listeners:
            listening = listener.endpoint.listen(factoryOf(listener))
            listening.addCallbacks(listens, cannotListen, errbackArgs=(listener,))
        if self._statusPort is not None:
            self._statusPort.listen().addErrback(cannotListen, self._statusPort)
        isListening = False
        if failures:
            self.stop()
            first, *others = failures
            # A gateway has a port for each node, and a process that has one of them has them all as a rule.
            also = f"; nor on {len(others)} more, the last of which is {others[-1]}" if others else ""
            raise CannotStart(f"admission: {failures[first]}{also}")

    def stopAccepting(self) -> Deferred[Any]:
        """
        Close the ports for clients.
        """
        ports, self.open = self.open, []
        return DeferredList([maybeDeferred(port.stopListening) for port in ports])

    def stop(self) -> Deferred[Any]:
        """
        Close all of them.
        """
        stopping = [self.stopAccepting()]
        if self._statusPort is not None:
            stopping.append(self._statusPort.stop())
        return DeferredList(stopping)


def statusPortOf(status: Listener | None, listeners: Sequence[Listener], reactor: Any) -> StatusPort | None:
    """
    The status port of a server, which goes by the names that clients know it by.

    @param status: where it is; L{None} for none.
    """
    if status is None:
        return None
    names = [gethostname(), *(each.advertised.host for each in listeners if each.advertised is not None)]
    return StatusPort(status.description, status.endpoint, reactor, names, "--advertise")


def raiseDescriptorLimit(needed: int) -> tuple[int, int]:
    """
    Let the process have so many open files, as far as the system allows.

    @return: how many it may have now, and at most; C{RLIM_INFINITY} for any number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft, hard


def _whyNotListening(failure: Failure) -> str:
    """
    What the system says, without the address, which was named already.
    """
    reason = getattr(getattr(failure.value, "socketError", None), "strerror", None)
    return str(reason or failure.getErrorMessage())
