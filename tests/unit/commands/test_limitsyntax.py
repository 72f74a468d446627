"""Tests for L{admission.commands.limitsyntax}."""

from __future__ import annotations

import math
import shlex

from admission.commands.limitsyntax import asArguments, formatAmount, limitColumns, limitTitles, parseAmount
from admission.interfaces import DEFAULT, QuotaEntity
from tests.kit.commandcases import CommandTestCase


class LimitSyntaxTests(CommandTestCase):
    """Limits and their entities are written as they are read."""

    def test_amounts(self) -> None:
        """Rates have units; other limits are numbers; what is written reads back."""
        for name, text, amount in (
            ("producer_byte_rate", "4M", 4e6),
            ("consumer_byte_rate", "64KiB", 65536.0),
            ("consumer_byte_rate", "1G/1h", 1e9 / 3600),
            ("connection_creation_rate", "10", 10.0),
            ("request_percentage", "12.5", 12.5),
            ("producer_ids_rate", "100", 100.0),
            ("connection_creation_rate", "1/1d", 1 / 86400),
            ("connection_creation_rate", "4000T", 4e15),
            ("consumer_byte_rate", "1/1d", 1 / 86400),
        ):
            self.assertEqual(parseAmount(name, text), amount)
            written = formatAmount(name, amount)
            self.assertTrue(math.isclose(parseAmount(name, written), amount, rel_tol=1e-14), written)
        self.assertEqual(formatAmount("producer_byte_rate", 4e6), "4M")
        self.assertEqual(formatAmount("request_percentage", 200.0), "200")
        self.assertEqual(formatAmount("connection_creation_rate", 2048.0), "2048")
        unlimited = "9223372036854775807"
        self.assertEqual(formatAmount("producer_byte_rate", parseAmount("producer_byte_rate", unlimited)), unlimited)
        for name, text in (
            ("request_percentage", "nan"),
            ("request_percentage", "inf"),
            ("request_percentage", "-1"),
            ("producer_byte_rate", "0"),
            ("producer_ids_rate", "100/1h"),
        ):
            self.assertRaises(ValueError, parseAmount, name, text)

    def test_columns(self) -> None:
        """Where servers enforce limits together, what one of them enforces is beside what was set."""
        limits = {"producer_byte_rate": 1e6, "request_percentage": 50.0}
        self.assertEqual(limitTitles("Limits", 1.0), ("Limits",))
        self.assertEqual(limitColumns(limits, 1.0), ("producer_byte_rate=1M request_percentage=50",))
        for count in range(2, 50):
            enforced = {name: limit * (1 / count) for name, limit in limits.items()}
            whole, _ = limitColumns(enforced, 1 / count)
            self.assertEqual(whole, "producer_byte_rate=1M request_percentage=50")
            self.assertEqual(limitTitles("Limit", 1 / count)[1], f"Of which this gateway enforces 1/{count}")
        self.assertEqual(limitColumns({"producer_byte_rate": 5e5}, 0.5)[1], "producer_byte_rate=500k")

    def test_asArguments(self) -> None:
        """Names are quoted for a shell, so that they read back."""
        entity = QuotaEntity(user="it's me", clientId=DEFAULT)
        given = self.parse("quotas", "describe", *shlex.split(asArguments(entity))).subOptions
        self.assertEqual(given["entity"], entity)
