"""Tests for L{admission.kafka.serving.listenoptions}."""

from __future__ import annotations

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.listenoptions import BrokerOptions, parseHostPort


class ParseHostPortTests(SynchronousTestCase):
    """Addresses are read."""

    def test_address(self) -> None:
        """An address is a host and a port; an IPv6 address is in brackets."""
        self.assertEqual(parseHostPort("--broker", "broker.example:9092"), ("broker.example", 9092))
        self.assertEqual(parseHostPort("--broker", "192.0.2.1:65535"), ("192.0.2.1", 65535))
        self.assertEqual(parseHostPort("--broker", "[2001:db8::1]:1"), ("2001:db8::1", 1))

    def test_badAddress(self) -> None:
        """Anything else is refused with the right form; above all an IPv6 address without brackets."""
        for text in (
            *("", "host", "host:", ":9092", "host:port", "host:0", "host:65536", "host:-1", "host:9092x"),
            *("::1", "::1:9092", "[::1]", "[::1]:", "[]:9092", "[::1:9092", "::1]:9092", "a b:9092", "host:\u0669"),
        ):
            error = self.assertRaises(UsageError, parseHostPort, "--advertise", text)
            self.assertIn(f"--advertise {text}: write HOST:PORT", str(error))


class BrokerOptionsTests(SynchronousTestCase):
    """Options that the broker shares with the doctor."""

    def test_endpoints(self) -> None:
        """A broker listens on all that it is told, and on this machine alone unless it is told anything."""
        options = BrokerOptions()
        self.assertEqual(options.endpoints, ["tcp:9092:interface=127.0.0.1"])
        options.parseOptions(["--listen", "tcp:1", "-l", "tcp:2"])  # type: ignore[no-untyped-call]
        self.assertEqual(options.endpoints, ["tcp:1", "tcp:2"])
