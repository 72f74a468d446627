"""
Tests for L{admission.cli} and L{admission.commands}, without a broker.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.python.usage import Options, UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission import __version__, cli
from admission.cli import COMMANDS, FAILED, INTERRUPTED, MISUSED, AdmissionOptions, Command, main
from admission.commands import explaincommand, quotascommand
from admission.commands.brokerconnection import ConnectionOptions, connectionSettings, converse, explained
from admission.commands.console import CommandFailed
from admission.commands.limitsyntax import asArguments, formatAmount, parseAmount
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.client.errors import (
    AuthenticationFailed,
    BrokerRefused,
    Disconnected,
    RequestTimedOut,
    UnsupportedApi,
)
from admission.kafka.client.sasl import PLAIN, SCRAM_SHA_512, Credentials
from tests.kit.certificates import makeCertificates

DEFAULT_CLIENT = QuotaEntity(clientId=DEFAULT)


class StandInConnection:
    """
    A connection to a broker that keeps limits in a dictionary.

    @ivar requests: what it was asked.
    @ivar refusal: what it refuses alterations with, if anything.
    """

    def __init__(self, limits: Mapping[QuotaEntity, Mapping[str, float]] | None = None) -> None:
        self.limits = {entity: dict(values) for entity, values in (limits or {}).items()}
        self.requests: list[tuple[str, Any]] = []
        self.refusal: tuple[ErrorCode, str | None] | None = None
        self.unknownKind: str | None = None
        self.isClosed = False

    def close(self) -> Deferred[None]:
        """
        Close at once.
        """
        self.isClosed = True
        return succeed(None)

    def request(self, apiName: str, fields: Mapping[str, Any]) -> Deferred[Any]:
        """
        Answer as a broker would.
        """
        self.requests.append((apiName, fields))
        code, message = self.refusal or (ErrorCode.none, None)
        if apiName == "DescribeClientQuotas":
            entries = [self._entry(entity, values) for entity, values in self.limits.items()]
            return succeed(SimpleNamespace(error_code=code, error_message=message, entries=None if code else entries))
        for entry in fields["entries"]:
            if not code and not fields["validate_only"]:
                self._alter(entry)
        return succeed(SimpleNamespace(entries=[SimpleNamespace(error_code=code, error_message=message)]))

    def _entry(self, entity: QuotaEntity, values: Mapping[str, float]) -> Any:
        kinds = {"user": entity.user, "client-id": entity.clientId, self.unknownKind or "ip": entity.ip}
        return SimpleNamespace(
            entity=[
                SimpleNamespace(entity_type=kind, entity_name=None if name == DEFAULT else name)
                for kind, name in kinds.items()
                if name is not None
            ],
            values=[SimpleNamespace(key=name, value=value) for name, value in values.items()],
        )

    def _alter(self, entry: Mapping[str, Any]) -> None:
        attributes = {"user": "user", "client-id": "clientId", "ip": "ip"}
        names = {attributes[each["entity_type"]]: each["entity_name"] or DEFAULT for each in entry["entity"]}
        limits = self.limits.setdefault(QuotaEntity(**names), {})
        for op in entry["ops"]:
            if op["remove"]:
                limits.pop(op["key"], None)
            else:
                limits[op["key"]] = op["value"]


class CommandTestCase(SynchronousTestCase):
    """
    A test of commands.
    """

    def parse(self, *arguments: str) -> Any:
        """
        Parse a command line.

        @return: the options of the command proper.
        """
        options: Any = AdmissionOptions()
        options.parseOptions(list(arguments))
        return options.subOptions

    def assertMistakes(self, mistakes: Sequence[tuple[str, str]]) -> None:
        """
        Each command line is refused with a sentence in which these words are.
        """
        for line, words in mistakes:
            error = self.assertRaises(UsageError, self.parse, *shlex.split(line))
            self.assertIn(words, str(error), line)
            self.assertNotIn("\n", str(error))

    def quotas(self, line: str, connection: StandInConnection) -> str:
        """
        Run C{admission quotas}.

        @return: what it wrote.
        """
        stdout = StringIO()

        def ask(options: ConnectionOptions, question: Callable[[Any], Generator[Deferred[Any], Any, Any]]) -> Any:
            connecting: Deferred[Any] = succeed(connection)
            return self.successResultOf(converse(connecting, question))

        quotascommand.run(self.parse("quotas", *shlex.split(line)), StringIO(), stdout, ask)
        return stdout.getvalue()

    def file(self, content: bytes) -> str:
        """
        Write a file.
        """
        path = Path(self.mktemp())
        path.write_bytes(content)
        return str(path)


class MainTests(CommandTestCase):
    """
    The command finds what to run, and ends as a command should.
    """

    def setUp(self) -> None:
        """
        Catch what is written.
        """
        self.stdout, self.stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", self.stdout)
        self.patch(sys, "stderr", self.stderr)

    def assertExit(self, status: int, *arguments: str) -> None:
        """
        A command line ends without a return.
        """
        error = self.assertRaises(SystemExit, main, arguments)
        self.assertEqual(error.code, status)

    def replace(self, run: Callable[..., None]) -> None:
        """
        Have a command that does what C{run} does, without options.
        """
        self.patch(cli, "COMMANDS", (Command("explain", "", "twisted.python.usage.Options", f"{__name__}.REPLACED"),))
        self.patch(sys.modules[__name__], "REPLACED", run)

    def test_commands(self) -> None:
        """
        Every command has options that parse, and something to run.
        """
        for command in COMMANDS:
            self.assertIsInstance(command.makeOptions(), Options)
            self.assertTrue(callable(command.resolve()))

    def test_help(self) -> None:
        """
        Help is there at every level, with examples that parse.
        """
        groups = {"quotas": ("describe", "set", "remove"), "users": ("set", "remove", "list")}
        leaves = [command.name for command in COMMANDS if command.name not in groups]
        paths = [f"{group} {each}" for group, subcommands in groups.items() for each in subcommands]
        for path in ("", *groups, *paths, *leaves):
            self.stdout.truncate(0)
            self.assertExit(0, *path.split(), "--help")
            usage = self.stdout.getvalue()
            self.assertIn(f"Usage: admission {path}".rstrip(), usage)
            examples = [line for line in usage.splitlines() if line.startswith("  admission ")]
            self.assertEqual(bool(examples), path not in groups, usage)
            for example in examples:
                self.parse(*shlex.split(example.partition(" < ")[0])[1:])

    def test_version(self) -> None:
        """
        The version is ours.
        """
        for arguments in ([], ["quotas", "set"], ["doctor"]):
            self.stdout.truncate(0)
            self.stdout.seek(0)
            self.assertExit(0, *arguments, "--version")
            self.assertEqual(self.stdout.getvalue(), f"admission {__version__}\n")

    def test_misused(self) -> None:
        """
        What cannot be parsed is answered with a sentence and where to read more.
        """
        *names, last = (each.name for each in COMMANDS)
        for line, sentence in (
            ("", f"say what to do: {', '.join(names)} or {last}; see admission --help"),
            ("quota", "Unknown command: quota; see admission --help"),
            ("quotas", "say what to do: describe, set or remove; see admission quotas --help"),
            ("quotas set --bogus", "option --bogus not recognized; see admission quotas set --help"),
            ("top twice", "Wrong number of arguments; see admission top --help"),
            ("explain --user \udcff", "'explain --user \\udcff' is not UTF-8; names of users and clients are"),
        ):
            self.stderr.truncate(0)
            self.stderr.seek(0)
            self.assertEqual(main(line.split()), MISUSED)
            self.assertEqual(self.stderr.getvalue(), f"admission: {sentence}\n")

    def test_failed(self) -> None:
        """
        What fails is answered with a sentence as well.
        """

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            raise CommandFailed("it does not work")

        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), FAILED)
        self.assertEqual(self.stderr.getvalue(), "admission: it does not work\n")

    def test_noPassword(self) -> None:
        """
        Where nobody can type a password, it says what else would do.
        """

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            raise EOFError

        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), FAILED)
        self.assertIn("--password-stdin or --password-file", self.stderr.getvalue())

    def test_succeeded(self) -> None:
        """
        What works is not commented on.
        """
        self.replace(lambda options, stdin, stdout: stdout.write("done\n"))
        self.assertEqual(main(["explain", "--client-id", "c"]), 0)
        self.assertEqual((self.stdout.getvalue(), self.stderr.getvalue()), ("done\n", ""))

    def test_interrupted(self) -> None:
        """
        Whoever interrupts needs no explanation.
        """

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            raise KeyboardInterrupt

        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), INTERRUPTED)
        self.assertEqual(self.stderr.getvalue(), "")


REPLACED: Any = None


class ConnectionOptionsTests(CommandTestCase):
    """
    Where the broker is, and who we are.
    """

    def test_mistakes(self) -> None:
        """
        Mistakes are found before anybody is asked for a password.
        """
        self.assertMistakes(
            [
                ("quotas describe --broker nowhere", "write HOST:PORT"),
                ("quotas describe --broker ::1:9092", "[::1]:9092"),
                ("quotas describe --broker a:0", "write HOST:PORT"),
                ("quotas describe --broker a:65536", "write HOST:PORT"),
                ("quotas describe --broker a..b:9092", "--broker a..b:9092: there can be no host of that name"),
                ("quotas describe --timeout soon", "--timeout: 'soon' is not a duration"),
                ("quotas describe --timeout 0", "--timeout 0: nothing answers in no time"),
                ("quotas describe --cert c", "--cert needs --key as well"),
                ("quotas describe --key c", "--key needs --cert as well"),
                ("quotas describe --cert c --key k", "--cert needs --tls as well"),
                ("quotas describe --password-file f", "--password-file needs --login as well"),
                ("quotas describe --login a --sasl-mechanism GSSAPI", "write one of PLAIN, SCRAM-SHA-256"),
            ]
        )

    def test_place(self) -> None:
        """
        The broker is on this machine unless said otherwise.
        """
        given = self.parse("quotas", "describe").subOptions
        self.assertEqual((given["host"], given["port"], given["timeoutSeconds"]), ("127.0.0.1", 9092, 10.0))
        given = self.parse("quotas", "describe", "--broker", "[2001:db8::1]:1", "--timeout", "500ms").subOptions
        self.assertEqual((given["host"], given["port"], given["timeoutSeconds"]), ("2001:db8::1", 1, 0.5))

    def settings(self, line: str, password: str = "secret") -> Any:
        """
        What is asked of a connection.
        """
        self.prompts: list[str] = []

        def askPassword(prompt: str) -> str:
            self.prompts.append(prompt)
            return password

        given = self.parse("quotas", "describe", *shlex.split(line)).subOptions
        return connectionSettings(given, askPassword)

    def test_nobody(self) -> None:
        """
        Without a login nobody is asked for a password, and there is no TLS.
        """
        settings = self.settings("--timeout 3s")
        self.assertEqual((settings.tls, settings.credentials, self.prompts), (None, None, []))
        self.assertEqual((settings.connectTimeoutSeconds, settings.requestTimeoutSeconds), (3.0, 3.0))

    def test_prompt(self) -> None:
        """
        A password is asked for, once.
        """
        settings = self.settings("--login alice")
        self.assertEqual(settings.credentials, Credentials(SCRAM_SHA_512, "alice", "secret"))
        self.assertEqual(self.prompts, ["Password of alice: "])

    def test_passwordFile(self) -> None:
        """
        Or it is the first line of a file, without the end of the line.
        """
        path = self.file("s\u00e9cret \r\nmore\n".encode())
        settings = self.settings(f"--login alice --password-file {path} --sasl-mechanism PLAIN")
        self.assertEqual(settings.credentials, Credentials(PLAIN, "alice", "s\u00e9cret "))
        self.assertEqual(self.prompts, [])

    def test_badPasswordFile(self) -> None:
        """
        A password file that is not there, or no text, is said to be so; what is in it is not told.
        """
        for path, words in (("/no/such/file", "No such file"), (self.file(b"\xffsecret"), "is not UTF-8")):
            error = self.assertRaises(CommandFailed, self.settings, f"--login alice --password-file {path}")
            self.assertIn(words, str(error))
            self.assertNotIn("secret", str(error))

    def test_tls(self) -> None:
        """
        With certificates each host gets options of its own; several authorities may share a file.
        """
        files = makeCertificates(Path(self.mktemp()))
        both = self.file(files.authority.read_bytes() * 2)
        for line in (
            f"--tls {files.authority}",
            f"--tls {both} --cert {files.clientCertificate} --key {files.clientKey}",
        ):
            tls = self.settings(line).tls
            self.assertIsNot(tls("localhost"), tls("127.0.0.1"))

    def test_badCertificates(self) -> None:
        """
        Files that are no certificates are named.
        """
        files = makeCertificates(Path(self.mktemp()))
        nonsense = self.file(b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        for line, words in (
            ("--tls /no/such/file", "--tls /no/such/file: No such file or directory"),
            (f"--tls {files.serverKey}", "there is no certificate in it"),
            (f"--tls {nonsense}", "a certificate in it cannot be used"),
            (f"--tls {files.authority} --cert /no --key {files.clientKey}", "--cert /no: No such file"),
            (f"--tls {files.authority} --cert {nonsense} --key {files.clientKey}", "cannot be used together"),
            (f"--tls {files.authority} --cert {files.clientCertificate} --key {nonsense}", "cannot be used together"),
        ):
            self.assertIn(words, str(self.assertRaises(CommandFailed, self.settings, line)))


class ConversationTests(CommandTestCase):
    """
    One question is asked on one connection.
    """

    def test_closes(self) -> None:
        """
        The connection is closed after the answer, and after a failure.
        """

        def answers(connection: Any) -> Generator[Deferred[Any], Any, str]:
            yield succeed(None)
            return "answer"

        def fails(connection: Any) -> Generator[Deferred[Any], Any, str]:
            yield fail(BrokerRefused(ErrorCode.invalid_request, "it"))
            return "never"

        connection: Any = StandInConnection()
        self.assertEqual(self.successResultOf(converse(succeed(connection), answers)), "answer")
        self.assertTrue(connection.isClosed)
        connection = StandInConnection()
        self.failureResultOf(converse(succeed(connection), fails), BrokerRefused)
        self.assertTrue(connection.isClosed)

    def test_explained(self) -> None:
        """
        What goes wrong comes with what would help.
        """
        refused = Disconnected("cannot connect to a:1: refused.")
        refused.__cause__ = ConnectionRefusedError()
        bare = self.parse("quotas", "describe").subOptions
        known = self.parse("quotas", "describe", "--tls", "ca.pem", "--login", "alice").subOptions
        for error, options, expected in (
            (refused, bare, "cannot connect to a:1: refused; is a broker running there? --broker names another"),
            (
                RequestTimedOut("the broker did not answer"),
                bare,
                "the broker did not answer; is that a broker? --broker names another; if it wants TLS, give --tls; "
                "if it wants to know who you are, give --login",
            ),
            (
                Disconnected("closed: [('asn1', '', 'EVP lib'), ('SSL routines', '', 'certificate verify failed')]"),
                known,
                "TLS with 127.0.0.1:9092 failed: certificate verify failed; --tls needs the authority that signed the "
                "broker's certificate, and --broker a name that is in it",
            ),
            (Disconnected("closed"), known, "closed; is that a broker? --broker names another"),
            (
                AuthenticationFailed("it does not know you"),
                known,
                "it does not know you; check --login, the password and --sasl-mechanism",
            ),
            (
                UnsupportedApi("the broker speaks DescribeClientQuotas not at all"),
                bare,
                "the broker speaks DescribeClientQuotas not at all; it takes a broker that has client quotas (KIP-546)",
            ),
            (
                BrokerRefused(ErrorCode.invalid_request, "it", "no such limit"),
                bare,
                "the broker refuses: no such limit",
            ),
            (BrokerRefused(ErrorCode.invalid_request, "it"), bare, "it was answered INVALID_REQUEST (42)"),
        ):
            self.assertEqual(explained(error, options), expected)


class QuotasOptionsTests(CommandTestCase):
    """
    Whom it is about, and which limits.
    """

    def test_entities(self) -> None:
        """
        An entity is what the options name.
        """
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

    def test_mistakes(self) -> None:
        """
        What makes no sense is refused with what would.
        """
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
                ("quotas set producer_byte_rate=4M --user a", "--user: options go before the first NAME=VALUE"),
                ("quotas set --user a x=1 x=2", "x is given twice; keep one"),
                ("quotas set --user a producer_byte_rate=fast", "producer_byte_rate: 'fast' is not a rate"),
                ("quotas set --user a request_percentage=4M", "request_percentage: '4M' is not a number"),
                ("quotas remove producer_byte_rate --user a", "--user: options go before the first NAME"),
                ("quotas remove --user a producer_byte_rate=4M", "write the limit's name alone to remove it"),
                ("quotas describe alice", "Wrong number of arguments"),
            ]
        )

    def test_amounts(self) -> None:
        """
        Rates have units; other limits are numbers; what is written reads back.
        """
        for name, text, amount in (
            ("producer_byte_rate", "4M", 4e6),
            ("consumer_byte_rate", "64KiB", 65536.0),
            ("consumer_byte_rate", "1G/1h", 1e9 / 3600),
            ("connection_creation_rate", "10", 10.0),
            ("request_percentage", "12.5", 12.5),
            ("producer_ids_rate", "100", 100.0),
        ):
            self.assertEqual(parseAmount(name, text), amount)
            self.assertAlmostEqual(parseAmount(name, formatAmount(name, amount)), amount, places=6)
        self.assertEqual(formatAmount("producer_byte_rate", 4e6), "4M")
        self.assertEqual(formatAmount("request_percentage", 200.0), "200")
        self.assertEqual(formatAmount("connection_creation_rate", 2048.0), "2048")
        for name, text in (
            ("request_percentage", "nan"),
            ("request_percentage", "inf"),
            ("request_percentage", "-1"),
            ("producer_byte_rate", "0"),
            ("producer_ids_rate", "100/1h"),
        ):
            self.assertRaises(ValueError, parseAmount, name, text)

    def test_asArguments(self) -> None:
        """
        Names are quoted for a shell, so that they read back.
        """
        entity = QuotaEntity(user="it's me", clientId=DEFAULT)
        given = self.parse("quotas", "describe", *shlex.split(asArguments(entity))).subOptions
        self.assertEqual(given["entity"], entity)


class DescribeTests(CommandTestCase):
    """
    C{admission quotas describe}.
    """

    def setUp(self) -> None:
        """
        A broker with limits.
        """
        self.connection = StandInConnection(
            {
                DEFAULT_CLIENT: {"producer_byte_rate": 4e6, "request_percentage": 50.0},
                QuotaEntity(user="alice", clientId="re\x1b[2Jports"): {"consumer_byte_rate": 65536.0},
                QuotaEntity(ip=DEFAULT): {"connection_creation_rate": 10.0},
            }
        )

    def test_table(self) -> None:
        """
        Each line has what C{set} would take; no name reaches the terminal as a command to it.
        """
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
        """
        Programs get everything as it is.
        """
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

    def test_nothing(self) -> None:
        """
        That there is nothing is said, too.
        """
        self.assertEqual(self.quotas("describe --user bob", StandInConnection()), "no limits are set there\n")
        self.assertEqual(json.loads(self.quotas("describe --json", StandInConnection())), {"quotas": []})

    def test_filter(self) -> None:
        """
        The broker is asked for those that are about what was named, others being welcome.
        """
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
        """
        A refusal is a failure.
        """
        self.connection.refusal = ErrorCode.cluster_authorization_failed, "not you"
        connecting: Deferred[Any] = succeed(self.connection)
        asked = converse(
            connecting, lambda connection: quotascommand.describe(connection, QuotaEntity(), isExact=False)
        )
        self.assertEqual(self.failureResultOf(asked, BrokerRefused).value.message, "not you")

    def test_unknownEntity(self) -> None:
        """
        A kind of entity that we do not know is not passed over.
        """
        self.connection.unknownKind = "planet"
        connecting: Deferred[Any] = succeed(self.connection)
        asked = converse(
            connecting, lambda connection: quotascommand.describe(connection, QuotaEntity(), isExact=False)
        )
        self.assertIn("'planet'", str(self.failureResultOf(asked, CommandFailed).value))


class AlterTests(CommandTestCase):
    """
    C{admission quotas set} and C{admission quotas remove}.
    """

    def test_set(self) -> None:
        """
        Limits are set, and what is in force then is shown.
        """
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
        """
        A dry run asks and changes nothing.
        """
        connection = StandInConnection()
        output = self.quotas("set --dry-run --user alice --client-id reports producer_byte_rate=4M", connection)
        self.assertEqual(output, "the broker would do it; nothing was changed\n")
        fields = connection.requests[0][1]
        self.assertTrue(fields["validate_only"])
        self.assertEqual(
            fields["entries"][0]["entity"],
            [
                {"entity_type": "user", "entity_name": "alice"},
                {"entity_type": "client-id", "entity_name": "reports"},
            ],
        )
        self.assertEqual(connection.limits, {})

    def test_remove(self) -> None:
        """
        Limits that are named are removed, and what is left is shown.
        """
        connection = StandInConnection(
            {QuotaEntity(user="alice"): {"request_percentage": 50.0, "producer_byte_rate": 1.0}}
        )
        output = self.quotas("remove --user alice producer_byte_rate producer_byte_rate", connection)
        self.assertEqual(output.splitlines()[1:], ["--user alice  request_percentage=50"])
        (op,) = connection.requests[0][1]["entries"][0]["ops"]
        self.assertEqual((op["key"], op["remove"]), ("producer_byte_rate", True))

    def test_removeAll(self) -> None:
        """
        If none is named, all are removed.
        """
        connection = StandInConnection(
            {QuotaEntity(user="alice"): {"request_percentage": 50.0, "producer_byte_rate": 1.0}}
        )
        self.assertEqual(self.quotas("remove --user alice", connection), "no limits are set for --user alice\n")
        self.assertEqual(connection.limits, {QuotaEntity(user="alice"): {}})
        self.assertEqual([name for name, _ in connection.requests].count("AlterClientQuotas"), 1)

    def test_removeNothing(self) -> None:
        """
        Where there is nothing to remove, nothing is altered.
        """
        connection = StandInConnection()
        self.assertEqual(self.quotas("remove --ip-default", connection), "no limits are set for --ip-default\n")
        self.assertEqual({name for name, _ in connection.requests}, {"DescribeClientQuotas"})

    def test_refused(self) -> None:
        """
        A refusal is a failure with the broker's words.
        """
        connection: Any = StandInConnection()
        connection.refusal = ErrorCode.invalid_request, "no limit is called 'x'"
        altered = converse(
            succeed(connection), lambda each: quotascommand.alter(each, DEFAULT_CLIENT, {"x": 1.0}, False)
        )
        self.assertEqual(self.failureResultOf(altered, BrokerRefused).value.message, "no limit is called 'x'")


class ExplainTests(CommandTestCase):
    """
    C{admission explain}.
    """

    def limit(self, **values: Any) -> dict[str, Any]:
        """
        A limit as the status port tells it.
        """
        return {
            "policy": "client-bytes",
            "isShadow": False,
            "limitName": "producer_byte_rate",
            "limit": 1e6,
            "entity": {"user": None, "clientId": DEFAULT, "ip": None},
            "used": 1234567.0,
            "usedFraction": 1.234567,
            "delaySeconds": 0.0,
            "delayEndsAtSeconds": None,
            **values,
        }

    def explain(self, line: str, *limits: Any, clientId: str = "reports") -> str:
        """
        Run the command.

        @param limits: what the status port tells.
        @return: what it wrote.
        """
        stdout = StringIO()
        told = {"user": "alice", "clientId": clientId, "ip": None, "limits": limits}

        def fetch(url: str, timeoutSeconds: float) -> bytes:
            self.url, self.timeoutSeconds = url, timeoutSeconds
            return json.dumps(told).encode()

        explaincommand.run(self.parse("explain", *shlex.split(line)), StringIO(), stdout, fetch)
        return stdout.getvalue()

    def test_question(self) -> None:
        """
        What was given is asked, encoded as it must be.
        """
        self.explain("--client-id 'a b&c' --user alice --timeout 3s")
        self.assertEqual(self.url, "http://127.0.0.1:9090/explain?clientId=a+b%26c&user=alice")
        self.assertEqual(self.timeoutSeconds, 3.0)
        self.explain("--client-id '' --ip ::1 --status https://broker.example/")
        self.assertEqual(self.url, "https://broker.example/explain?clientId=&ip=%3A%3A1")

    def test_mistakes(self) -> None:
        """
        What cannot be asked is refused.
        """
        self.assertMistakes(
            [
                ("explain", "say which client: --client-id, --user, --ip"),
                ("explain -c a --status 127.0.0.1:9090", "write a URL, as in http://127.0.0.1:9090"),
                ("explain -c a --status file:///etc/passwd", "write a URL"),
                ("explain -c a --status 'http://[::1'", "write a URL"),
                ("explain -c a --status http://127.0.0.1:many", "write a URL"),
                ("explain -c a --status http://:9090", "write a URL"),
                ("explain -c a --timeout never", "--timeout: 'never'"),
            ]
        )

    def test_nobody(self) -> None:
        """
        A client without limits is not throttled by any.
        """
        self.assertEqual(self.explain("-c reports"), "no limit holds for client id 'reports' of user 'alice'\n")

    def test_free(self) -> None:
        """
        Whose limits are not used up is told so; a shadow policy throttles nobody.
        """
        output = self.explain(
            "-c reports",
            self.limit(used=0.0, usedFraction=0.0),
            self.limit(isShadow=True, delaySeconds=5.0, delayEndsAtSeconds=1e9),
        )
        first, _, title, free, trial = output.splitlines()
        self.assertEqual(first, "client id 'reports' of user 'alice' is not throttled")
        self.assertEqual(title.split(), ["Policy", "Limit", "Set", "for", "Used", "Of", "it", "Throttled"])
        self.assertEqual(
            free.split(), ["client-bytes", "producer_byte_rate=1M", "--client-id-default", "0", "0%", "no"]
        )
        self.assertTrue(trial.startswith("client-bytes (shadow)  producer_byte_rate=1M"), trial)

    def test_throttled(self) -> None:
        """
        The policy that holds a client back longest is named, with when that ends.
        """
        output = self.explain(
            "-c reports",
            self.limit(delaySeconds=2.0, delayEndsAtSeconds=1e9),
            self.limit(policy="request-time", delaySeconds=2.5, delayEndsAtSeconds=1e9 + 0.5),
        )
        ends = datetime.fromtimestamp(1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        self.assertIn(
            f"is throttled by request-time (producer_byte_rate), for 2.5 s, until {ends}", output.splitlines()[0]
        )
        self.assertIn(f"1.235M  123%   2 s, until {ends}", output)

    def test_json(self) -> None:
        """
        Programs get what the port tells.
        """
        document = json.loads(self.explain("-c reports --json", self.limit()))
        self.assertEqual(document["limits"], [self.limit()])

    def test_terminal(self) -> None:
        """
        A name does not reach the terminal as a command to it.
        """
        output = self.explain(
            "-c a", self.limit(entity={"user": "\x1b[2J", "clientId": None, "ip": None}), clientId="\x07"
        )
        self.assertNotIn("\x1b", output)
        self.assertNotIn("\x07", output)

    def test_nonsense(self) -> None:
        """
        Something else than a status port is recognised.
        """
        for answer in (
            b"<html>",
            b"\xff",
            b"[]",
            b"{}",
            b'{"user": 1, "clientId": 2, "ip": 3, "limits": [4]}',
            b"null",
        ):

            def fetch(url: str, timeoutSeconds: float, answer: bytes = answer) -> bytes:
                return answer

            error = self.assertRaises(
                CommandFailed, explaincommand.run, self.parse("explain", "-c", "a"), StringIO(), StringIO(), fetch
            )
            self.assertIn("does not answer as the status port of a broker does", str(error))
