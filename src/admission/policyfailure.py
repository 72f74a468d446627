# -*- test-case-name: tests.unit.test_control -*-
"""
What code that is not ours may raise: that of policies, exporters and wrapped protocols.
"""

from __future__ import annotations

import sys
from signal import SIGINT, default_int_handler, getsignal
from typing import Final

FAILURES: Final = (Exception, SystemExit, KeyboardInterrupt)
"""
Exceptions that are the failure of the code that raises them: one who wants the process to end has no right to end the
connection of a client, or a timer, instead.
"""


def raiseInterrupt() -> None:
    """
    While one of L{FAILURES} is handled: raise it again if Python itself made it of Ctrl-C, as it does until a reactor
    runs, and in replays.  A running reactor has handlers of its own.
    """
    error = sys.exception()
    if isinstance(error, KeyboardInterrupt) and getsignal(SIGINT) is default_int_handler:
        raise error
