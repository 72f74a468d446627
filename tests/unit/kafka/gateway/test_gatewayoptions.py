"""Tests for L{admission.kafka.gateway.gatewayoptions} and L{admission.kafka.gateway.gatewaysettings}."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.gateway import gatewayoptions
from admission.kafka.gateway.gatewayoptions import GatewayOptions, Upstream, ephemeralPorts, parseUpstream
from admission.kafka.gateway.gatewaysettings import loadGatewaySettings
from admission.kafka.gateway.nodes import NodePorts
from admission.kafka.serving.kafkarequest import Address
from admission.kafka.serving.serveroptions import quotaDescriptions
from tests.kit.brokerprocess import certificates

ROOMY = ("--set", "queued.max.request.bytes=1GiB")
UPSTREAM = ("--upstream", "k1:9092")


class OptionsTestCase(SynchronousTestCase):
    """A test that parses options."""

    def parse(self, *arguments: str) -> GatewayOptions:
        """Parse C{arguments}, in which the cluster need not be."""
        options = GatewayOptions()
        upstream = () if "--upstream" in arguments else UPSTREAM
        options.parseOptions([*arguments, *upstream, *ROOMY])
        return options

    def assertMistake(self, arguments: list[str], *words: str) -> None:
        """A command line is refused in one sentence that has these words in it."""
        error = self.assertRaises(UsageError, self.parse, *arguments)
        for word in words:
            self.assertIn(word, str(error))
        self.assertNotIn("\n", str(error))


class UpstreamTests(OptionsTestCase):
    """C{--upstream} says where the cluster is."""

    def test_servers(self) -> None:
        """Several servers, in one option or in several."""
        options = self.parse("--upstream", "k1:9092, k2:9093", "--upstream", "[::1]:1")
        self.assertEqual(
            options["upstream"], Upstream([Address("k1", 9092), Address("k2", 9093), Address("::1", 1)], None)
        )

    def test_tls(self) -> None:
        """Servers with TLS have the options of an endpoint."""
        trusted = self.mktemp()
        os.mkdir(trusted)
        shutil.copy(certificates().authority, os.path.join(trusted, "authority.PEM"))
        how = f":trustRoots={trusted}"
        options = self.parse("--upstream", f"tls:k1:9093{how}", "--upstream", f"tls:k2:9093{how}")
        self.assertEqual(options["upstream"], Upstream([Address("k1", 9093), Address("k2", 9093)], how))
        self.assertEqual(parseUpstream([r"tls:\:\:1:9093"]), Upstream([Address("::1", 9093)], ""))

    def test_mistakes(self) -> None:
        """What is missing or makes no sense is refused."""
        for texts, words in (
            ([], "--upstream is needed"),
            (["k1"], "k1"),
            (["k1:9092,"], "--upstream"),
            (["k1:70000"], "k1:70000"),
            (["tls:k1"], "write tls:HOST:PORT"),
            (["tls:k1:x"], "write tls:HOST:PORT"),
            (["k1:1", "tls:k1:1"], "in the same way"),
            (["tls:k1:1:trustRoots=a", "tls:k1:1"], "in the same way"),
        ):
            self.assertIn(words, str(self.assertRaises(UsageError, parseUpstream, texts)))

    def test_trustRoots(self) -> None:
        """A directory of authorities has to be there, and has to have some."""
        empty, wrong = self.mktemp(), self.mktemp()
        os.mkdir(empty)
        os.mkdir(wrong)
        Path(wrong, "a.PEM").touch()
        for path, reason in (
            ("/nowhere", "cannot be read: No such file or directory; name a directory"),
            ("/dev/null", "cannot be read: Not a directory"),
            (empty, "has no file that ends in .pem"),
            ("", "has no file that ends in .pem"),
            (wrong, "has a.PEM, which is no certificate"),
        ):
            refused = self.assertRaises(UsageError, self.parse, "--upstream", f"tls:k1:9093:trustRoots={path}")
            self.assertIn(f"--upstream: trustRoots={path} {reason}", str(refused))

    def test_endpoints(self) -> None:
        """Nodes are connected to in the same way as the servers."""
        reactor = MemoryReactorClock()
        plain = Upstream([], None).endpoints(reactor, 10.0)("k1.example", 9092)
        self.assertIsInstance(plain, HostnameEndpoint)
        secure: Any = Upstream([], "").endpoints(reactor, 10.0)("k1.example", 9093)
        self.assertNotIsInstance(secure, HostnameEndpoint)


class ListenTests(OptionsTestCase):
    """C{--listen} has a port for each node behind it."""

    def test_nodes(self) -> None:
        """The first port is where clients begin, those behind it lead to the nodes."""
        options = self.parse("--listen", "tcp:9092:interface=127.0.0.1", "--node-ids", "5-6")
        ports = NodePorts(9092, 5, 6)
        self.assertEqual(
            [(each.description, each.nodeId, each.ports) for each in options["listeners"]],
            [
                ("tcp:9092:interface=127.0.0.1", None, ports),
                ("tcp:9093:interface=127.0.0.1", 5, ports),
                ("tcp:9094:interface=127.0.0.1", 6, ports),
            ],
        )
        self.assertEqual(options["nodeIds"], (5, 6))

    def test_default(self) -> None:
        """Sixteen nodes."""
        options = self.parse()
        self.assertEqual((len(options["listeners"]), options["nodeIds"]), (17, (0, 15)))

    def test_advertise(self) -> None:
        """Each listener has the advertised address for its clients."""
        options = self.parse("--listen", "tcp:port=1000", "--advertise", "kafka.example:9092", "--node-ids", "0-0")
        self.assertEqual([each.description for each in options["listeners"]], ["tcp:port=1000", "tcp:port=1001"])
        self.assertEqual(options["listeners"][0].ports.addressOf(0, "here"), ("kafka.example", 9093))

    def test_mistakes(self) -> None:
        """A port has to be a number, and there have to be ports behind it."""
        for arguments, words in (
            (["--listen", "unix:/tmp/socket"], "write the number of a port"),
            (["--listen", "tcp:0"], "write the number of a port"),
            (["--listen", "tcp:65530"], "nodes up to 15 would have ports up to 65546"),
            (["--node-ids", "5"], "write LOWEST-HIGHEST"),
            (["--node-ids", "6-5"], "write LOWEST-HIGHEST"),
            (["--node-ids", "0-1000"], "for up to 1000 nodes"),
            (["--upstream", "tls:k1:9093:certificate=/dev/zero"], "it is not a regular file: '/dev/zero'; its options"),
            (["--limits", "nobody"], "it is gateway or upstream"),
            (["--upstream-login", "PLAIN:gateway:/dev/zero"], "/dev/zero cannot be read: it is not a regular file"),
        ):
            self.assertMistake(arguments, words)

    def test_limits(self) -> None:
        """Limits are the gateway's, unless they are said to be the cluster's."""
        self.assertTrue(self.parse()["hasLimits"])
        self.assertFalse(self.parse("--limits", "upstream")["hasLimits"])

    def test_flags(self) -> None:
        """Flags are off unless given."""
        options = self.parse("--require-login")
        self.assertEqual((bool(options["require-login"]), bool(options["hidden-users"])), (True, False))


class EphemeralTests(SynchronousTestCase):
    """L{ephemeralPorts} asks the system."""

    def test_read(self) -> None:
        """Two numbers are a range, and anything else is unknown."""
        path = Path(self.mktemp())
        self.patch(gatewayoptions, "_EPHEMERAL_PORTS", path)
        self.assertIsNone(ephemeralPorts())
        for text, expected in (("32768\t60999\n", (32768, 60999)), ("1\n", None), ("a b", None)):
            path.write_text(text)
            self.assertEqual(ephemeralPorts(), expected)


class SettingsTests(SynchronousTestCase):
    """L{loadGatewaySettings} knows the settings of gateways beside those of all servers."""

    def test_values(self) -> None:
        """They have defaults, and may be set."""
        settings = loadGatewaySettings(None, [ROOMY[1]])
        self.assertEqual(
            (
                settings.upstreamConnectTimeoutSeconds,
                settings.upstreamSendTimeoutSeconds,
                settings.upstreamRefreshSeconds,
                settings.upstreamPoolPercent,
            ),
            (10.0, 10.0, 5.0, 50),
        )
        changed = loadGatewaySettings(None, [ROOMY[1], "upstream.send.timeout=3s", "upstream.pool.percent=20"])
        self.assertEqual((changed.upstreamSendTimeoutSeconds, changed.upstreamPoolPercent), (3.0, 20))

    def test_bounds(self) -> None:
        """They have bounds."""
        for text in ("upstream.pool.percent=0", "upstream.pool.percent=101", "upstream.refresh=1ms"):
            self.assertRaises(ValueError, loadGatewaySettings, None, [ROOMY[1], text])


class SharingTests(OptionsTestCase):
    """C{--shared-limits} has several gateways enforce one limit."""

    def test_policies(self) -> None:
        """What limits use of the cluster is shared, and what protects one process is not."""
        options = self.parse("--shared-limits", "topic:name=mine", "--gateways", "3")
        self.assertEqual((options["shared-limits"], options["gateways"]), ("topic:name=mine", 3))
        quotas = ["client-bytes:produce=1M", "request-time", "producer-ids:rate=10", "client-bytes:shared=no"]
        described = quotaDescriptions(options["settings"], quotas, options.sharesLimits)
        self.assertEqual([":shared=yes" in each for each in described], [True, False, True, False])

    def test_mistakes(self) -> None:
        """What contradicts it, or goes with it alone, is refused."""
        topic = ["--shared-limits", "topic"]
        self.assertMistake([*topic, "--share", "1/2"], "--share", "keep one")
        self.assertMistake([*topic, "--limits", "upstream"], "--limits upstream")
        self.assertMistake(["--gateways", "2"], "--shared-limits")
        self.assertMistake([*topic, "--gateways", "none"], "how many")
        self.assertMistake(["--shared-limits", "nothing"], "installed: topic")
        self.assertMistake(["--shared-limits", "topic:interval=5s"], "20ms to 1s")
        self.assertMistake(["--shared-limits", "topic:kept=1s"], "10m")
        self.assertMistake(["--shared-limits", "topic:name=a/b"], "letters")
        self.assertMistake([*topic, "--quota", "client-bytes:algorithm=window"], "algorithm=bucket")
        self.assertMistake(["--quota", "client-bytes:shared=yes"], "--shared-limits", "--processes")

    def test_processes(self) -> None:
        """Processes of one gateway share limits, too, and each has a part of the pool."""
        options = self.parse("--processes", "4")
        self.assertEqual((options.processes, options.sharesLimits, options["shared-limits"]), (4, True, None))
        self.assertFalse(self.parse("--processes", "1").sharesLimits)
        for count in ("0", "65", "-1", "many"):
            self.assertMistake(["--processes", count], f"--processes {count}", "1 to 64")
        several = ["--processes", "2"]
        self.assertMistake([*several, "--share", "1/2"], "--share and --processes", "--shared-limits")
        self.assertMistake([*several, "--gateways", "2"], "--gateways goes with --shared-limits")
        self.assertMistake([*several, "--quota", "client-bytes:algorithm=window"], "algorithm=bucket")
        self.assertMistake(
            ["--processes", "64", "--pool", "bounded:1GiB", "--set", "socket.request.max.bytes=20MiB"],
            "in 64 processes",
        )
