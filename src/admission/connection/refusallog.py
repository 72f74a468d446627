# -*- test-case-name: tests.unit.connection.test_refusallog -*-
"""
Why connections are closed, in the log.
"""

from __future__ import annotations

from collections import Counter

from twisted.logger import Logger

MAX_LINES = 100
"""How many refusals are logged with their reasons between two sweeps."""

MAX_LINES_OF_ADDRESS = 20
"""How many of these may be of one address."""


class RefusalLog:
    """
    Logs why connections are closed or refused.  Peers can make us do that as often as they like, and most of it before
    anybody knows who they are.  So the log has a limited number of lines, in all and for each address, and says how
    many others there were.
    """

    log = Logger()

    def __init__(self) -> None:
        # No more addresses than lines.
        self._lines: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._lineCount = 0

    def refused(self, host: str, peer: str, reason: str) -> None:
        """
        A connection is closed.

        @param host: its address; empty if unknown.
        @param peer: its address and port, for the log.
        """
        if self._lineCount < MAX_LINES and self._lines[host] < MAX_LINES_OF_ADDRESS:
            self._lineCount += 1
            self._lines[host] += 1
            self.log.warn("closing the connection of {peer}: {reason}", peer=peer, reason=reason)
        else:
            self._others[host if self._lines[host] else ""] += 1

    def sweep(self) -> None:
        """
        Log the numbers of those that were left out, and begin anew.
        """
        others, self._others = self._others, Counter()
        self._lines.clear()
        self._lineCount = 0
        for host, count in others.most_common():
            self.log.warn(
                "closed {count} more connections of {host} for such reasons",
                count=count,
                host=host or "other addresses",
            )
