# -*- test-case-name: tests.unit.commands.kafka.test_brokerconnection -*-
"""
What commands that connect to a broker as clients have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks, maybeDeferred
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.ssl import Certificate, PrivateCertificate, optionsForClientTLS, trustRootFromCertificates
from twisted.python.failure import Failure
from twisted.python.usage import UsageError

from admission.boundedfile import readBounded
from admission.clock import MonotonicClock
from admission.completions import FILES, completing, oneOf
from admission.kafka.client.clientconnection import ClientConnection, ConnectionSettings, connect
from admission.kafka.client.errors import AuthenticationFailed, BrokerRefused, ClientError, UnsupportedApi
from admission.kafka.client.sasl import MECHANISMS, SCRAM_SHA_512, Credentials
from admission.kafka.serving.listenoptions import parseHostPort

from ..console import CommandFailed, CommandOptions, askPassword, chosen, parseTimeout

_ASK = partial(askPassword, "--password-file")
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_TLS_FAILURE = re.compile(r"TLS failed: ([^(]*[^( ])")
"""What L{whyTlsFailed<admission.tlsfailure.whyTlsFailed>} says, without its hint: the command has a better one."""

Question = Callable[[ClientConnection], Generator[Deferred[Any], Any, Any]]
"""Asks over a connection, and returns the answer; a generator for L{inlineCallbacks}."""


class ConnectionOptions(CommandOptions):
    """
    The broker's address, and the user's credentials.

    After parsing, C{host}, C{port} and C{timeoutSeconds} are keys as well.
    """

    optParameters = [
        ["broker", "b", None, "HOST:PORT of the broker.  [default: what ADMISSION_BROKER says, or 127.0.0.1:9092]"],
        ["tls", None, None, "Use TLS, and trust the authorities whose certificates are in this PEM file."],
        ["cert", None, None, "Show the broker the certificate in this PEM file."],
        ["key", None, None, "The key of --cert, in a PEM file."],
        ["login", None, None, "Log in by this name; the password is asked for."],
        ["sasl-mechanism", None, SCRAM_SHA_512, f"How to log in: {', '.join(MECHANISMS)}."],
        ["password-file", None, None, "Take the password from the first line of this file."],
        ["timeout", None, "10s", "How long to wait for the broker."],
    ]
    compData = completing(
        options={
            "tls": FILES,
            "cert": FILES,
            "key": FILES,
            "password-file": FILES,
            "sasl-mechanism": oneOf(MECHANISMS),
        }
    )

    def postOptions(self) -> None:
        """
        @raise UsageError: if options are wrong or missing; before any password prompt.
        """
        source, self["broker"] = chosen(self, "broker", "ADMISSION_BROKER", "127.0.0.1:9092")
        self["host"], self["port"] = parseHostPort(source, self["broker"])
        try:
            self["host"].encode("idna")
        except UnicodeError as error:
            raise UsageError(f"{source} {self['broker']}: there can be no host of that name") from error
        self["timeoutSeconds"] = parseTimeout(self["timeout"])
        if self["sasl-mechanism"] not in MECHANISMS:
            raise UsageError(f"--sasl-mechanism {self['sasl-mechanism']}: write one of {', '.join(MECHANISMS)}")
        for option, needed in (("cert", "key"), ("key", "cert"), ("cert", "tls"), ("password-file", "login")):
            if self[option] is not None and self[needed] is None:
                raise UsageError(f"--{option} needs --{needed} as well")


def ask(options: ConnectionOptions, question: Question, askPassword: Callable[[str], str] = _ASK) -> Any:
    """
    Connect, ask, and close the connection.  It runs the reactor, so it can be
    called only once in a process.

    @param askPassword: asks for a password without showing it.
    @return: the result of C{question}.
    @raise CommandFailed: if the broker cannot be asked, or refuses.
    @raise KeyboardInterrupt: if the user interrupts it.
    """
    settings = connectionSettings(options, askPassword)

    def asked(reactor: Any) -> Deferred[Any]:
        clock = MonotonicClock(reactor)
        connecting = maybeDeferred(connect, reactor, clock, options["host"], options["port"], settings)
        return converse(connecting, question)

    try:
        return runReactorFor(asked)
    except ClientError as error:
        raise CommandFailed(explained(error, options)) from error


def runReactorFor(begin: Callable[[Any], Deferred[Any]]) -> Any:
    """
    Run the reactor until something is done, once in a process.

    @param begin: is called with the reactor once it runs.
    @return: what its L{Deferred} fires with; what that fails with is raised.
    @raise KeyboardInterrupt: if the user interrupts it.
    """
    from twisted.internet import reactor

    outcomes: list[Any] = []
    running: Any = reactor

    def finish(outcome: Any) -> None:
        # Stopping closes the connection, and the question fails once more.
        if not outcomes:
            outcomes.append(outcome)
            running.stop()

    def interrupted() -> None:
        if not outcomes:
            outcomes.append(Failure(KeyboardInterrupt()))  # type: ignore[no-untyped-call]

    running.callWhenRunning(lambda: begin(running).addBoth(finish))
    running.addSystemEventTrigger("before", "shutdown", interrupted)
    running.run()
    (outcome,) = outcomes
    if isinstance(outcome, Failure):
        outcome.raiseException()
    return outcome


@inlineCallbacks
def converse(connecting: Deferred[ClientConnection], question: Question) -> Generator[Deferred[Any], Any, Any]:
    """
    Ask C{question} once there is a connection, and close the connection.
    """
    connection = yield connecting
    try:
        answer = yield inlineCallbacks(question)(connection)
    finally:
        yield connection.close()
    return answer


def connectionSettings(options: ConnectionOptions, askPassword: Callable[[str], str]) -> ConnectionSettings:
    """
    Make connection settings from options.

    @raise CommandFailed: if a file cannot be used.
    """
    seconds = options["timeoutSeconds"]
    return ConnectionSettings(
        clientId="admission-command",
        tls=_tls(options),
        credentials=_credentials(options, askPassword),
        requestTimeoutSeconds=seconds,
        connectTimeoutSeconds=seconds,
    )


def explained(error: ClientError, options: ConnectionOptions) -> str:
    """
    Explain an error and its remedy in a sentence.
    """
    if isinstance(error, BrokerRefused):
        # The broker's own message says more than the name of the error.
        return f"the broker refuses: {error.message}" if error.message else str(error)
    if isinstance(error, AuthenticationFailed):
        return f"{error}; check --login, the password and --sasl-mechanism"
    if isinstance(error, UnsupportedApi):
        return f"{error}; it takes a broker that has client quotas (KIP-546)"
    reason = str(error).rstrip(".")
    if isinstance(error.__cause__, ConnectError | DNSLookupError):
        return f"{reason}; is a broker running there? --broker names another"
    failure = _TLS_FAILURE.search(reason)
    if failure is not None:
        return (
            f"TLS with {options['broker']} failed: {failure[1]}; --tls needs the authority that signed the broker's "
            "certificate, and --broker a name that is in it"
        )
    hints = ["is that a broker? --broker names another"]
    if options["tls"] is None:
        hints.append("if it wants TLS, give --tls")
    if options["login"] is None:
        hints.append("if it wants to know who you are, give --login")
    return f"{reason}; {'; '.join(hints)}"


def _tls(options: ConnectionOptions) -> Callable[[str], Any] | None:
    if options["tls"] is None:
        return None
    authorities = _CERTIFICATE.findall(_read("tls", options))
    if not authorities:
        raise CommandFailed(f"--tls {options['tls']}: there is no certificate in it; it takes PEM")
    try:
        trusted = trustRootFromCertificates(  # type: ignore[no-untyped-call]
            [Certificate.loadPEM(each) for each in authorities]
        )
    except Exception as error:
        # OpenSSL's own errors are lists of tuples.
        raise CommandFailed(f"--tls {options['tls']}: a certificate in it cannot be used; it takes PEM") from error
    own: PrivateCertificate | None = None
    if options["cert"] is not None:
        try:
            own = PrivateCertificate.loadPEM(  # type: ignore[no-untyped-call]
                _read("key", options) + b"\n" + _read("cert", options)
            )
        except CommandFailed:
            raise
        except Exception as error:
            raise CommandFailed(
                f"--cert {options['cert']} and --key {options['key']} cannot be used together; they take PEM, the key "
                "without a password"
            ) from error
    return lambda host: optionsForClientTLS(host, trusted, own)


def _credentials(options: ConnectionOptions, askPassword: Callable[[str], str]) -> Credentials | None:
    name = options["login"]
    if name is None:
        return None
    if options["password-file"] is None:
        password = askPassword(f"Password of {name}: ")
    else:
        lines = _read("password-file", options).splitlines()
        try:
            password = lines[0].decode() if lines else ""
        except UnicodeDecodeError as error:
            raise CommandFailed(f"--password-file {options['password-file']} is not UTF-8") from error
    return Credentials(options["sasl-mechanism"], name, password)


def _read(option: str, options: ConnectionOptions) -> bytes:
    try:
        return readBounded(options[option], mayBePipe=True)
    except OSError as error:
        raise CommandFailed(f"--{option} {options[option]}: {error.strerror}") from error
