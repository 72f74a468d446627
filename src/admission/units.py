# -*- test-case-name: tests.unit.test_units -*-
"""
Sizes, times and rates as people write them: C{"64MiB"}, C{"1ms"}, C{"4M"}.

C{k}, C{M}, C{G} and C{T} are powers of ten, C{KiB} to C{TiB} powers of two.
All arithmetic is exact until the result is known, so C{"0.1k"} is 100 bytes
and C{"1ms"} is the float that Python calls C{0.001}.

C{format...} writes the exact form, which options and properties take.
C{rounded...} writes three or four digits, for people who read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

# The longest digits that a float between a nanosecond and an age of the universe needs are well below forty.
_QUANTITY = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*", re.ASCII)

_BYTES = {
    "TiB": Fraction(2**40),
    "T": Fraction(10**12),
    "TB": Fraction(10**12),
    "GiB": Fraction(2**30),
    "G": Fraction(10**9),
    "GB": Fraction(10**9),
    "MiB": Fraction(2**20),
    "M": Fraction(10**6),
    "MB": Fraction(10**6),
    "KiB": Fraction(2**10),
    "k": Fraction(10**3),
    "kB": Fraction(10**3),
    "B": Fraction(1),
    "": Fraction(1),
}

_SECONDS = {
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
}

_LARGER_SECONDS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_LARGER_AMOUNTS = ((999.95e9, 1e12, "T"), (999.95e6, 1e9, "G"), (999.95e3, 1e6, "M"), (9999.5, 1e3, "k"))
"""The amounts from which on units are used, so that none is rounded to a thousand of the smaller unit."""

_BYTES_FORM = "write bytes, with a unit if you like: 65536, 64KiB (times 1024) or 64k (times 1000)"
_SECONDS_FORM = "write a number and a unit: 500ms, 30s, 5m, 1h or 7d"
_RATE_FORM = "write an amount per second, or per the time after a slash: 4M, 64KiB, 100/1h"


def parseBytes(text: str) -> int:
    """
    Read a size.

    @param text: digits, with a fraction if the result is a whole number of
        bytes, and one of C{B}, C{k}, C{kB}, C{M}, C{MB}, C{G}, C{GB}, C{T},
        C{TB}, C{KiB}, C{MiB}, C{GiB}, C{TiB} or no unit.
    @return: bytes; zero or more.
    @raise ValueError: for anything else, with the right form.
    """
    sizeBytes = _quantity(text, _BYTES)
    if sizeBytes is None:
        raise ValueError(f"{text!r} is not a size: {_BYTES_FORM}")
    if sizeBytes.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes: {_BYTES_FORM}")
    return int(sizeBytes)


def parseSeconds(text: str, defaultUnit: str = "s") -> float:
    """
    Read a duration.

    @param text: a number and one of C{us}, C{ms}, C{s}, C{m} (minutes),
        C{h}, C{d}.
    @param defaultUnit: what a bare number counts; C{"ms"} for Kafka's
        properties that end in C{.ms}.
    @return: seconds; zero or more.
    @raise ValueError: for anything else, with the right form.
    """
    seconds = _quantity(text, _SECONDS, defaultUnit)
    if seconds is None:
        raise ValueError(f"{text!r} is not a duration: {_SECONDS_FORM}")
    return float(seconds)


def parseRate(text: str) -> float:
    """
    Read a rate: an amount as L{parseBytes} takes it, per second or per the
    duration after a slash.

    @param text: C{"4M"} or C{"4M/s"} for 4,000,000 in a second, C{"100/1h"}
        for 100 in an hour.
    @return: the amount per second; zero or more.
    @raise ValueError: for anything else, with the right form.
    """
    amountText, slash, perText = text.partition("/")
    amount = _quantity(amountText, _BYTES)
    per: Fraction | None = Fraction(1)
    if slash:
        per = _SECONDS.get(perText.strip()) or _quantity(perText, _SECONDS, "s")
    if amount is None or not per:
        raise ValueError(f"{text!r} is not a rate: {_RATE_FORM}")
    return float(amount / per)


def formatBytes(sizeBytes: int) -> str:
    """
    Write a size in its shortest exact form, which L{parseBytes} reads back.

    @param sizeBytes: any number of bytes; a negative one gets a sign, which
        L{parseBytes} refuses.
    """
    return _format(str(sizeBytes), Fraction(sizeBytes), _BYTES)


def formatSeconds(seconds: float) -> str:
    """
    Write a duration in its shortest exact form, which L{parseSeconds} reads
    back as the same float.

    @param seconds: finite, and no finer than 1e-20; a negative duration gets a sign, which
        L{parseSeconds} refuses.
    """
    decimal = Decimal(repr(seconds))
    return _format(f"{decimal:f}s", Fraction(decimal), _SECONDS)


def formatShare(share: float) -> str:
    """
    Write a part of a whole as a fraction: C{"1/3"}.

    @param share: more than zero, and one at most.
    """
    return str(Fraction(share).limit_denominator(1_000_000))


def roundedBytes(sizeBytes: float) -> str:
    """
    Write a size to three digits, in units of powers of two: C{"9.54 MiB"}.
    """
    if sizeBytes < 0:
        return f"-{roundedBytes(-sizeBytes)}"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if sizeBytes < 1023.5:
            return f"{sizeBytes:.0f} {unit}" if sizeBytes >= 99.95 else f"{sizeBytes:.3g} {unit}"
        sizeBytes /= 1024
    return f"{sizeBytes:,.1f} TiB"


def roundedSeconds(seconds: float) -> str:
    """
    Write a duration to about three digits: C{"2.5 ms"}, C{"9.31 s"}, C{"2 min 5 s"}, C{"3 d 4 h"}.
    """
    if seconds < 0:
        return f"-{roundedSeconds(-seconds)}"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 99.95:
        return f"{seconds:.3g} s"
    for largeSeconds, large, smallSeconds, small in _LARGER_SECONDS:
        whole, rest = divmod(round(seconds / smallSeconds), largeSeconds // smallSeconds)
        if whole >= 2:
            return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"
    return f"{seconds:.0f} s"


def roundedAmount(amount: float) -> str:
    """
    Write an amount of anything to four digits, in units of powers of ten: C{"1.235M"}.
    """
    for minAmount, factor, unit in _LARGER_AMOUNTS:
        if abs(amount) >= minAmount:
            return f"{amount / factor:.4g}{unit}"
    return f"{amount:.4g}"


def _quantity(text: str, units: Mapping[str, Fraction], defaultUnit: str = "") -> Fraction | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    factor = units.get(unit or defaultUnit)
    return None if factor is None else Fraction(number) * factor


def _format(plain: str, exact: Fraction, units: Mapping[str, Fraction]) -> str:
    if exact == 0:
        return "0" if "" in units else "0s"
    whole = [f"{exact / factor}{unit}" for unit, factor in units.items() if exact % factor == 0]
    return min([*whole, plain], key=len)
