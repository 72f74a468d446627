"""Tests for L{admission.kafka.serving.quotaapi}."""

from __future__ import annotations

import errno
from typing import Any

from kio.schema.errors import ErrorCode

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.serving.quotalimits import QuotaLimits
from admission.quotas.limits import ADDRESS_KINDS, CLIENT_KINDS, LimitTable
from tests.kit.brokerfixture import BrokerTestCase, codes
from tests.kit.logfixture import storageError
from tests.unit.kafka.serving.test_quotalimits import TablePolicy

EXACTLY = 0
WITHOUT_NAME = 1
ANY = 2

RATE = "producer_byte_rate"
CONNECTIONS = "connection_creation_rate"

Entity = dict[str, str | None]


class QuotasTestCase(BrokerTestCase):
    """A broker with two policies, started with a limit for a client id."""

    def setUp(self) -> None:
        super().setUp()
        policies = [
            ("clients", TablePolicy(LimitTable((RATE, "request_percentage"), CLIENT_KINDS))),
            ("addresses", TablePolicy(LimitTable((CONNECTIONS,), ADDRESS_KINDS))),
        ]
        self.broker.control = self.factory.control = AdmissionControl(policies, 20.0)
        self.broker.control.configure(QuotaEntity(clientId="loader"), {RATE: 100.0}, 0.0)
        self.broker.limits = QuotaLimits(self.log, self.broker.control, self.broker.control.limits, self.clock.seconds)
        self.client = self.connect()

    def alter(
        self, *entries: tuple[Entity, dict[str, float | None]], apiVersion: int = 1, validateOnly: bool = False
    ) -> Any:
        """
        Ask for limits to be altered.

        @return: the entries of the response.
        """
        requested = [
            {
                "entity": self.components(entity),
                "ops": [
                    {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                    for key, value in changes.items()
                ],
            }
            for entity, changes in entries
        ]
        return self.client.ask("AlterClientQuotas", apiVersion, entries=requested, validate_only=validateOnly).entries

    def components(self, entity: Entity) -> list[dict[str, str | None]]:
        """An entity as requests name it."""
        return [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]

    def describe(self, *components: tuple[str, int, str | None], strict: bool = False, apiVersion: int = 1) -> Any:
        """
        Ask for limits to be described.

        @return: the response.
        """
        requested = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
        return self.client.ask("DescribeClientQuotas", apiVersion, components=requested, strict=strict)

    def described(
        self, *components: tuple[str, int, str | None], **others: Any
    ) -> list[tuple[Entity, dict[str, float]]]:
        """Entities and their limits, as they are described."""
        answer = self.describe(*components, **others)
        self.assertEqual((answer.error_code, answer.error_message), (ErrorCode.none, None))
        return [
            (
                {each.entity_type: each.entity_name for each in entry.entity},
                {each.key: each.value for each in entry.values},
            )
            for entry in answer.entries
        ]


class AlterTests(QuotasTestCase):
    """AlterClientQuotas."""

    def test_alter(self) -> None:
        """Limits are set and removed, in every version; the response names the entities as the request did."""
        for apiVersion in (0, 1):
            (entry,) = self.alter(
                ({"user": "alice", "client-id": None}, {RATE: 1000.0, "request_percentage": 0.5}), apiVersion=apiVersion
            )
            self.assertEqual((entry.error_code, entry.error_message), (ErrorCode.none, None))
            named = [(each.entity_type, each.entity_name) for each in entry.entity]
            self.assertEqual(named, [("user", "alice"), ("client-id", None)])
            entity = QuotaEntity(user="alice", clientId=DEFAULT)
            self.assertEqual(self.broker.control.limits[entity], {RATE: 1000.0, "request_percentage": 0.5})
            self.alter(({"client-id": None, "user": "alice"}, {RATE: None}), apiVersion=apiVersion)
            self.assertEqual(self.broker.control.limits[entity], {"request_percentage": 0.5})

    def test_refused(self) -> None:
        """What makes no sense is refused in words, each entity's for itself."""
        refused: list[tuple[Entity, dict[str, float | None], str]] = [
            ({}, {RATE: 7.0}, "somebody"),
            ({"user": "<default>"}, {RATE: 7.0}, "without a name"),
            ({"tenant": "alice"}, {RATE: 7.0}, "user, client-id, ip"),
            ({"user": "b"}, {"bytes": 7.0}, CONNECTIONS),
            ({"user": "c"}, {RATE: 7.5}, "whole"),
        ]
        before = dict(self.broker.control.limits)
        accepted: Entity = {"user": "alice"}
        for validateOnly in (True, False):
            entries = self.alter(
                (accepted, {RATE: 7.0}),
                *[(entity, changes) for entity, changes, _ in refused],
                validateOnly=validateOnly,
            )
            self.assertEqual(codes(entries), [ErrorCode.none] + [ErrorCode.invalid_request] * len(refused))
            for entry, (entity, _, word) in zip(entries[1:], refused, strict=True):
                self.assertIn(word, entry.error_message)
                self.assertEqual({each.entity_type: each.entity_name for each in entry.entity}, entity)
            if validateOnly:
                self.assertEqual(self.broker.control.limits, before)
        self.assertEqual(self.broker.control.limits, {**before, QuotaEntity(user="alice"): {RATE: 7.0}})

    def test_repeated(self) -> None:
        """
        A request that names an entity twice, a component twice or a limit twice
        does not say what it wants; the rest of it is done.
        """
        alice, bob = self.components({"user": "alice"}), self.components({"user": "bob"})
        op = {"key": RATE, "value": 7.0, "remove": False}
        entries = self.client.ask(
            "AlterClientQuotas",
            1,
            entries=[
                {"entity": alice, "ops": [op]},
                {"entity": alice, "ops": [op]},
                {"entity": alice + bob, "ops": [op]},
                {"entity": self.components({"user": "carol"}), "ops": [op, op]},
                {"entity": bob, "ops": [op]},
            ],
        ).entries
        self.assertEqual(codes(entries), [ErrorCode.invalid_request] * 4 + [ErrorCode.none])
        self.assertEqual([entity.user for entity in self.broker.control.limits], [None, "bob"])

    def test_afterCommit(self) -> None:
        """
        Limits are acknowledged when they are committed; if they cannot be, the
        storage's error is the answer and nothing has changed.
        """
        self.failCommits(storageError(errno.ENOSPC))
        (entry,) = self.alter(({"user": "alice"}, {RATE: 7.0}))
        self.assertEqual(entry.error_code, ErrorCode.kafka_storage_error)
        self.assertIn("disk is full", entry.error_message)
        self.assertNotIn(QuotaEntity(user="alice"), self.broker.control.limits, self.clock.seconds)
        self.failCommits(None)
        self.assertEqual(codes(self.alter(({"user": "alice"}, {RATE: 7.0}))), [ErrorCode.none])

    def test_nothing(self) -> None:
        """A request for nothing is answered with nothing."""
        for validateOnly in (True, False):
            self.assertEqual(self.alter(validateOnly=validateOnly), ())


class DescribeTests(QuotasTestCase):
    """DescribeClientQuotas."""

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(
            codes(
                self.alter(
                    ({"user": "alice"}, {RATE: 7.0, "request_percentage": 0.25}),
                    ({"user": "alice", "client-id": "loader"}, {RATE: 8.0}),
                    ({"user": None}, {RATE: 9.0}),
                    ({"ip": "192.0.2.1"}, {CONNECTIONS: 10.0}),
                )
            ),
            [ErrorCode.none] * 4,
        )

    def test_everything(self) -> None:
        """
        A filter of nothing finds everything, what the broker was started with
        included, in every version; a strict one finds nothing.
        """
        for apiVersion in (0, 1):
            self.assertCountEqual(
                self.described(apiVersion=apiVersion),
                [
                    ({"client-id": "loader"}, {RATE: 100.0}),
                    ({"user": "alice"}, {RATE: 7.0, "request_percentage": 0.25}),
                    ({"user": "alice", "client-id": "loader"}, {RATE: 8.0}),
                    ({"user": None}, {RATE: 9.0}),
                    ({"ip": "192.0.2.1"}, {CONNECTIONS: 10.0}),
                ],
            )
            self.assertEqual(self.described(strict=True, apiVersion=apiVersion), [])

    def test_filters(self) -> None:
        """Entities match by name, by being the default, or by being of a type; strictly if they have no other type."""
        alice, both = {"user": "alice"}, {"user": "alice", "client-id": "loader"}
        anybody: Entity = {"user": None}
        for components, loosely, strictly in (
            ([("user", EXACTLY, "alice")], [alice, both], [alice]),
            ([("user", WITHOUT_NAME, None)], [anybody], [anybody]),
            ([("user", ANY, None)], [alice, both, anybody], [alice, anybody]),
            ([("client-id", EXACTLY, "loader")], [{"client-id": "loader"}, both], [{"client-id": "loader"}]),
            ([("user", ANY, None), ("client-id", ANY, None)], [both], [both]),
            ([("ip", ANY, None)], [{"ip": "192.0.2.1"}], [{"ip": "192.0.2.1"}]),
            ([("ip", EXACTLY, "::ffff:192.0.2.1")], [{"ip": "192.0.2.1"}], [{"ip": "192.0.2.1"}]),
            ([("ip", EXACTLY, "localhost")], [], []),
            ([("user", EXACTLY, "bob")], [], []),
        ):
            for strict, expected in ((False, loosely), (True, strictly)):
                found = [entity for entity, _ in self.described(*components, strict=strict)]
                self.assertCountEqual(found, expected, (components, strict))

    def test_refused(self) -> None:
        """
        A filter that makes no sense is refused in words; one of a type that is
        not known, as if a later version might know it.
        """
        for components, code in (
            ([("tenant", ANY, None)], ErrorCode.unsupported_version),
            ([("", ANY, None)], ErrorCode.invalid_request),
            ([("user", ANY, None), ("user", EXACTLY, "alice")], ErrorCode.invalid_request),
            ([("user", EXACTLY, None)], ErrorCode.invalid_request),
            ([("user", WITHOUT_NAME, "alice")], ErrorCode.invalid_request),
            ([("user", ANY, "")], ErrorCode.invalid_request),
            ([("user", 3, None)], ErrorCode.invalid_request),
            ([("user", ANY, None), ("ip", ANY, None)], ErrorCode.invalid_request),
        ):
            answer = self.describe(*components)
            self.assertEqual((answer.error_code, answer.entries), (code, None))
            self.assertTrue(answer.error_message)
