# -*- test-case-name: tests.unit.connection.test_refusallog -*-
"""
Why connections are closed, in the log.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import suppress

from twisted.logger import Logger, globalLogBeginner, globalLogPublisher

MAX_LINES = 100
"""How many refusals are logged with their reasons between two sweeps."""

MAX_LINES_OF_ADDRESS = 20
"""How many of these may be of one address."""


UNTOLD = (
    "connections are closed for what their peers did, and nobody is told which and why, since Twisted's log was not "
    "begun: call twisted.logger.globalLogBeginner.beginLoggingTo([twisted.logger.STDLibLogObserver()], "
    "redirectStandardIO=False) to have it in Python's logging"
)
"""What the log says once when lines are left out."""


def _isLogRead() -> bool:
    """
    Whether the log has been begun: before that, Twisted prints only what is critical, and the rest is lost if nobody
    ever begins it.
    """
    unbegun = getattr(globalLogBeginner, "_temporaryObserver", None)
    return unbegun is None or any(each is not unbegun for each in getattr(globalLogPublisher, "_observers", ()))


class RefusalLog:
    """
    Logs why connections are closed or refused.  Peers can bring that about as often as they like, mostly before anybody
    knows who they are.  So the number of lines is limited, in all and for each address, and the log says how many
    others there were.
    """

    log = Logger()

    def __init__(self) -> None:
        # No more addresses than lines.
        self._lines: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._lineCount = 0
        self._hasLooked = False

    def refused(self, host: str, peer: str, reason: str) -> None:
        """
        A connection is closed.

        @param host: its address; empty if unknown.
        @param peer: its address and port, for the log.
        """
        if not self._hasLooked:
            # Not earlier: twistd begins its log after servers were set up.
            self._hasLooked = True
            if not _isLogRead():
                # Where warnings are errors, they must not hit the peer's connection.
                with suppress(Warning):
                    warnings.warn(UNTOLD, stacklevel=2)
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
