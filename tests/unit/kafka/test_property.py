"""
Tests for L{admission.kafka.property}.
"""

from __future__ import annotations

from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.property import (
    Property,
    parseBoolean,
    parseInteger,
    parseOverrides,
    parseQuota,
    parseSizeOrOff,
    parseUnlimited,
)
from admission.units import parseBytes, parseSeconds

RETENTION = Property(
    "retention.ms",
    partial(parseUnlimited, partial(parseSeconds, defaultUnit="ms")),
    "7d",
    "seconds",
    "How long.",
    coarser={"retention.hours": "h"},
    minimum=0.001,
)
SIZE = Property("size.bytes", parseBytes, "1k", "bytes", "How much.", minimum=1, maximum=1 << 20)


class PropertyTests(SynchronousTestCase):
    """
    L{Property} reads and writes values.
    """

    def test_bareNumbers(self) -> None:
        """
        What a bare number counts depends on the name it is given under; a
        number with a unit means the same under every name.
        """
        self.assertEqual(RETENTION.valueOf("5", "retention.ms"), 0.005)
        self.assertEqual(RETENTION.valueOf("1.5", "retention.hours"), 5400.0)
        self.assertEqual(RETENTION.valueOf("2d", "retention.hours"), 172800.0)

    def test_unlimitedUnderEveryName(self) -> None:
        """
        C{-1} means no limit, whatever the unit.
        """
        self.assertIs(RETENTION.valueOf("-1", "retention.ms"), None)
        self.assertIs(RETENTION.valueOf("-1", "retention.hours"), None)

    def test_range(self) -> None:
        """
        A value outside the range is refused, and the bound is shown in the unit.
        """
        self.assertEqual(SIZE.valueOf("1MiB", "size.bytes"), 1 << 20)
        for listed, text, bound in [
            (SIZE, "0", "at least 1"),
            (SIZE, "2MiB", "at most 1MiB"),
            (RETENTION, "0", "at least 1ms"),
        ]:
            message = str(self.assertRaises(ValueError, listed.valueOf, text, listed.name))
            self.assertIn(repr(text), message)
            self.assertTrue(message.endswith(bound), message)

    def test_textOf(self) -> None:
        """
        Values are written in the unit of the name, as Kafka would.
        """
        timeout = Property("some.timeout", parseSeconds, "1s", "seconds", "How long.")
        switch = Property("on", parseBoolean, "true", "", "Whether.")
        self.assertEqual(RETENTION.textOf(0.25), "250")
        self.assertEqual(RETENTION.textOf(None), "-1")
        self.assertEqual(SIZE.textOf(4096), "4096")
        self.assertEqual(timeout.textOf(30.0), "30s")
        self.assertEqual(switch.textOf(True), "true")
        window = Property("window.size.seconds", parseSeconds, "1s", "seconds", "How long.")
        quotas = Property("quota.override", parseOverrides, "", "", "How much.")
        self.assertEqual(window.textOf(1.0), "1")
        self.assertEqual(window.textOf(0.5), "0.5")
        self.assertEqual(quotas.textOf({"a": 4e6, "b": 1e7}), "a:4000000,b:10000000")


class ParserTests(SynchronousTestCase):
    """
    The parsers that settings alone need.
    """

    def test_values(self) -> None:
        """
        Each reads its own.
        """
        self.assertEqual(parseInteger("-3"), -3)
        self.assertIs(parseBoolean("True"), True)
        self.assertIs(parseBoolean("false"), False)
        self.assertEqual(parseSizeOrOff("4k"), 4000)
        self.assertEqual(parseSizeOrOff("-7"), 0)
        self.assertIs(parseUnlimited(parseBytes, "-1"), None)
        self.assertEqual(parseUnlimited(parseBytes, "1k"), 1000)
        self.assertEqual(parseQuota("2M"), 2e6)
        self.assertEqual(parseOverrides("clientA:4M, b:c:10M,"), {"clientA": 4e6, "b:c": 1e7})
        self.assertEqual(parseOverrides(""), {})

    def test_overrideTwice(self) -> None:
        """
        A client has one quota.
        """
        self.assertIn("'a' is given twice", str(self.assertRaises(ValueError, parseOverrides, "a:1k,a:2k")))

    def test_refused(self) -> None:
        """
        What they cannot read they quote.
        """
        for parse, text in [
            (parseInteger, "1.5"),
            (parseBoolean, "yes"),
            (parseSizeOrOff, "-4k"),
            (parseSizeOrOff, "x"),
            (parseQuota, "0"),
            (parseOverrides, "clientA"),
            (parseOverrides, ":4M"),
        ]:
            self.assertIn(repr(text), str(self.assertRaises(ValueError, parse, text)))
