# -*- test-case-name: tests.unit.kafka.test_property -*-
"""
What one setting of the broker is called, and how its value is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from ..units import formatBytes, formatSeconds, parseBytes, parseRate


@frozen
class Property:
    """
    What a setting is called and how it is written.

    @ivar name: Kafka's name.
    @ivar parse: makes the value of a text, raising L{ValueError} in words.
    @ivar default: the default as one would write it, or in words if it is computed.
    @ivar unit: C{"bytes"}, C{"bytes/s"}, C{"seconds"} or nothing.
    @ivar help: what it does, in a sentence.
    @ivar coarser: other names of the same setting and the units of their
        bare numbers; C{name} goes before the first of them, and so on.
    @ivar minimum: the least value, in C{unit}.
    @ivar maximum: the greatest value, in C{unit}.
    """

    name: str
    parse: Callable[[str], Any]
    default: str
    unit: str
    help: str
    coarser: Mapping[str, str] = {}
    minimum: float | None = None
    maximum: float | None = None

    @property
    def bareUnits(self) -> tuple[str, ...]:
        """
        What a number without a unit counts, by C{name} and by the coarser ones.
        """
        if self.unit == "seconds":
            return ("ms" if self.name.endswith(".ms") else "s", *self.coarser.values())
        return (self.unit,)

    def valueOf(self, text: str, name: str) -> Any:
        """
        Parse C{text}, which was given under C{name}.

        @raise ValueError: in words.
        """
        if name in self.coarser and text.replace(".", "", 1).isdecimal():
            text += self.coarser[name]
        value = self.parse(text)
        if value is not None and self.minimum is not None and value < self.minimum:
            raise ValueError(f"{text!r} is too small: at least {self._inUnit(self.minimum)}")
        if value is not None and self.maximum is not None and value > self.maximum:
            raise ValueError(f"{text!r} is too large: at most {self._inUnit(self.maximum)}")
        return value

    def textOf(self, value: Any) -> str:
        """
        Write a value as Kafka would: bytes and milliseconds as whole numbers.
        """
        if value is None:
            return "-1"
        if isinstance(value, bool):
            return str(value).lower()
        if self.unit == "seconds":
            if self.name.endswith(".seconds"):
                return f"{value:g}"
            return str(round(value * 1000)) if self.name.endswith(".ms") else formatSeconds(value)
        if isinstance(value, Mapping):
            return ",".join(f"{client}:{quota:.0f}" for client, quota in value.items())
        return f"{value:.0f}" if isinstance(value, float) else str(value)

    def _inUnit(self, value: Any) -> str:
        return formatSeconds(value) if self.unit == "seconds" else formatBytes(value) if self.unit else str(value)


def parseInteger(text: str) -> int:
    """
    Read a whole number.

    @raise ValueError: in words.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def parseBoolean(text: str) -> bool:
    """
    Read C{true} or C{false}.

    @raise ValueError: in words.
    """
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def parseUnlimited(parse: Callable[[str], Any], text: str) -> Any:
    """
    Read what C{parse} reads, or C{-1} as L{None}.
    """
    return None if text == "-1" else parse(text)


def parseSizeOrOff(text: str) -> int:
    """
    Read a size, or any negative number as 0.

    @raise ValueError: in words.
    """
    return 0 if text.startswith("-") and parseInteger(text) < 0 else parseBytes(text)


def parseQuota(text: str) -> float:
    """
    Read a number of bytes a second; not zero.

    @raise ValueError: in words.
    """
    bytesPerSecond = parseRate(text)
    if bytesPerSecond <= 0:
        raise ValueError(f"{text!r} would let nothing pass: write a positive rate, or -1 for no limit")
    return bytesPerSecond


def parseOverrides(text: str) -> Mapping[str, float]:
    """
    Read quotas of single clients: C{"clientA:4M,clientB:10M"}.  A client id may
    contain colons, but no commas.

    @return: bytes a second by client id.
    @raise ValueError: in words.
    """
    overrides: dict[str, float] = {}
    for each in filter(None, map(str.strip, text.split(","))):
        clientId, colon, quota = each.rpartition(":")
        if not colon or not clientId:
            raise ValueError(f"{each!r} is not of the form CLIENT:RATE, as in clientA:4M,clientB:10M")
        if clientId in overrides:
            raise ValueError(f"{clientId!r} is given twice")
        overrides[clientId] = parseQuota(quota)
    return overrides
