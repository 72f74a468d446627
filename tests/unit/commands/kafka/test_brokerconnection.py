"""Tests for L{admission.commands.kafka.brokerconnection}, without a broker."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError

from admission.commands.console import CommandFailed
from admission.commands.kafka.brokerconnection import connectionSettings, converse, explained
from admission.kafka.client.errors import (
    AuthenticationFailed,
    BrokerRefused,
    Disconnected,
    RequestTimedOut,
    UnsupportedApi,
)
from admission.kafka.client.sasl import PLAIN, SCRAM_SHA_512, Credentials
from tests.kit.certificates import makeCertificates
from tests.kit.commandcases import CommandTestCase, StandInConnection


class ConnectionOptionsTests(CommandTestCase):
    """Where the broker is, and who we are."""

    def test_mistakes(self) -> None:
        """Mistakes are found before anybody is asked for a password."""
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
                ("topics describe", "name one topic"),
                ("topics", "say what to do: list or describe"),
            ]
        )

    def test_environment(self) -> None:
        """A mistake in the environment is named as one there."""
        for variable, value, line, words in (
            ("ADMISSION_BROKER", " ", "topics list", "ADMISSION_BROKER is empty"),
            ("ADMISSION_BROKER", "nonsense", "topics list", "ADMISSION_BROKER nonsense: write HOST:PORT"),
            ("ADMISSION_STATUS", "", "top", "ADMISSION_STATUS is empty"),
            ("ADMISSION_STATUS", "nonsense", "top --once", "ADMISSION_STATUS nonsense: write a URL"),
        ):
            with patch.dict(os.environ, {variable: value}):
                self.assertMistakes([(line, words)])

    def test_place(self) -> None:
        """The broker is on this machine unless said otherwise."""
        given = self.parse("quotas", "describe").subOptions
        self.assertEqual((given["host"], given["port"], given["timeoutSeconds"]), ("127.0.0.1", 9092, 10.0))
        given = self.parse("quotas", "describe", "--broker", "[2001:db8::1]:1", "--timeout", "500ms").subOptions
        self.assertEqual((given["host"], given["port"], given["timeoutSeconds"]), ("2001:db8::1", 1, 0.5))

    def settings(self, line: str, password: str = "secret") -> Any:
        self.prompts: list[str] = []

        def askPassword(prompt: str) -> str:
            self.prompts.append(prompt)
            return password

        given = self.parse("quotas", "describe", *shlex.split(line)).subOptions
        return connectionSettings(given, askPassword)

    def test_nobody(self) -> None:
        """Without a login nobody is asked for a password, and there is no TLS."""
        settings = self.settings("--timeout 3s")
        self.assertEqual((settings.tls, settings.credentials, self.prompts), (None, None, []))
        self.assertEqual((settings.connectTimeoutSeconds, settings.requestTimeoutSeconds), (3.0, 3.0))

    def test_prompt(self) -> None:
        """A password is asked for, once."""
        settings = self.settings("--login alice")
        self.assertEqual(settings.credentials, Credentials(SCRAM_SHA_512, "alice", "secret"))
        self.assertEqual(self.prompts, ["Password of alice: "])

    def test_passwordFile(self) -> None:
        """Or it is the first line of a file, without the end of the line."""
        path = self.file("s\u00e9cret \r\nmore\n".encode())
        settings = self.settings(f"--login alice --password-file {path} --sasl-mechanism PLAIN")
        self.assertEqual(settings.credentials, Credentials(PLAIN, "alice", "s\u00e9cret "))
        self.assertEqual(self.prompts, [])

    def test_badPasswordFile(self) -> None:
        """A password file that is not there, or no text, is said to be so; what is in it is not told."""
        for path, words in (
            ("/no/such/file", "No such file"),
            (self.file(b"\xffsecret"), "is not UTF-8"),
            ("/dev/zero", "it has more than 1MiB"),
        ):
            error = self.assertRaises(CommandFailed, self.settings, f"--login alice --password-file {path}")
            self.assertIn(words, str(error))
            self.assertNotIn("secret", str(error))

    def test_tls(self) -> None:
        """With certificates each host gets options of its own; several authorities may share a file."""
        files = makeCertificates(Path(self.mktemp()))
        both = self.file(files.authority.read_bytes() * 2)
        for line in (
            f"--tls {files.authority}",
            f"--tls {both} --cert {files.clientCertificate} --key {files.clientKey}",
        ):
            tls = self.settings(line).tls
            self.assertIsNot(tls("localhost"), tls("127.0.0.1"))

    def test_badCertificates(self) -> None:
        """Files that are no certificates are named."""
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
    """One question is asked on one connection."""

    def test_closes(self) -> None:
        """The connection is closed after the answer, and after a failure."""

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
        """What goes wrong comes with what would help."""
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
                Disconnected("127.0.0.1:9092: TLS failed: certificate verify failed (it has expired)"),
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
