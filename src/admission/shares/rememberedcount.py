# -*- test-case-name: tests.unit.shares.test_rememberedcount -*-
"""
How many servers there were, for one that starts while it hears from none.
"""

from __future__ import annotations

import os

from twisted.logger import Logger

from ..boundedfile import readBounded

_MAX_BYTES = 100


class RememberedCount:
    """
    A number in a file of its own.

    @ivar count: the number that was remembered last; 1 if there was none, or no number.
    """

    _log = Logger()

    def __init__(self, path: str) -> None:
        self._path = path
        self.count = 1
        try:
            self.count = max(int(readBounded(path, _MAX_BYTES)), 1)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self._log.warn("how many servers share limits is not remembered: {path}: {error}", path=path, error=error)

    def remember(self, count: int) -> None:
        """
        There are so many from now on.
        """
        self.count = count
        unfinished = f"{self._path}.tmp"
        try:
            with open(unfinished, "w", encoding="ascii") as file:
                file.write(f"{count}\n")
            os.replace(unfinished, self._path)
        except OSError as error:
            self._log.warn(
                "how many servers share limits cannot be stored in {path}: {error}", path=self._path, error=error
            )
