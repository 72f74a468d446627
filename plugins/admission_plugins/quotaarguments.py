# -*- test-case-name: tests.contracts.test_clientquota -*-
"""
What the descriptions of quota policies have in common.
"""

from __future__ import annotations

from admission.quotas.metering import MAX_METERS
from admission.units import parseSeconds


def parseYes(name: str, text: str) -> bool:
    """
    Read C{yes} or C{no}.

    @raise ValueError: for anything else.
    """
    if text not in ("yes", "no"):
        raise ValueError(f"{name}={text}: say yes or no")
    return text == "yes"


def parseCount(name: str, text: str) -> int:
    """
    Read a whole number from 1.

    @raise ValueError: for anything else.
    """
    if not (text.isdecimal() and int(text)):
        raise ValueError(f"{name}={text}: write a whole number, 1 or more")
    return int(text)


def parseDuration(name: str, text: str) -> float:
    """
    Read a time that is not zero.

    @return: seconds.
    @raise ValueError: for anything else.
    """
    seconds = parseSeconds(text)
    if not seconds:
        raise ValueError(f"{name}={text}: write a time of more than nothing")
    return seconds


def parseMeters(text: str | None) -> int:
    """
    Read how many clients are told apart.

    @param text: L{None} for the default.
    @raise ValueError: for what is no whole number from 1.
    """
    return MAX_METERS if text is None else parseCount("meters", text)
