# -*- test-case-name: tests.system.test_doctor -*-
"""
What the doctor finds.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class Level(Enum):
    """
    How bad it is.
    """

    OK = "ok"
    WARN = "warn"
    """It works, and not as well as it could."""
    FAIL = "fail"
    """It will not work."""
    ABSENT = "absent"
    """An extra that is not installed; nothing needs it until somebody uses it."""


@frozen
class Finding:
    """
    The outcome of one check.

    @ivar name: what was checked.
    @ivar what: what is there, in words.
    @ivar remedy: what to do about it; empty if nothing needs to be done.
    """

    name: str
    level: Level
    what: str
    remedy: str = ""
