# -*- test-case-name: tests.unit.kafka.serving.test_reload -*-
"""
Taking over a changed file of properties while the server runs, when SIGHUP asks for it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import evolve, frozen

from ..property import propertiesOf
from .serversettings import ServerSettings

S = TypeVar("S", bound=ServerSettings)


@frozen
class Configuration(Generic[S]):
    """
    What the command line and the file of properties say together.

    @ivar path: the file.
    @ivar quotas: the values of C{--quota}.
    @ivar options: the other options that are in the file, by their names there, with their values.
    """

    path: str
    settings: S
    quotas: Sequence[str]
    options: Mapping[str, Sequence[str]]


@frozen
class Change:
    """
    A property that has another value, each written as Kafka writes it.
    """

    name: str
    before: str
    after: str


def takeOver(current: S, found: S) -> tuple[S, list[Change], list[str]]:
    """
    Compare settings.

    @return: the current settings with what may change while the server runs; what that is; and the names of what is in
        force only after a restart.
    @raise SettingsError: if the result contradicts itself.
    """
    before, after = current.asProperties(), found.asProperties()
    values: dict[str, Any] = {}
    changes: list[Change] = []
    waiting: list[str] = []
    places = dict(current.places)
    for attribute, listed in propertiesOf(type(current)).items():
        if before[listed.name] == after[listed.name]:
            continue
        if listed.isReloaded:
            values[attribute] = getattr(found, attribute)
            changes.append(Change(listed.name, before[listed.name], after[listed.name]))
            for name in listed.names:
                places.pop(name, None)
                if name in found.places:
                    places[name] = found.places[name]
        elif not found.places.keys().isdisjoint(listed.names) or not current.places.keys().isdisjoint(listed.names):
            # A default that goes by the machine, or by another property, is nobody's change.
            waiting.append(listed.name)
    return evolve(current, places=places, **values), changes, waiting


class ReloadSignal:
    """
    SIGHUP, while a server runs.  As it also tells a program that its terminal is gone, a server that had one stops
    then.
    """

    def __init__(self, reactor: Any, reload: Callable[[], object]) -> None:
        """
        @param reload: called in a turn of the reactor.
        """
        self._reactor = reactor
        self._reload = reload
        self._hasTerminal = False
        self._before: Any = None

    def start(self) -> None:
        """
        Take the signal, unless another part of the process has it.
        """
        before = signal.getsignal(signal.SIGHUP)
        if before in (signal.SIG_DFL, signal.SIG_IGN):
            self._hasTerminal = _hasTerminal()
            signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._received))
            self._before = before

    def stop(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGHUP, self._before)
            self._before = None

    def _received(self) -> None:
        if self._hasTerminal and not _hasTerminal():
            self._reactor.stop()
        else:
            self._reload()


def _hasTerminal() -> bool:
    return os.isatty(0)
