"""Tests for L{admission.commands.kafka.quotascommand}, without a broker."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Generator
from io import StringIO
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed

from admission.commands.console import CommandFailed
from admission.commands.kafka import quotascommand
from admission.commands.kafka.brokerconnection import ConnectionOptions, converse
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.client.errors import BrokerRefused
from tests.kit.commandcases import CommandTestCase, StandInConnection

DEFAULT_CLIENT = QuotaEntity(clientId=DEFAULT)


class QuotasTestCase(CommandTestCase):
    """A test that runs C{admission quotas}."""

    def quotas(self, line: str, connection: StandInConnection, share: float = 1.0) -> str:
        """
        Run C{admission quotas}.

        @param share: how much of each limit the status port says to be enforced.
        @return: what it wrote.
        """
        stdout = StringIO()

        def ask(options: ConnectionOptions, question: Callable[[Any], Generator[Deferred[Any], Any, Any]]) -> Any:
            connecting: Deferred[Any] = succeed(connection)
            return self.successResultOf(converse(connecting, question))

        self.urls: list[str] = []

        def fetch(url: str, timeoutSeconds: float) -> bytes:
            self.urls.append(url)
            return json.dumps({"limitShare": share, "quotas": []}).encode()

        quotascommand.run(self.parse("quotas", *shlex.split(line)), StringIO(), stdout, ask, fetch)
        return stdout.getvalue()


class QuotasOptionsTests(CommandTestCase):
    """The entity that the command is about, and its limits."""

    def test_entities(self) -> None:
        """An entity is what the options name."""
        for line, entity in (
            ("", QuotaEntity()),
            ("--user alice", QuotaEntity(user="alice")),
            ("-u alice -c reports", QuotaEntity(user="alice", clientId="reports")),
            ("--user-default --client-id-default", QuotaEntity(user=DEFAULT, clientId=DEFAULT)),
            ("--client-id-default", DEFAULT_CLIENT),
            ("--ip 192.0.2.1", QuotaEntity(ip="192.0.2.1")),
            ("--ip-default", QuotaEntity(ip=DEFAULT)),
        ):
            self.assertEqual(self.parse("quotas", "describe", *line.split()).subOptions["entity"], entity)

    def test_order(self) -> None:
        """Options may come after what is set or removed."""
        options = self.parse("quotas", "set", "producer_byte_rate=4M", "--user", "a", "--dry-run").subOptions
        self.assertEqual((options["entity"].user, options["dry-run"]), ("a", 1))
        self.assertEqual(options["limits"], {"producer_byte_rate": 4_000_000})
        removing = self.parse("quotas", "remove", "producer_byte_rate", "--user", "a").subOptions
        self.assertEqual((removing["entity"].user, removing["names"]), ("a", ["producer_byte_rate"]))

    def test_mistakes(self) -> None:
        """What makes no sense is refused with what would."""
        self.assertMistakes(
            [
                ("quotas describe --user a --user-default", "--user and --user-default are both given; keep one"),
                ("quotas describe --client-id ''", "--client-id-default is for all that have no limit of their own"),
                ("quotas describe --client-id '<default>'", "--client-id-default is for all"),
                ("quotas describe --ip 192.0.2.1 --user a", "not for both"),
                ("quotas set producer_byte_rate=4M", "say whose limits: --user"),
                ("quotas remove", "say whose limits: --user"),
                ("quotas set --user a", "say which limits, as in producer_byte_rate=4M"),
                ("quotas set --user a producer_byte_rate", "write NAME=VALUE"),
                ("quotas set --user a =4M", "write NAME=VALUE"),
                ("quotas set --user a x=1 x=2", "x is given twice; keep one"),
                ("quotas set --user a producer_byte_rate=fast", "producer_byte_rate: 'fast' is not a rate"),
                ("quotas set --user a request_percentage=4M", "request_percentage: '4M' is not a number"),
                (
                    "quotas set --user a producer_byte_rat=5M",
                    "producer_byte_rat: no limit has this name; the nearest is producer_byte_rate",
                ),
                ("quotas remove --user a producer_byte_rate=4M", "write the limit's name alone to remove it"),
                ("quotas describe --status 127.0.0.1:9090", "write a URL, as in http://127.0.0.1:9090"),
                ("quotas describe alice", "there is no place for 'alice'"),
            ]
        )


class DescribeTests(QuotasTestCase):
    """C{admission quotas describe}."""

    def setUp(self) -> None:
        self.connection = StandInConnection(
            {
                DEFAULT_CLIENT: {"producer_byte_rate": 4e6, "request_percentage": 50.0},
                QuotaEntity(user="alice", clientId="re\x1b[2Jports"): {"consumer_byte_rate": 65536.0},
                QuotaEntity(ip=DEFAULT): {"connection_creation_rate": 10.0},
            }
        )

    def test_table(self) -> None:
        """Each line has what C{set} would take; no name reaches the terminal as a command to it."""
        self.assertEqual(
            self.quotas("describe", self.connection).splitlines(),
            [
                "For                                        Limits",
                "--client-id-default                        producer_byte_rate=4M request_percentage=50",
                r"--user alice --client-id 're\x1b[2Jports'  consumer_byte_rate=64KiB",
                "--ip-default                               connection_creation_rate=10",
            ],
        )

    def test_json(self) -> None:
        """Programs get everything as it is."""
        document = json.loads(self.quotas("describe --json", self.connection))
        self.assertEqual(
            document["quotas"][0],
            {
                "user": None,
                "clientId": DEFAULT,
                "ip": None,
                "limits": {"producer_byte_rate": 4e6, "request_percentage": 50.0},
            },
        )
        self.assertEqual(len(document["quotas"]), 3)

    def test_share(self) -> None:
        """A gateway's status port is asked how much of each limit the gateway enforces, and both are told."""
        line = "describe --status http://gw1.example:9090/"
        lines = self.quotas(line, self.connection, share=0.5).splitlines()
        self.assertEqual(self.urls, ["http://gw1.example:9090/quotas"])
        self.assertRegex(lines[0], r"^For +Limits +Of which this gateway enforces 1/2$")
        self.assertRegex(
            lines[1], r" producer_byte_rate=4M request_percentage=50 +producer_byte_rate=2M .*percentage=25$"
        )
        document = json.loads(self.quotas(f"{line} --json", self.connection, share=0.5))
        self.assertEqual((document["limitShare"], document["quotas"][0]["limits"]["producer_byte_rate"]), (0.5, 4e6))
        self.assertEqual(self.quotas(line, self.connection, share=1.0), self.quotas("describe", self.connection))
        self.assertRaises(CommandFailed, self.quotas, line, self.connection, share=2.0)

    def test_nothing(self) -> None:
        """That there is nothing is said, too."""
        self.assertEqual(self.quotas("describe --user bob", StandInConnection()), "no limits are set there\n")
        self.assertEqual(json.loads(self.quotas("describe --json", StandInConnection())), {"quotas": []})

    def test_filter(self) -> None:
        """The broker is asked for those that are about what was named, others being welcome."""
        self.quotas("describe", self.connection)
        self.quotas("describe --user alice --client-id-default", self.connection)
        self.assertEqual(
            self.connection.requests,
            [
                ("DescribeClientQuotas", {"components": [], "strict": False}),
                (
                    "DescribeClientQuotas",
                    {
                        "components": [
                            {"entity_type": "user", "match_type": 0, "match": "alice"},
                            {"entity_type": "client-id", "match_type": 1, "match": None},
                        ],
                        "strict": False,
                    },
                ),
            ],
        )

    def test_refused(self) -> None:
        """A refusal is a failure, and a kind of entity that we do not know is not passed over."""
        self.connection.unknownKind = "planet"
        for refusal, kind, words in (
            (None, CommandFailed, "'planet'"),
            ((ErrorCode.cluster_authorization_failed, "not you"), BrokerRefused, "not you"),
        ):
            self.connection.refusal = refusal
            connecting: Deferred[Any] = succeed(self.connection)
            asked = converse(
                connecting, lambda connection: quotascommand.describe(connection, QuotaEntity(), isExact=False)
            )
            self.assertIn(words, str(self.failureResultOf(asked, kind).value))


class AlterTests(QuotasTestCase):
    """C{admission quotas set} and C{admission quotas remove}."""

    def test_set(self) -> None:
        """Limits are set, and what is in force then is shown."""
        connection = StandInConnection({DEFAULT_CLIENT: {"request_percentage": 50.0}})
        self.assertEqual(
            self.quotas("set --client-id-default producer_byte_rate=4M", connection).splitlines(),
            ["For                  Limits", "--client-id-default  request_percentage=50 producer_byte_rate=4M"],
        )
        alteration, description = connection.requests
        self.assertEqual(
            alteration,
            (
                "AlterClientQuotas",
                {
                    "entries": [
                        {
                            "entity": [{"entity_type": "client-id", "entity_name": None}],
                            "ops": [{"key": "producer_byte_rate", "value": 4e6, "remove": False}],
                        }
                    ],
                    "validate_only": False,
                },
            ),
        )
        self.assertEqual(description[1]["strict"], True)

    def test_dryRun(self) -> None:
        """A dry run asks and changes nothing."""
        connection = StandInConnection()
        output = self.quotas("set --dry-run --user alice --client-id reports producer_byte_rate=4M", connection)
        self.assertEqual(output, "the broker would do it; nothing was changed\n")
        fields = connection.requests[0][1]
        self.assertTrue(fields["validate_only"])
        self.assertEqual(
            fields["entries"][0]["entity"],
            [{"entity_type": "user", "entity_name": "alice"}, {"entity_type": "client-id", "entity_name": "reports"}],
        )
        self.assertEqual(connection.limits, {})

    def test_remove(self) -> None:
        """Limits that are named are removed, and what is left is shown."""
        connection = StandInConnection(
            {QuotaEntity(user="alice"): {"request_percentage": 50.0, "producer_byte_rate": 1.0}}
        )
        output = self.quotas("remove --user alice producer_byte_rate producer_byte_rate", connection)
        self.assertEqual(output.splitlines()[1:], ["--user alice  request_percentage=50"])
        (op,) = connection.requests[0][1]["entries"][0]["ops"]
        self.assertEqual((op["key"], op["remove"]), ("producer_byte_rate", True))

    def test_removeAll(self) -> None:
        """If none is named, all are removed."""
        connection = StandInConnection(
            {QuotaEntity(user="alice"): {"request_percentage": 50.0, "producer_byte_rate": 1.0}}
        )
        self.assertEqual(self.quotas("remove --user alice", connection), "no limits are set for --user alice\n")
        self.assertEqual(connection.limits, {QuotaEntity(user="alice"): {}})
        self.assertEqual([name for name, _ in connection.requests].count("AlterClientQuotas"), 1)

    def test_removeNothing(self) -> None:
        """Where there is nothing to remove, nothing is altered."""
        connection = StandInConnection()
        self.assertEqual(self.quotas("remove --ip-default", connection), "no limits are set for --ip-default\n")
        self.assertEqual({name for name, _ in connection.requests}, {"DescribeClientQuotas"})

    def test_refused(self) -> None:
        """A refusal is a failure with the broker's words."""
        connection: Any = StandInConnection()
        connection.refusal = ErrorCode.invalid_request, "no limit is called 'x'"
        altered = converse(
            succeed(connection), lambda each: quotascommand.alter(each, DEFAULT_CLIENT, {"x": 1.0}, False)
        )
        self.assertEqual(self.failureResultOf(altered, BrokerRefused).value.message, "no limit is called 'x'")
