# -*- test-case-name: tests.contracts.test_purgatory -*-
"""
Who watches which keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from sys import getsizeof
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Watcher = TypeVar("_Watcher", bound=Hashable)


def fitted(entries: dict[_Key, _Value]) -> dict[_Key, _Value]:
    """
    C{entries}, or a smaller copy if there is room for some ten times as many:
    deleting frees no memory, and walking a dictionary passes all the places
    that were ever used.
    """
    return dict(entries) if getsizeof(entries) > 1000 + 600 * len(entries) else entries


class Watches(Generic[_Watcher]):
    """
    Watchers by key, in the order they came.  A watcher leaves its keys in
    constant time, and a key that nobody watches is not there.
    """

    __slots__ = ("_byKey",)

    def __init__(self) -> None:
        self._byKey: dict[Hashable, dict[_Watcher, None]] = {}

    def add(self, watcher: _Watcher, keys: Iterable[Hashable]) -> None:
        """
        Have C{watcher} watch C{keys}; what comes twice counts once.
        """
        byKey = self._byKey
        for key in keys:
            watchers = byKey.get(key)
            if watchers is None:
                byKey[key] = {watcher: None}
            else:
                watchers[watcher] = None

    def discard(self, watcher: _Watcher, keys: Iterable[Hashable]) -> None:
        """
        C{watcher} watches no longer.

        @param keys: those that it was added with.
        """
        for key in keys:
            try:
                watchers = self._byKey[key]
                del watchers[watcher]
            except KeyError:
                # This key came twice.
                continue
            count = len(watchers)
            # Looked at whenever the count has come down to a power of two, zero included: often enough, and cheap.
            if not count & (count - 1):
                self._tidy(key, watchers)

    def under(self, key: Hashable) -> Iterable[_Watcher]:
        """
        Who watches C{key}; a live view.
        """
        return self._byKey.get(key, ())

    def __contains__(self, key: Hashable) -> bool:
        """
        Whether anybody watches C{key}.
        """
        return key in self._byKey

    def __iter__(self) -> Iterator[_Watcher]:
        """
        Everybody, as often as they watch keys.
        """
        for watchers in self._byKey.values():
            yield from watchers

    def _tidy(self, key: Hashable, watchers: dict[_Watcher, None]) -> None:
        if watchers:
            self._byKey[key] = fitted(watchers)
        else:
            del self._byKey[key]
            self._byKey = fitted(self._byKey)
