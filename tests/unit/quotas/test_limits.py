"""L{admission.quotas.limits}."""

from __future__ import annotations

from itertools import product
from math import inf, nan, nextafter

from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.quotas.limits import ADDRESS_KINDS, CLIENT_KINDS, EntityKind, LimitTable, kindOf

PRECEDENCE = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", DEFAULT),
    QuotaEntity("alice"),
    QuotaEntity(DEFAULT, "app"),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT),
    QuotaEntity(None, "app"),
    QuotaEntity(None, DEFAULT),
]
"""The entities whose limits may hold for alice's app: the first of them that has one."""

FOR_OTHERS = [
    QuotaEntity("bob", "app"),
    QuotaEntity("alice", "other"),
    QuotaEntity("bob", DEFAULT),
    QuotaEntity("bob"),
    QuotaEntity(DEFAULT, "other"),
    QuotaEntity(None, "other"),
]


class EntityTests(SynchronousTestCase):
    """L{kindOf}."""

    def test_kinds(self) -> None:
        """
        An entity is about a user, a client id, both, or an address; defaults
        are of the kind that they are the default of.
        """
        for name in ("x", DEFAULT):
            self.assertEqual(kindOf(QuotaEntity(user=name)), EntityKind.USER)
            self.assertEqual(kindOf(QuotaEntity(clientId=name)), EntityKind.CLIENT)
            self.assertEqual(kindOf(QuotaEntity(user=name, clientId="y")), EntityKind.USER_CLIENT)
            self.assertEqual(kindOf(QuotaEntity(user="y", clientId=name)), EntityKind.USER_CLIENT)
            self.assertEqual(kindOf(QuotaEntity(ip=name)), EntityKind.IP)

    def test_malformed(self) -> None:
        """Nobody at all, an address together with something else, and empty names are refused."""
        for entity in (
            QuotaEntity(),
            QuotaEntity(user="alice", ip="192.0.2.1"),
            QuotaEntity(clientId="app", ip="192.0.2.1"),
            QuotaEntity(user=""),
            QuotaEntity(user="alice", clientId=""),
            QuotaEntity(ip=""),
        ):
            self.assertRaises(ValueError, kindOf, entity)


class ResolveTests(SynchronousTestCase):
    """L{LimitTable.resolve} and L{LimitTable.resolveAddress}."""

    def test_precedence(self) -> None:
        """Whichever limits there are, the first in the order of precedence holds, and those of others never do."""
        for present in product((False, True), repeat=len(PRECEDENCE)):
            table = LimitTable(["rate"])
            for value, entity in enumerate(FOR_OTHERS, 100):
                table.configure(entity, {"rate": value})
            chosen = [entity for entity, isPresent in zip(PRECEDENCE, present, strict=True) if isPresent]
            for value, entity in enumerate(reversed(chosen), 1):
                table.configure(entity, {"rate": value})
            limit = table.resolve("alice", "app", "rate")
            if chosen:
                assert limit is not None
                self.assertEqual((limit.entity, limit.value), (chosen[0], len(chosen)))
            else:
                self.assertIs(limit, None)

    def test_emptyClientId(self) -> None:
        """A client without an id has the default's limit."""
        table = LimitTable(["rate"])
        table.configure(QuotaEntity(clientId="app"), {"rate": 1.0})
        self.assertIs(table.resolve("alice", "", "rate"), None)
        table.configure(QuotaEntity(clientId=DEFAULT), {"rate": 2.0})
        limit = table.resolve("alice", "", "rate")
        assert limit is not None
        self.assertEqual(limit.value, 2.0)

    def test_calledDefault(self) -> None:
        """
        A user or a client that calls itself by the word for the default has the
        limit that anybody has whom nothing else is said of.
        """
        for entity in PRECEDENCE:
            table = LimitTable(["rate"])
            table.configure(entity, {"rate": 1.0})
            self.assertEqual(table.resolve(DEFAULT, DEFAULT, "rate"), table.resolve("eve", "x", "rate"))

    def test_addresses(self) -> None:
        """An address has its own limit, or the default's."""
        table = LimitTable(["rate"], ADDRESS_KINDS)
        self.assertIs(table.resolveAddress("192.0.2.1", "rate"), None)
        table.configure(QuotaEntity(ip=DEFAULT), {"rate": 1.0})
        table.configure(QuotaEntity(ip="192.0.2.1"), {"rate": 2.0})
        limits = [table.resolveAddress(ip, "rate") for ip in ("192.0.2.1", "192.0.2.2")]
        self.assertEqual([limit and limit.value for limit in limits], [2.0, 1.0])

    def test_limitsApart(self) -> None:
        """Each limit is resolved for itself: a more specific entity without it does not stand in the way."""
        table = LimitTable(["read", "write"])
        table.configure(QuotaEntity("alice", "app"), {"read": 1.0})
        table.configure(QuotaEntity(clientId=DEFAULT), {"write": 2.0})
        limits = [table.resolve("alice", "app", name) for name in ("read", "write")]
        self.assertEqual([limit and limit.value for limit in limits], [1.0, 2.0])
        self.assertRaises(KeyError, table.resolve, "alice", "app", "sing")

    def test_unlimited(self) -> None:
        """Kafka's value for no limit is none, and exempts from a default; the largest value below it is a limit."""
        table = LimitTable(("rate",))
        table.configure(QuotaEntity(user="alice"), {"rate": float(2**63 - 1)})
        self.assertFalse(table.isLimiting)
        table.configure(QuotaEntity(user=DEFAULT), {"rate": 5.0})
        self.assertIs(table.resolve("alice", "", "rate"), None)
        table.configure(QuotaEntity(user="alice"), {"rate": nextafter(2.0**63, 0.0)})
        self.assertIsNot(table.resolve("alice", "", "rate"), None)

    def test_isNamed(self) -> None:
        """A limit is somebody's own if no part of it is a default."""
        table = LimitTable(["rate"], [*CLIENT_KINDS, *ADDRESS_KINDS])
        named = set()
        for entity in (*PRECEDENCE, QuotaEntity(ip=DEFAULT), QuotaEntity(ip="192.0.2.1")):
            table.configure(entity, {"rate": 1.0})
            limit = table.find(entity, "rate")
            assert limit is not None
            self.assertEqual(limit.entity, entity)
            if limit.isNamed:
                named.add(entity)
        self.assertEqual(len(table.limits), len(PRECEDENCE) + 2)
        self.assertEqual(named, {PRECEDENCE[0], PRECEDENCE[2], PRECEDENCE[6], QuotaEntity(ip="192.0.2.1")})


class ConfigureTests(SynchronousTestCase):
    """L{LimitTable.configure}."""

    def setUp(self) -> None:
        self.table = LimitTable(["read", "write"])
        self.table.configure(QuotaEntity("alice"), {"read": 5.0})

    def test_setAndRemove(self) -> None:
        """Limits are changed one by one, and an entity that has none left is gone."""
        alice = QuotaEntity("alice")
        limits = self.table.limits
        self.table.configure(alice, {"read": 6.0, "write": 7.0})
        self.assertEqual(limits, {alice: {"read": 6.0, "write": 7.0}})
        self.table.configure(alice, {"read": None})
        self.assertEqual(limits, {alice: {"write": 7.0}})
        self.assertIs(self.table.resolve("alice", "", "read"), None)
        self.table.configure(alice, {"write": None, "read": None})
        self.assertEqual((limits, self.table.find(alice, "write")), ({}, None))
        self.table.configure(alice, {"write": None})
        self.assertEqual(limits, {})

    def test_refusals(self) -> None:
        """What makes no sense is refused in words that help, and nothing of it is done."""
        for entity, limits, words in [
            (QuotaEntity("alice"), {"write": 1.0, "sing": 1.0}, "known: read, write"),
            (QuotaEntity("alice"), {"write": 1.0, "read": 0.0}, "finite and more than zero, not 0.0"),
            (QuotaEntity("alice"), {"read": "5M"}, "read must be a number, finite and more than zero, not '5M'"),
            (QuotaEntity("alice"), {"read": -1.0}, "more than zero"),
            (QuotaEntity("alice"), {"read": nan}, "finite"),
            (QuotaEntity("alice"), {"read": inf}, "finite"),
            (QuotaEntity(ip="192.0.2.1"), {"read": 1.0}, "a client id of one user, not for an address"),
            (QuotaEntity(), {"read": 1.0}, "for somebody"),
        ]:
            error = self.assertRaises(ValueError, self.table.configure, entity, limits)
            self.assertIn(words, str(error))
            self.assertEqual(self.table.limits, {QuotaEntity("alice"): {"read": 5.0}})
            self.assertIs(self.table.find(QuotaEntity("alice"), "write"), None)
