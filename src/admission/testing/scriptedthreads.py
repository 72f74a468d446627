# -*- test-case-name: tests.contracts.test_exportercontract -*-
"""
Threads that work when a test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, execute, fail


class ScriptedThreads:
    """
    Stands in for a reactor's threads: they do everything at once, nothing
    until L{work} while they are idle, or fail.

    @ivar isIdle: whether to wait for L{work}; set it at will.
    @ivar failure: the exception with which all work fails; set it at
        will.
    @ivar waiting: the work to do, oldest first.
    """

    def __init__(self) -> None:
        self.isIdle = False
        self.failure: Exception | None = None
        self.waiting: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def deferToThread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        if not self.isIdle:
            return self._do(function, args, kwargs)
        done: Deferred[Any] = Deferred()
        self.waiting.append((done, function, args, kwargs))
        return done

    def work(self) -> None:
        """
        Do all waiting work, and the work that follows from it.
        """
        while self.waiting:
            done, function, args, kwargs = self.waiting.pop(0)
            self._do(function, args, kwargs).chainDeferred(done)

    def _do(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred[Any]:
        return execute(function, *args, **kwargs) if self.failure is None else fail(self.failure)
