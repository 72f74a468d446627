"""
What a process has that is told what to do by lines of standard input, and tells what happens by lines of JSON.

L{tests.kit.lineprocess} is its other end.
"""

from __future__ import annotations

import json
import select
import sys
import threading
import time

_lock = threading.Lock()


def say(word: str, *values: object) -> None:
    """Write a line: a time on the clock that all processes share, a word, and what belongs to it."""
    with _lock:
        print(json.dumps([time.monotonic(), word, values]), flush=True)


def hasLine(seconds: float | None = 0.0) -> bool:
    """Whether the next line of standard input, or its end, is there or comes in time; L{None} is any time."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def nextLine(seconds: float | None = None) -> str | None:
    """The next line without its end, if it comes in time; it is empty when there are no more."""
    return sys.stdin.readline().strip() if hasLine(seconds) else None


def hasEnded(seconds: float = 0.0) -> bool:
    """Whether standard input has ended, which may take C{seconds}."""
    return nextLine(seconds) == ""
