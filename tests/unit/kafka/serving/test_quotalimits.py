"""Tests for L{admission.kafka.serving.quotalimits}."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from attrs import define, field
from hypothesis import HealthCheck, given, settings, strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.clock import wholeMicroseconds
from admission.control import AdmissionControl
from admission.interfaces import (
    ADMITTED,
    DEFAULT,
    Decision,
    IAliasedLimits,
    IPersistent,
    IQuotaPolicyFactory,
    PolicyContext,
    QuotaEntity,
    Request,
    Usage,
)
from admission.kafka.serving.quotalimits import READERS, Alteration, LimitRefused, QuotaLimits, describeEntity
from admission.kafka.storage.itable import LONGEST_KEY_BYTES, LogFailed, LogRefusal
from admission.plugins import buildPolicy
from admission.quotas.limits import ADDRESS_KINDS, CLIENT_KINDS, EntityKind, LimitTable
from admission.quotas.metering import Windows
from admission.quotas.policy import QuotaPolicy
from admission_plugins.clientquotas import ClientBytes, ConnectionRate
from tests.kit.logfixture import LogTestCase, storageError

RATE = "producer_byte_rate"
PERCENTAGE = "request_percentage"
CONNECTIONS = "connection_creation_rate"

ALICE = QuotaEntity(user="alice")
ANYBODY = QuotaEntity(user=DEFAULT)
CLIENT = QuotaEntity(clientId="loader")
BOTH = QuotaEntity(user="alice", clientId="loader")
ADDRESS = QuotaEntity(ip="192.0.2.1")

Verdicts = list[LogRefusal | None]


@define(eq=False, slots=False)
class TablePolicy(QuotaPolicy):
    """
    A policy that only knows limits.

    @ivar refusedValue: what it refuses for a reason of its own.
    @ivar configured: all that it was told and did not refuse.
    @ivar moments: when it was told limits.
    """

    table: LimitTable
    refusedValue: float | None = None
    configured: list[tuple[QuotaEntity, dict[str, float | None]]] = field(factory=list)
    moments: list[float] = field(factory=list)

    @property
    def limitNames(self) -> Sequence[str]:
        return self.table.limitNames

    @property
    def limits(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self.table.limits

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        if self.refusedValue in limits.values() and self.refusedValue is not None:
            raise ValueError("a reason of its own")
        self.table.configure(entity, limits)
        self.configured.append((entity, dict(limits)))
        self.moments.append(now)

    def decide(self, request: Request, now: float) -> Decision:
        return ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return 0.0


class LimitsTestCase(LogTestCase):
    """
    A test with limits, stored in a log, of two policies.

    @ivar static: the limits that the policies are built with.
    """

    static: Mapping[QuotaEntity, Mapping[str, float]] = {
        CLIENT: {RATE: 100.0},
        ANYBODY: {RATE: 200.0, PERCENTAGE: 50.0},
    }

    def setUp(self) -> None:
        """Nothing is stored."""
        super().setUp()
        self.start()

    def start(self, *policies: Any, shown: Sequence[str] = (), **others: Any) -> None:
        """Build policies and their limits, as a broker does when it starts."""
        self.policies = policies or (
            TablePolicy(LimitTable((RATE, PERCENTAGE), CLIENT_KINDS)),
            TablePolicy(LimitTable((CONNECTIONS,), ADDRESS_KINDS)),
        )
        named = [(str(number), policy) for number, policy in enumerate(self.policies)]
        self.control = AdmissionControl(named, 60.0, shownAliases=shown)
        for entity, limits in self.static.items() if not shown else ():
            self.control.configure(entity, limits, self.clock.seconds())
        self.quotaLimits = QuotaLimits(self.log, self.control, self.control.limits, self.clock.seconds, **others)

    def restart(self, *policies: Any, **others: Any) -> None:
        """Start again on what is stored."""
        self.reopenLog()
        self.start(*policies, **others)

    def ask(
        self, *alterations: tuple[QuotaEntity, Mapping[str, float | None]], validateOnly: bool = False
    ) -> Deferred[Verdicts]:
        """Have limits altered in this turn."""
        return self.quotaLimits.alter([Alteration(*each) for each in alterations], validateOnly, "admin")

    def alter(self, *alterations: tuple[QuotaEntity, Mapping[str, float | None]]) -> Verdicts:
        """Alter limits and let the turn pass."""
        altered = self.ask(*alterations)
        self.clock.turn()
        verdicts: Verdicts = self.successResultOf(altered)
        return verdicts

    def set(self, entity: QuotaEntity, **limits: float | None) -> None:
        """Alter limits of one entity that nobody refuses."""
        self.assertEqual(self.alter((entity, limits)), [None])

    def assertRefused(self, entity: QuotaEntity, changes: Mapping[str, float | None], *words: str) -> None:
        """
        An alteration is refused in certain words, whether it is meant or only
        to be validated, and changes nothing.
        """
        before, stored = self.control.limits, list(self.log.table("quotas").items())
        meant = self.alter((entity, changes))
        validated = self.successResultOf(self.ask((entity, changes), validateOnly=True))
        for (refusal,) in (meant, validated):
            self.assertIsInstance(refusal, LimitRefused)
            self.assertEqual(refusal.errorCode, 42)
            for word in words:
                self.assertIn(word, str(refusal))
        self.assertEqual((self.control.limits, list(self.log.table("quotas").items())), (before, stored))

    def described(self, wanted: Mapping[str, str | None] | None = None, strict: bool = False) -> Any:
        """What is described, as a dictionary."""
        return dict(self.quotaLimits.describe(wanted or {}, strict))


class ReadersTests(SynchronousTestCase):
    """L{READERS}."""

    def test_policies(self) -> None:
        """Each limit is read by the policy that is named, which reads no other."""
        context = PolicyContext(Clock(), lambda: 0.0)
        for policy in {*READERS.values()}:
            read = {name for name, reader in READERS.items() if reader == policy}
            built = buildPolicy(IQuotaPolicyFactory, policy, context)
            aliases = built.limitAliases if IAliasedLimits.providedBy(built) else {}
            self.assertEqual({*built.limitNames, *aliases}, read)


class MissingPolicyTests(LimitsTestCase):
    """A limit that nobody reads."""

    def test_told(self) -> None:
        """The policies that would read it are told."""
        ours = dict.fromkeys(("producer_byte_rate", "sent_byte_rate", "producer_ids_rate"), 1.0)
        self.start(ConnectionRate(1.0), shown=("none",))
        self.assertRefused(ALICE, ours, "; start with --quota client-bytes --quota producer-ids")


class AlterTests(LimitsTestCase):
    """L{QuotaLimits.alter} stores limits and puts them in force."""

    def test_onlyWhatChanges(self) -> None:
        """Policies hear of what changes and of nothing else."""
        self.set(ALICE, **{RATE: 1000.0, PERCENTAGE: 5.0})
        policy = self.policies[0]
        policy.configured.clear()
        self.set(ALICE, **{RATE: 2000.0, PERCENTAGE: 5.0})
        self.assertEqual([limits for _, limits in policy.configured if limits], [{RATE: 2000.0}])

    def test_ofOnePolicy(self) -> None:
        """
        A limit that one policy was built with is in force in the others, too, once it is set: so a shadow policy's
        is tried first.
        """
        tried, other = (TablePolicy(LimitTable((RATE,), CLIENT_KINDS)) for _ in range(2))
        tried.configure(CLIENT, {RATE: 100.0}, 0.0)
        control = AdmissionControl([("tried", tried), ("other", other)], 60.0)
        self.quotaLimits = QuotaLimits(self.log, control, control.limits, self.clock.seconds)
        self.assertEqual(other.limits, {})
        self.set(CLIENT, **{RATE: 100.0})
        self.assertEqual(other.limits, {CLIENT: {RATE: 100.0}})

    def test_otherNames(self) -> None:
        """A limit by another name is stored, and described, by the one that the server shows; not twice at once."""
        self.start(policy := ClientBytes(Windows(11, 1.0)), shown=("producer_byte_rate",))
        self.set(ALICE, received_byte_rate=1000.0)
        self.assertEqual(policy.limits[ALICE], {"received_byte_rate": 1000.0})
        self.assertEqual(self.described()[ALICE], {"producer_byte_rate": 1000.0})
        self.assertRefused(ALICE, {"received_byte_rate": 1.0, "producer_byte_rate": 2.0}, "the same limit")
        self.restart(policy := ClientBytes(Windows(11, 1.0)), shown=("producer_byte_rate",))
        self.assertEqual(policy.limits[ALICE], {"received_byte_rate": 1000.0})
        self.set(ALICE, producer_byte_rate=None)
        self.assertEqual(policy.limits.get(ALICE), None)

    def test_kinds(self) -> None:
        """There are limits for users, client ids, both, addresses, and for all that have none of their own."""
        for entity, name in (
            (ALICE, RATE),
            (CLIENT, RATE),
            (BOTH, RATE),
            (QuotaEntity(user=DEFAULT, clientId=DEFAULT), RATE),
            (QuotaEntity(user="alice", clientId=DEFAULT), PERCENTAGE),
            (ADDRESS, CONNECTIONS),
            (QuotaEntity(ip=DEFAULT), CONNECTIONS),
        ):
            self.set(entity, **{name: 7.0})
            self.assertEqual(self.control.limits[entity][name], 7.0)

    def test_addresses(self) -> None:
        """An address is taken in any form and meant as clients' addresses are written."""
        for given_, meant in (("2001:DB8:0::1", "2001:db8::1"), ("::FFFF:192.0.2.1", "192.0.2.1")):
            self.set(QuotaEntity(ip=given_), **{CONNECTIONS: 7.0})
            self.assertEqual(self.control.limits[QuotaEntity(ip=meant)], {CONNECTIONS: 7.0})

    def test_refusedEntities(self) -> None:
        """
        Limits of nobody, of an empty name, of something that is no address, of
        an address and somebody, and of very long names are refused.
        """
        for entity, word in (
            (QuotaEntity(), "somebody"),
            (QuotaEntity(user=""), "name"),
            (QuotaEntity(user="alice", clientId=""), "name"),
            (QuotaEntity(ip="localhost"), "localhost"),
            (QuotaEntity(ip="192.0.2.1", user="alice"), "both"),
            (QuotaEntity(user="a" * LONGEST_KEY_BYTES), "too long"),
        ):
            self.assertRefused(entity, {RATE: 7.0}, word)

    def test_refusedLimits(self) -> None:
        """
        A limit is known, positive and no larger than Kafka's largest, and whole if
        it counts bytes or connections.
        """
        for entity, changes, word in (
            (ALICE, {"bytes": 7.0}, "producer_byte_rate"),
            (ALICE, {"bytes": None}, "producer_byte_rate"),
            (ALICE, {RATE: 0.0}, "positive"),
            (ALICE, {RATE: -1.0}, "positive"),
            (ALICE, {RATE: math.inf}, "positive"),
            (ALICE, {PERCENTAGE: math.nan}, "positive"),
            (ALICE, {RATE: 1e19}, "9223372036854775807"),
            (ALICE, {PERCENTAGE: 1e308}, "9223372036854775807"),
            (ALICE, {RATE: 7.5}, "whole"),
            (ALICE, {RATE: 7.00001}, "whole"),
            (ALICE, {RATE: 1e-7}, "whole"),
            (ADDRESS, {CONNECTIONS: 0.5}, "whole"),
        ):
            self.assertRefused(entity, changes, word)

    def test_unlimited(self) -> None:
        """
        Kafka's largest limit, which comes as the nearest double, means no limit, also for a client that a default
        would limit; it is shown as it was set, after a restart, too.
        """
        self.set(ALICE, **{RATE: 9.223372036854775807e18, PERCENTAGE: 9.223372036854775807e18})
        for _ in range(2):
            table = self.policies[0].table
            for name in (RATE, PERCENTAGE):
                self.assertIs(table.resolve("alice", "client", name), None)
                self.assertIsNot(table.resolve("bob", "client", name), None)
            self.assertEqual(self.described({"user": "alice"})[ALICE], {RATE: 2.0**63, PERCENTAGE: 2.0**63})
            self.restart()

    def test_fractions(self) -> None:
        """What is whole but for a rounding error is made whole; a limit that need not be whole stays as it is."""
        self.set(ALICE, **{RATE: 6.9999999, PERCENTAGE: 0.5})
        self.assertEqual(self.control.limits[ALICE], {RATE: 7.0, PERCENTAGE: 0.5})

    def test_policyRefuses(self) -> None:
        """
        A limit that the policies cannot have for an entity is refused before it
        is stored, also if it is only to be validated.
        """
        self.assertRefused(ADDRESS, {RATE: 7.0}, "not for an address")
        self.assertRefused(ALICE, {CONNECTIONS: 7.0}, "not for a user")

    def test_policyRefusesValue(self) -> None:
        """
        A limit that a policy refuses for a reason of its own, when it is to be
        in force, is taken back from the storage.
        """
        self.set(ALICE, **{RATE: 6.0})
        stored = list(self.log.table("quotas").items())
        self.policies[0].refusedValue = 7.0
        (refusal,) = self.alter((ALICE, {RATE: 7.0, PERCENTAGE: 5.0}))
        self.assertIsInstance(refusal, LimitRefused)
        self.assertIn("a reason of its own", str(refusal))
        self.clock.turn()
        self.assertEqual((self.control.limits[ALICE], list(self.log.table("quotas").items())), ({RATE: 6.0}, stored))

    def test_policyFails(self) -> None:
        """A policy that raises what it should not is logged, and the alteration fails like a refused one."""

        def configure(entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
            if any(limits.values()):
                raise error

        self.patch(self.policies[0], "configure", configure)
        for error in (ZeroDivisionError, SystemExit):
            (refusal,) = self.alter((ALICE, {RATE: 7.0}))
            self.assertIsInstance(refusal, LimitRefused)
            self.assertEqual(len(self.flushLoggedErrors(error)), 1)
            self.clock.turn()
            self.assertEqual(list(self.log.table("quotas").items()), [])

    def test_eachForItself(self) -> None:
        """Of one entity all is changed or nothing; others are changed all the same."""
        refused, accepted, other = self.alter(
            (ALICE, {RATE: 7.0, PERCENTAGE: -1.0}), (BOTH, {RATE: 8.0}), (CLIENT, {RATE: 9.0})
        )
        self.assertIsInstance(refused, LimitRefused)
        self.assertEqual((accepted, other), (None, None))
        self.assertNotIn(ALICE, self.control.limits)
        self.assertEqual((self.control.limits[BOTH], self.control.limits[CLIENT]), ({RATE: 8.0}, {RATE: 9.0}))

    def test_restoredOnce(self) -> None:
        """Policies hear of what was there before them once for all the alterations of a request."""
        told: list[set[str]] = []
        self.patch(self.control, "restore", lambda limitNames, established, now: told.append(set(limitNames)))
        self.alter((ALICE, {RATE: 7.0}), (BOTH, {PERCENTAGE: 8.0}), (CLIENT, {RATE: 100.0}))
        self.assertEqual(told, [{RATE, PERCENTAGE}])

    def test_validateOnly(self) -> None:
        """What is only to be validated is answered at once and changes nothing."""
        verdicts = self.successResultOf(self.ask((ALICE, {RATE: 7.0}), (BOTH, {RATE: -7.0}), validateOnly=True))
        self.assertEqual([verdict is None for verdict in verdicts], [True, False])
        self.clock.turn()
        self.assertEqual(list(self.log.table("quotas").items()), [])
        self.assertNotIn(ALICE, self.control.limits)

    def test_bound(self) -> None:
        """
        There is a bound on how many entities have limits that were set; those
        that have some can still be changed, and make room by leaving.
        """
        self.start(maxEntities=2)
        self.set(ALICE, **{RATE: 7.0})
        second, third = self.alter((BOTH, {RATE: 7.0}), (CLIENT, {RATE: 7.0}))
        self.assertIsNone(second)
        self.assertIn("2 entities", str(third))
        self.assertRefused(CLIENT, {RATE: 7.0}, "2 entities")
        self.set(BOTH, **{RATE: 8.0})
        self.set(CLIENT, **{RATE: None})
        self.set(ALICE, **{RATE: None})
        self.set(CLIENT, **{RATE: 7.0})
        self.restart(maxEntities=2)
        self.assertRefused(ALICE, {RATE: 7.0}, "2 entities")

    def test_lostInMidTurn(self) -> None:
        """If the storage fails during the alterations, those before and those behind are lost as well."""
        table = self.log.table("quotas")
        put, puts = table.put, count()
        self.patch(table, "put", lambda key, value: put(key, value if next(puts) != 1 else bytes(2 << 20)))
        self.failCommits(storageError(errno.ENOSPC))
        verdicts = self.alter(*[(QuotaEntity(user=f"user{number}"), {RATE: 7.0}) for number in range(3)])
        self.assertEqual([type(verdict) for verdict in verdicts], [LogFailed] * 3)
        self.assertEqual((next(puts), self.control.limits), (3, self.static))

    def test_partlyLost(self) -> None:
        """
        If so much is altered that a part is committed before the rest is lost,
        all of it is said to be lost, but what stayed is in force.
        """
        self.reopenLog(maxPendingBytes=1)
        self.start()
        table = self.log.table("quotas")
        put, puts = table.put, count()

        def putOnce(key: bytes, value: bytes) -> None:
            self.failCommits(storageError(errno.ENOSPC) if next(puts) else None)
            put(key, value)

        self.patch(table, "put", putOnce)
        verdicts = self.alter((ALICE, {RATE: 7.0}), (BOTH, {RATE: 7.0}))
        self.failCommits(None)
        self.assertEqual([type(verdict) for verdict in verdicts], [LogFailed] * 2)
        self.assertEqual(self.control.limits, {**self.static, ALICE: {RATE: 7.0}})
        before = self.control.limits
        self.restart()
        self.assertEqual(self.control.limits, before)

    def test_closed(self) -> None:
        """When the log is closed, alterations fail in words."""
        self.successResultOf(self.log.close())
        (refusal,) = self.successResultOf(self.ask((ALICE, {RATE: 7.0})))
        self.assertIn("closed", str(refusal))

    def test_impatient(self) -> None:
        """A caller that does not wait for the end of an alteration does not hinder it."""
        altered = self.ask((ALICE, {RATE: 7.0}))
        altered.addErrback(lambda failure: None)
        altered.cancel()
        self.clock.turn()
        self.assertEqual(self.control.limits[ALICE], {RATE: 7.0})

    def test_enforced(self) -> None:
        """An observer is told whose limits have changed, what they are, who wanted that, and when policies had them."""
        told: list[Any] = []
        self.quotaLimits.onEnforced = lambda *each: told.append(each)
        self.patch(self.quotaLimits, "_seconds", lambda: 1.00000037)
        self.policies[0].moments.clear()
        for value in (5.0, 5.0, None):
            for entity in (ALICE, CLIENT):
                self.set(entity, **{RATE: value})
        now = wholeMicroseconds(1.00000037)
        ends = [(ALICE, None), (CLIENT, 100.0)]
        expected = [*((each, {RATE: 5.0}) for each in (ALICE, CLIENT)), *((each, {RATE: end}) for each, end in ends)]
        self.assertEqual(told, [(entity, limits, "admin", now) for entity, limits in expected])
        # The other is that of asking whether the policies would refuse.
        self.assertEqual(set(self.policies[0].moments), {now, 1.00000037})

    def test_audit(self) -> None:
        """
        The log says who changed which limit of whom, from what to what; a limit
        that is below counts.  Nothing is said about what was refused or lost,
        or has not changed.
        """
        with capturedLogs() as events:
            self.set(ANYBODY, **{RATE: 1048576.0})
            self.set(ANYBODY, **{RATE: 1048576.0})
            self.alter((BOTH, {PERCENTAGE: 0.5}), (ALICE, {RATE: -1.0}))
            self.set(ANYBODY, **{RATE: None})
            self.set(BOTH, **{PERCENTAGE: None})
            self.failCommits(storageError(errno.ENOSPC))
            self.alter((ALICE, {RATE: 7.0}))
        lines = [formatEvent(event) for event in events if event["log_namespace"].endswith("QuotaLimits")]
        self.assertEqual(
            lines,
            [
                "admin changed producer_byte_rate of the default user from 200 to 1048576",
                "admin changed request_percentage of user 'alice', client id 'loader' from none to 0.5",
                "admin changed producer_byte_rate of the default user from 1048576 to 200",
                "admin changed request_percentage of user 'alice', client id 'loader' from 0.5 to none",
            ],
        )


class ShareTests(LimitsTestCase):
    """Where several servers enforce limits together, each has its share of every limit."""

    def test_share(self) -> None:
        """
        Policies enforce the share of limits from the start, of those that are set and of those that were stored, and
        clients are told the whole.
        """
        self.start(share=0.25)
        self.assertEqual(self.control.limits[CLIENT], {RATE: 25.0})
        self.assertEqual(self.control.limits[ANYBODY], {RATE: 50.0, PERCENTAGE: 12.5})
        self.alter((CLIENT, {RATE: 1000.0}), (ANYBODY, {PERCENTAGE: None}), (ALICE, {RATE: 8.0}))
        for _ in range(2):
            self.assertEqual(self.control.limits[CLIENT], {RATE: 250.0})
            self.assertEqual(self.control.limits[ALICE], {RATE: 2.0})
            described = dict(self.quotaLimits.describe({"clientId": "loader"}, True))
            self.assertEqual(described, {CLIENT: {RATE: 1000.0}})
            self.restart(share=0.25)
        self.alter((CLIENT, {RATE: None}))
        self.assertEqual(self.control.limits[CLIENT], {RATE: 25.0})

    def test_ownLimits(self) -> None:
        """Where policies were built with different limits of the same name, each enforces the share of its own."""
        self.static = {}
        built = [TablePolicy(LimitTable((RATE,))) for _ in range(2)]
        for policy, rate in zip(built, (100.0, 300.0), strict=True):
            policy.configure(ALICE, {RATE: rate}, 0.0)
        self.start(*built, share=0.5)
        self.assertEqual([policy.limits[ALICE] for policy in built], [{RATE: 50.0}, {RATE: 150.0}])


class RestartTests(LimitsTestCase):
    """L{QuotaLimits} puts stored limits in force again."""

    def warnings(self, events: Sequence[Mapping[str, Any]]) -> list[str]:
        """What the log says that somebody should look at."""
        levels = (LogLevel.warn, LogLevel.error)
        return [formatEvent(dict(event)) for event in events if event["log_level"] in levels]

    def test_policyGone(self) -> None:
        """
        Limits that no policy knows any more are logged and kept: they are in
        force when one knows them again.  Meanwhile they can only be removed.
        """
        self.set(ALICE, **{RATE: 1000.0, PERCENTAGE: 5.0})
        self.set(BOTH, **{PERCENTAGE: 5.0})
        self.static = {}
        with capturedLogs() as events:
            self.restart(TablePolicy(LimitTable((RATE,))))
        warnings = self.warnings(events)
        self.assertEqual(len(warnings), 2)
        self.assertIn("request_percentage of user 'alice' is stored and not in force", warnings[0] + warnings[1])
        self.assertEqual(self.control.limits, {ALICE: {RATE: 1000.0}})
        self.assertEqual(self.described()[ALICE], {RATE: 1000.0, PERCENTAGE: 5.0})
        self.assertRefused(ALICE, {PERCENTAGE: 6.0}, PERCENTAGE)
        self.set(ALICE, **{RATE: 2000.0})
        self.set(BOTH, **{PERCENTAGE: None})
        self.restart()
        self.assertEqual(self.control.limits, {ALICE: {RATE: 2000.0, PERCENTAGE: 5.0}})

    def test_policyRefuses(self) -> None:
        """A stored limit that a policy does not want is logged and kept, and the entity's others are in force."""
        self.set(ALICE, **{RATE: 7.0, PERCENTAGE: 5.0})
        self.static = {}
        users = TablePolicy(LimitTable((RATE, PERCENTAGE)), refusedValue=7.0)
        with capturedLogs() as events:
            self.restart(users)
        (warning,) = self.warnings(events)
        self.assertIn("a reason of its own", warning)
        self.assertEqual(self.control.limits, {ALICE: {PERCENTAGE: 5.0}})
        with capturedLogs() as events:
            self.restart(TablePolicy(LimitTable((RATE, PERCENTAGE), (EntityKind.CLIENT,))))
        self.assertEqual(len(self.warnings(events)), 2)
        self.assertEqual(self.control.limits, {})

    def test_unreadable(self) -> None:
        """
        What cannot be read is logged and hurts nobody; it is replaced when the
        limits of its entity are set again.
        """
        self.set(ALICE, **{RATE: 7.0})
        self.set(BOTH, **{RATE: 7.0})
        table = self.log.table("quotas")
        (key, _), *_ = table.items()
        for value in (b"", b"{}", b"[]", b'{"version": 2, "limits": {}}', b'{"version": 1, "limits": {"a": []}}'):
            table.put(key, value)
            with capturedLogs() as events:
                self.restart()
            self.assertEqual(len(self.warnings(events)), 1)
            self.assertEqual(len(self.control.limits.keys() - self.static.keys()), 1)
            table = self.log.table("quotas")
        for entity in (ALICE, BOTH):
            self.set(entity, **{RATE: 8.0})
        self.restart()
        self.assertEqual([self.control.limits[entity] for entity in (ALICE, BOTH)], [{RATE: 8.0}] * 2)


class DescribeTests(LimitsTestCase):
    """L{QuotaLimits.describe} finds entities by a filter."""

    def setUp(self) -> None:
        super().setUp()
        for entity in (ALICE, BOTH, ANYBODY, QuotaEntity(user=DEFAULT, clientId="loader")):
            self.set(entity, **{RATE: 7.0})
        self.set(ADDRESS, **{CONNECTIONS: 7.0})
        self.everybody = {ALICE, BOTH, ANYBODY, QuotaEntity(user=DEFAULT, clientId="loader"), CLIENT, ADDRESS}

    def found(self, wanted: Mapping[str, str | None], strict: bool) -> set[QuotaEntity]:
        """The entities that are found."""
        return set(self.described(wanted, strict))

    def test_limits(self) -> None:
        """The limits described are those in force, whichever layer they are from."""
        self.assertEqual(self.described(), self.control.limits)
        self.assertEqual(self.described()[ANYBODY], {RATE: 7.0, PERCENTAGE: 50.0})

    def test_filters(self) -> None:
        """
        An entity is found if it has what the filter names: a certain name, the
        default or any of the two; a strict filter must name all it has.
        """
        defaultBoth = QuotaEntity(user=DEFAULT, clientId="loader")
        for wanted, loosely, strictly in (
            ({"user": "alice"}, {ALICE, BOTH}, {ALICE}),
            ({"user": DEFAULT}, {ANYBODY, defaultBoth}, {ANYBODY}),
            ({"user": None}, {ALICE, BOTH, ANYBODY, defaultBoth}, {ALICE, ANYBODY}),
            ({"user": "bob"}, set(), set()),
            ({"clientId": "loader"}, {CLIENT, BOTH, defaultBoth}, {CLIENT}),
            ({"user": None, "clientId": None}, {BOTH, defaultBoth}, {BOTH, defaultBoth}),
            ({"user": "alice", "clientId": None}, {BOTH}, {BOTH}),
            ({"user": DEFAULT, "clientId": "loader"}, {defaultBoth}, {defaultBoth}),
            ({"ip": None}, {ADDRESS}, {ADDRESS}),
            ({"ip": DEFAULT}, set(), set()),
        ):
            self.assertEqual((self.found(wanted, False), self.found(wanted, True)), (loosely, strictly), wanted)

    def test_order(self) -> None:
        """Entities come in the order of their names."""
        names = ["zoe", "bob", "mallory"]
        for name in names:
            self.set(QuotaEntity(user=name), **{RATE: 7.0})
        users = [entity.user for entity, _ in self.quotaLimits.describe({"user": None}, True)]
        self.assertEqual(users, [DEFAULT, "alice", *sorted(names)])


class WordsTests(SynchronousTestCase):
    """L{describeEntity} names entities."""

    def test_words(self) -> None:
        """Every kind of entity can be told from the others."""
        for entity, words in (
            (ALICE, "user 'alice'"),
            (ANYBODY, "the default user"),
            (BOTH, "user 'alice', client id 'loader'"),
            (QuotaEntity(user="alice", clientId=DEFAULT), "user 'alice', the default client id"),
            (ADDRESS, "address '192.0.2.1'"),
            (QuotaEntity(ip=DEFAULT), "the default address"),
        ):
            self.assertEqual(describeEntity(entity), words)


class ModelTests(SynchronousTestCase):
    """L{QuotaLimits} against two dictionaries."""

    ENTITIES = (ALICE, ANYBODY, CLIENT)
    STEP = st.one_of(
        st.tuples(
            st.sampled_from(ENTITIES),
            st.dictionaries(
                st.sampled_from((RATE, PERCENTAGE)), st.one_of(st.none(), st.integers(0, 3).map(float)), max_size=2
            ),
        ),
        st.sampled_from(("turn", "fail", "restart")),
    )

    @settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(STEP, max_size=20))
    def test_model(self, steps: list[Any]) -> None:
        """
        Whatever is altered, lost and started again in any order, in force are
        the limits that were set and committed over those from the start, and
        each alteration is told its fate.
        """
        case = LimitsTestCase("start")
        case.setUp()
        self.addCleanup(case.doCleanups)
        committed: dict[QuotaEntity, dict[str, float]] = {}
        written: dict[QuotaEntity, dict[str, float]] = {}
        pending: list[tuple[Deferred[Verdicts], bool]] = []

        def settle(succeeds: bool) -> None:
            nonlocal committed, written
            if succeeds:
                committed = {entity: dict(limits) for entity, limits in written.items()}
            else:
                written = {entity: dict(limits) for entity, limits in committed.items()}
            for altered, isValid in pending:
                (verdict,) = case.successResultOf(altered)
                expected = type(None) if succeeds and isValid else LogFailed if isValid else LimitRefused
                self.assertIsInstance(verdict, expected)
            pending.clear()

        for step in steps:
            if step == "turn":
                case.clock.turn()
                settle(True)
            elif step == "restart":
                case.restart()
                settle(True)
            elif step == "fail":
                # For there to be a commit that fails.
                case.log.table("quotas").delete(b"a")
                case.failCommits(storageError(errno.ENOSPC))
                case.clock.turn()
                case.failCommits(None)
                settle(False)
            else:
                entity, changes = step
                isValid = 0.0 not in changes.values()
                altered = case.ask((entity, changes))
                if altered.called:
                    # There was nothing to write, and there is nothing to be lost.
                    (verdict,) = case.successResultOf(altered)
                    self.assertEqual(verdict is None, isValid)
                else:
                    pending.append((altered, isValid))
                if isValid:
                    limits = written.setdefault(entity, {})
                    limits.update(changes)
                    written[entity] = {name: limit for name, limit in limits.items() if limit is not None}
            expected = {
                entity: limits
                for entity in self.ENTITIES
                if (limits := {**case.static.get(entity, {}), **committed.get(entity, {})})
            }
            self.assertEqual(case.control.limits, expected)


@define(eq=False, slots=False)
@implementer(IPersistent)
class PersistentPolicy(TablePolicy):
    """
    A policy that says what it is told to.

    @ivar changes: what it says next.
    @ivar resumed: all that it was told.
    """

    changes: dict[str, float] = field(factory=dict)
    resumed: list[Mapping[str, float]] = field(factory=list)

    def takeChanges(self) -> Mapping[str, float]:
        changes, self.changes = self.changes, {}
        return changes

    def resume(self, kept: Mapping[str, float], now: float) -> None:
        self.resumed.append(kept)


class KeepingTests(LimitsTestCase):
    """What policies know survives restarts."""

    static: Mapping[QuotaEntity, Mapping[str, float]] = {}

    def persistent(self) -> PersistentPolicy:
        """A policy that has just been built."""
        return PersistentPolicy(LimitTable((RATE,), CLIENT_KINDS))

    def test_restart(self) -> None:
        """Each policy is told its own numbers, those that changed last; once, and not if there are none."""
        first, second = self.persistent(), self.persistent()
        self.restart(first, second)
        first.changes = {"alice": 5.0, "bob": 1.5, "b\u00f6b\ud800": 2.0}
        self.quotaLimits.keep()
        first.changes = {"alice": 6.0, "bob": 0.0, "nobody": 0.0}
        self.quotaLimits.keep()
        self.clock.turn()
        again, other = self.persistent(), self.persistent()
        self.restart(again, other)
        self.assertEqual(again.resumed, [{"alice": 6.0, "b\u00f6b\ud800": 2.0}])
        self.assertEqual((first.resumed, second.resumed, other.resumed), ([], [], []))

    def test_broken(self) -> None:
        """What cannot be stored or read is logged, and all else is stored and read."""
        policy = self.persistent()
        self.restart(policy)
        policy.changes = {"a" * LONGEST_KEY_BYTES: 1.0, "alice": 2.0}
        with capturedLogs() as events:
            self.quotaLimits.keep()
        self.assertIn("too long a key", formatEvent(*events))
        self.log.table("policies").put(b"no JSON", b"1.0")
        self.clock.turn()
        again = self.persistent()
        with capturedLogs() as events:
            self.restart(again)
        self.assertIn("no JSON", formatEvent(*events))
        self.assertEqual(again.resumed, [{"alice": 2.0}])

    def test_full(self) -> None:
        """Where nothing can be stored, that is logged once, however many numbers there are."""
        policy = self.persistent()
        self.restart(policy)
        self.log.close()
        policy.changes = {"alice": 1.0, "bob": 2.0}
        with capturedLogs() as events:
            self.quotaLimits.keep()
        [event] = events
        self.assertIn("will not be known after a restart: the log is closed", str(formatEvent(event)))

    def test_failing(self) -> None:
        """A policy that fails costs no other its memory."""
        failing, policy = self.persistent(), self.persistent()
        self.restart(failing, policy)
        policy.changes = {"alice": 2.0}
        for wrong in (None, {"alice": "much"}, {"alice": math.nan}, {"alice": -1.0}):
            failing.changes = wrong  # type: ignore[assignment]
            self.quotaLimits.keep()
        self.clock.turn()
        self.flushLoggedErrors()
        again = [self.persistent(), self.persistent()]
        self.restart(*again)
        self.assertEqual([each.resumed for each in again], [[], [{"alice": 2.0}]])


class AdoptTests(LimitsTestCase):
    """Limits that were set at another server."""

    def test_told(self) -> None:
        """What has been stored and is in force is told on, whole; what was refused is not."""
        told: list[Any] = []
        self.quotaLimits.onAltered = lambda *each: told.append(each)
        self.set(ALICE, **{RATE: 5.0, PERCENTAGE: 10.0})
        self.alter((ALICE, {RATE: None}), (BOTH, {RATE: -1.0}))
        self.set(ALICE, **{PERCENTAGE: None})
        self.assertEqual(
            told,
            [
                (ALICE, {RATE: 5.0, PERCENTAGE: 10.0}, "admin"),
                (ALICE, {PERCENTAGE: 10.0}, "admin"),
                (ALICE, {}, "admin"),
            ],
        )

    def test_adopted(self) -> None:
        """They are in force, survive a restart, and replace those that were there; nothing is told on."""
        told: list[Any] = []
        self.quotaLimits.onAltered = lambda *each: told.append(each)
        self.quotaLimits.adopt(CLIENT, {RATE: 7.0}, "root elsewhere")
        self.quotaLimits.adopt(ALICE, {RATE: 5.0, PERCENTAGE: 10.0}, "root elsewhere")
        self.clock.turn()
        self.assertEqual(self.control.limits[CLIENT], {RATE: 7.0})
        self.quotaLimits.adopt(ALICE, {PERCENTAGE: 20.0}, "root elsewhere")
        self.quotaLimits.adopt(CLIENT, {}, "root elsewhere")
        self.clock.turn()
        for _ in range(2):
            self.assertEqual(
                (self.control.limits[ALICE], self.control.limits[CLIENT]), ({PERCENTAGE: 20.0}, {RATE: 100.0})
            )
            self.restart()
        self.assertEqual(told, [])

    def test_sameAgain(self) -> None:
        """What is in force already changes nothing."""
        self.set(ALICE, **{RATE: 5.0})
        configured = list(self.policies[0].configured)
        self.quotaLimits.adopt(ALICE, {RATE: 5.0}, "root elsewhere")
        self.clock.turn()
        self.assertEqual(self.policies[0].configured, configured)

    def test_refused(self) -> None:
        """What cannot be stored, or no policy takes, or is too many, is logged, and the rest stays."""
        self.start(maxEntities=1)
        self.set(ALICE, **{RATE: 5.0})
        with capturedLogs() as logged:
            self.quotaLimits.adopt(BOTH, {RATE: 1.0}, "root elsewhere")
            self.quotaLimits.adopt(ALICE, {RATE: -1.0}, "root elsewhere")
            self.clock.turn()
            self.policies[0].refusedValue = 6.0
            self.quotaLimits.adopt(ALICE, {RATE: 6.0}, "root elsewhere")
            self.clock.turn()
        errors = [formatEvent(each) for each in logged if each["log_level"] is LogLevel.error]
        self.assertEqual(len(errors), 3, errors)
        self.assertTrue(all("root elsewhere" in each for each in errors), errors)
        self.assertEqual(self.control.limits[ALICE], {RATE: 5.0})
