# -*- test-case-name: tests.sockets.test_hangup -*-
"""
Noticing that a peer has hung up while its connection is paused.

A transport that is not read does not see the end of its stream
(U{twisted issue 11168 <https://github.com/twisted/twisted/issues/11168>},
open since 2006), so a paused connection would hold its memory for a peer that
hung up long ago.
"""

from __future__ import annotations

import fcntl
import select
import termios
from array import array
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer


def filenoOf(transport: Any) -> int | None:
    """
    The descriptor under C{transport}, whatever is wrapped around it; L{None}
    when there is none, as in tests.
    """
    try:
        fileno = transport.fileno()
    except AttributeError:
        return None
    return fileno if isinstance(fileno, int) and fileno >= 0 else None


def unreadBytes(fileno: int) -> int:
    """
    How many bytes the peer has sent that have not been read yet.
    """
    count = array("i", [0])
    fcntl.ioctl(fileno, termios.FIONREAD, count, True)
    return count[0]


@implementer(IReadDescriptor)
class HangUpWatch:
    """
    One epoll descriptor for all muted connections of a process, itself read by
    the reactor.  Works with every reactor that watches descriptors; where the
    system has no epoll, L{isSupported} is L{False}, L{add} does nothing, and a
    muted peer's leaving shows only once it is read again.

    A peer that has merely closed its sending side counts as hung up, as it
    does for Twisted's transports.
    """

    _log = Logger()
    isSupported = hasattr(select, "epoll")

    def __init__(self, reactor: IReactorFDSet) -> None:
        self._reactor = reactor
        self._callbacks: dict[int, Callable[[bool], None]] = {}
        self._epoll: Any = None

    def add(self, fileno: int, hungUp: Callable[[bool], None]) -> None:
        """
        Call C{hungUp}, once, when the peer behind C{fileno} has closed its
        side (with L{False}) or the connection has failed (with L{True}).
        """
        if not self.isSupported:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._reactor.addReader(self)
        self._epoll.register(fileno, select.EPOLLRDHUP)
        self._callbacks[fileno] = hungUp

    def discard(self, fileno: int) -> None:
        """
        Watch no longer.  Before C{fileno} is read again, or closed: its number
        may soon be another connection's.  No effect if it is not watched.
        """
        if self._callbacks.pop(fileno, None) is not None:
            try:
                self._epoll.unregister(fileno)
            except OSError:
                # Closed before we heard of it, and so no longer known.
                pass

    def close(self) -> None:
        self._callbacks.clear()
        if self._epoll is not None:
            self._reactor.removeReader(self)
            self._epoll.close()
            self._epoll = None

    def fileno(self) -> int:
        return int(self._epoll.fileno()) if self._epoll is not None else -1

    def doRead(self) -> None:
        """
        For the reactor: some peers have gone.
        """
        for fileno, events in self._epoll.poll(0):
            hungUp = self._callbacks.get(fileno)
            if hungUp is None:
                continue
            self.discard(fileno)
            try:
                # EPOLLHUP says nothing: a UNIX socket has it when its peer
                # has closed in order, with requests still unread.
                hungUp(bool(events & select.EPOLLERR))
            except Exception:
                self._log.failure("a connection failed when its peer hung up")
            if self._epoll is None:
                return

    def connectionLost(self, reason: Failure) -> None:
        self.close()

    def logPrefix(self) -> str:
        return "hang-up watch"
