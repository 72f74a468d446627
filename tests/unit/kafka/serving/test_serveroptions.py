"""Tests for L{admission.kafka.serving.serveroptions}."""

from __future__ import annotations

import os
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.task import Clock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.gateway.gatewayoptions import GatewayOptions
from admission.kafka.serving import serveroptions
from admission.kafka.serving.kafkarequest import Address
from admission.kafka.serving.serveroptions import Listener, buildControl, buildPool, poolDescription
from admission.metrics.registry import SensorRegistry
from admission.quotas.metering import Windows
from admission_plugins.bounded import BoundedPool, UnboundedPool
from admission_plugins.clientquotas import ClientBytes

QUEUED = "queued.max.request.bytes"
LARGEST = "socket.request.max.bytes"
#: Whatever the machine has, so that the defaults do not matter.
ROOMY = ("--set", f"{QUEUED}=1GiB")


class OptionsTestCase(SynchronousTestCase):
    """A test that parses options."""

    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def assertMistake(self, arguments: list[str], *words: str) -> None:
        """A command line is refused in one sentence that has these words in it."""
        error = self.assertRaises(UsageError, self.parse, *arguments)
        for word in words:
            self.assertIn(word, str(error))
        self.assertNotIn("\n", str(error))


class ListenTests(OptionsTestCase):
    """C{--listen} and C{--advertise}."""

    def test_default(self) -> None:
        """Without options the broker is there for this machine, on Kafka's port."""
        options = self.parse()
        (listener,) = options["listeners"]
        self.assertEqual((listener.description, listener.advertised), ("tcp:9092:interface=127.0.0.1", None))
        self.assertIsInstance(listener.endpoint, TCP4ServerEndpoint)
        self.assertEqual((options["data"], options["config"]), ("data", None))

    def test_several(self) -> None:
        """Endpoints keep their order, and each has its own address."""
        options = self.parse(
            *("--listen", "tcp:1", "-l", "unix:/tmp/broker", "--advertise", "a:1", "--advertise", "[::1]:2")
        )
        pairs = [(listener.description, listener.advertised) for listener in options["listeners"]]
        self.assertEqual(pairs, [("tcp:1", Address("a", 1)), ("unix:/tmp/broker", Address("::1", 2))])

    def test_certificates(self) -> None:
        """It is known which endpoints ask clients for certificates, whatever is put before them."""
        endpoint: Any = None
        for description, isAsked in (
            ("tcp:9092", False),
            ("ssl:9093:privateKey=mtls:certKey=mtls.pem", False),
            ("mtls:9093:privateKey=key:certKey=certificate:caKey=authority", True),
            ("haproxy:mtls:9093:privateKey=key", True),
        ):
            self.assertIs(Listener(description, endpoint, None).asksForCertificates, isAsked, description)

    def test_pairing(self) -> None:
        """There is an advertised address for each endpoint, or for none."""
        self.assertMistake(["--advertise", "a:1", "--listen", "tcp:1", "--listen", "tcp:2"], "1 times", "2 times")
        self.assertMistake(["--advertise", "a:1", "--advertise", "a:2"], "2 times", "1 times")
        self.assertMistake(["--advertise", "host"], "--advertise host: write HOST:PORT")

    def test_badEndpoint(self) -> None:
        """An endpoint that cannot be made is refused with what is wrong and an example."""
        for text in ("", "tcp", "carrier:pigeon", "tcp:1:no=2", "tcp:nosuchservice", "ssl:1"):
            self.assertMistake(["--listen", text], f"--listen {text}", "tcp:9092:interface=127.0.0.1")
        self.assertMistake(["--listen", "ssl:1:privateKey=no/key"], f"'no/key' from {os.getcwd()}; write an endpoint")
        pipe = self.mktemp()
        os.mkfifo(pipe)
        for path in ("/dev/zero", pipe):
            for name in ("privateKey", "certKey", "extraCertChain", "dhParameters"):
                self.assertMistake(["--listen", f"ssl:1:{name}={path}"], f"{name}={path}: ", "it is not a regular file")
        self.assertMistake(["--status", "tcp"], "--status tcp: it takes other arguments; write an endpoint")
        self.assertMistake(["--status", "tcp:1:backlog=x"], "--status tcp:1:backlog=x: 'x' is not a number; write")


class EncodingTests(OptionsTestCase):
    """What the command writes, and later its log, is written whatever the terminal's encoding is."""

    def test_escaped(self) -> None:
        """What the encoding lacks is escaped, also where the command line has a mistake."""
        written = BytesIO()
        self.patch(sys, "stdout", TextIOWrapper(written, "latin-1", write_through=True))
        self.assertRaises(UsageError, self.parse, "--quota", "\u20ac")
        sys.stdout.write("\u20ac")
        self.assertEqual(written.getvalue(), b"\\u20ac")


class LoginTests(OptionsTestCase):
    """The ports at which clients have to log in."""

    def assertNeeded(self, expected: list[bool], *arguments: str) -> None:
        """These are the ports of a command line where clients have to log in."""
        listeners = self.parse(*arguments)["listeners"]
        self.assertEqual([bool(each.checkers) for each in listeners], expected)

    def test_everywhere(self) -> None:
        """Without a port, a way to log in is for all."""
        two = ["--listen", "tcp:1", "--listen", "unix:/tmp/broker"]
        self.assertNeeded([False, False], *two)
        self.assertNeeded([True, True], *two, "--auth", "memory:alice:secret")

    def test_byPort(self) -> None:
        """With a port, it is for that port alone, however the endpoint names it, and in place of the others."""
        ports = ["--listen", "tcp:1", "--listen", "tcp:interface=127.0.0.1:port=2", "--listen", "haproxy:tcp:3"]
        for port, expected in (("1", [True, False, False]), ("2", [False, True, False]), ("3", [False, False, True])):
            self.assertNeeded(expected, *ports, "--auth", f"{port}=memory:alice:secret")
        listeners = self.parse(*ports, "--auth", "memory:a:b", "--auth", "2=memory:c:d", "--auth", "2=memory:e:f")
        first, second, third = [each.checkers for each in listeners["listeners"]]
        self.assertEqual(first, third)
        self.assertEqual([set(each.users) for each in second], [{b"c"}, {b"e"}])

    def test_noSuchPort(self) -> None:
        """A port where nothing listens is a mistake, and so is a way to log in that makes no sense."""
        two = ["--listen", "tcp:9092", "--listen", "tcp:10092"]
        self.assertMistake([*two, "--auth", "9093=memory:a:secret"], "port 9093", "--listen", "are 9092, 10092")
        self.assertMistake(["--listen", "unix:/b", "--auth", "9093=memory:a:secret"], "are without numbers")
        self.assertMistake([*two, "--auth", "9092=nonsense:secret"], "--auth: no checker is called 'nonsense'")


class SettingsTests(OptionsTestCase):
    """C{--config} and C{--set}."""

    def config(self, text: str) -> str:
        path = Path(self.mktemp())
        path.write_text(text)
        return str(path)

    def test_settings(self) -> None:
        """Properties come from the file and from the command line."""
        options = self.parse("--config", self.config("num.partitions=3\n"), "--set", "broker.id=7", *ROOMY)
        settings = options["settings"]
        self.assertEqual((settings.numPartitions, settings.brokerId), (3, 7))

    def test_chosenPool(self) -> None:
        """
        The largest request is held against the pool that C{--pool} chooses, not against the default of the one that
        it replaces.
        """
        options = self.parse("--pool", "bounded:1TiB", "--set", f"{LARGEST}=1GiB")
        self.assertEqual(options["settings"].socketRequestMaxBytes, 1 << 30)
        self.assertMistake(["--pool", "bounded:1TiB", "--set", f"{LARGEST}=1GiB", "--set", f"{QUEUED}=1MiB"], QUEUED)

    def test_mistakes(self) -> None:
        """What is unknown, makes no sense, contradicts itself or cannot be read is refused, saying where it was."""
        path = self.config("num.partitions=3\nnum.partition=1\n")
        self.assertMistake(["--config", path], f"{path}:2", "num.partitions")
        self.assertMistake(["--config", "/no/such/file"], "/no/such/file")
        self.assertMistake(["--set", "num.partitions"], "NAME=VALUE")
        self.assertMistake(["--set", "num.partitions=many"], "--set num.partitions=many")
        self.assertMistake(["--set", "num.partitions=1", "--set", "num.partitions=2"], "num.partitions=2", "keep one")
        self.assertMistake(["--set", f"{QUEUED}=1MiB"], QUEUED, LARGEST)

    def test_otherArguments(self) -> None:
        """Arguments that belong to nothing are refused."""
        self.assertMistake(["data"], "number of arguments")
        self.assertMistake(["--no-such-option"], "no-such-option")
        self.assertMistake(["--data"], "data")

    def test_usage(self) -> None:
        """The usage text shows commands that work, each on a line of its own."""
        lines = self.parse().getUsage().splitlines()
        examples = [line.strip() for line in lines if line.strip().startswith("twistd -n admission ")]
        self.assertEqual(len(examples), 6)
        for example in examples:
            # The others name files that are not there.
            if not any(word in example for word in ("ssl:", "--config")):
                self.parse(*example.split()[3:])


class ConfiguredTests(OptionsTestCase):
    """Options in the file of properties."""

    def config(self, *lines: str) -> str:
        """The path of a file of such lines."""
        path = Path(self.mktemp())
        path.write_text("\n".join(lines))
        return str(path)

    def test_all(self) -> None:
        """
        What is on the command line may be in the file: one value, or several with commas, in one
        line or in several.
        """
        path = self.config(
            "listeners=tcp:9092:interface=127.0.0.1, tcp:9093:interface=127.0.0.1",
            "advertised.listeners=a.example:9092,a.example:9093",
            "status=tcp:9090:interface=127.0.0.1",
            "auth=memory:alice:secret,withComma",
            "quota=client-bytes:produce=4M, request-time:percent=50",
            "quota=concurrency:limit=5",
            "pool=fair:64MiB",
            "order=fifo",
            "purgatory=calllater",
            "log.retention.hours=24",
        )
        options = self.parse("--config", path)
        self.assertEqual([each.description for each in options["listeners"]], [
            "tcp:9092:interface=127.0.0.1", "tcp:9093:interface=127.0.0.1",
        ])  # fmt: skip
        self.assertEqual([each.advertised.port for each in options["listeners"]], [9092, 9093])
        self.assertEqual(options["statusListener"].description, "tcp:9090:interface=127.0.0.1")
        self.assertEqual([len(each.checkers) for each in options["listeners"]], [1, 1])
        self.assertEqual(
            options["quota"], ["client-bytes:produce=4M", "request-time:percent=50", "concurrency:limit=5"]
        )
        self.assertEqual((options["pool"], options["order"], options["purgatory"]), ("fair:64MiB", "fifo", "calllater"))

    def test_mistakes(self) -> None:
        """A mistake is told with its place, and what is on the command line as well is refused."""
        for line, arguments, words in (
            ("listeners=tcp:9092", ["--listen", "tcp:9093"], "--listen is given, and listeners at"),
            ("pool=fair:1MiB", ["--pool", "bounded:1MiB"], "--pool is given, and pool at"),
            ("auth=memory:a:b", ["--auth", "memory:c:d"], "--auth is given, and auth at"),
            ("quota=nonsense", [], ":1: --quota: no quota policy is called"),
            ("listeners=udp:1", [], "--listen udp:1"),
            ("auth=nonsense:secret", [], ":1: --auth: no checker is called 'nonsense'"),
        ):
            self.assertMistake(["--config", self.config(line), *arguments], words)

    def test_gateway(self) -> None:
        """What a gateway does not have is a mistake in its file."""
        error = self.assertRaises(
            UsageError,
            GatewayOptions().parseOptions,
            ["--upstream", "127.0.0.1:1", "--config", self.config("purgatory=wheel")],
        )
        self.assertIn(":1: purgatory is not used here", str(error))


class ControlTests(SynchronousTestCase):
    """L{buildControl}."""

    def test_kafkasNames(self) -> None:
        """Limits and sensors of the quotas have the names that Kafka's operators know; other servers' have others."""
        control = buildControl(
            loadSettings(None, (), False), ["client-bytes:received=1k", "producer-ids:rate=5"], Clock()
        )
        self.assertEqual(control.limitNames, ["consumer_byte_rate", "producer_byte_rate", "producer_ids_rate"])
        other = AdmissionControl([("client-bytes", ClientBytes(Windows(11, 1.0)))])
        for each, names in ((control, ("Produce", "Fetch")), (other, ("Received", "Sent"))):
            registry = SensorRegistry(lambda: 0.0)
            each.addSensors(registry)
            self.assertLessEqual({f"client-bytes.{name}.byte-rate" for name in names}, registry.families.keys())


class PoolTests(OptionsTestCase):
    """C{--pool} and what the properties say of the same."""

    def build(self, description: str | None, *assignments: str) -> Any:
        return buildPool(loadSettings(None, assignments), description, self)

    def seconds(self) -> float:
        return 0.0

    def test_fromProperties(self) -> None:
        """Without C{--pool} the properties decide."""
        pool = self.build(None, f"{QUEUED}=64MiB", f"{LARGEST}=1MiB")
        self.assertIsInstance(pool, BoundedPool)
        self.assertEqual((pool.sizeBytes, pool.largestBytes), (64 << 20, 1 << 20))
        for off in ("0", "-1"):
            self.assertIsInstance(self.build(None, f"{QUEUED}={off}"), UnboundedPool)

    def test_default(self) -> None:
        """Without either there is a bound all the same."""
        pool = self.build(None)
        self.assertIsInstance(pool, BoundedPool)
        self.assertLessEqual(pool.largestBytes, 100 << 20)

    def test_fromDescription(self) -> None:
        """C{--pool} says it with more to choose from."""
        pool = self.build("bounded:32MiB:strict=yes", f"{LARGEST}=8MiB")
        self.assertEqual((pool.sizeBytes, pool.largestBytes, pool.strict), (32 << 20, 8 << 20, True))
        self.assertEqual(self.build("bounded:32MiB").largestBytes, 32 << 20)
        self.assertIsInstance(self.build("unbounded"), UnboundedPool)

    def test_agreement(self) -> None:
        """The same may be said twice."""
        self.parse("--pool", "bounded:1GiB", *ROOMY)
        self.parse("--pool", "unbounded", "--set", f"{QUEUED}=0")

    def test_contradictions(self) -> None:
        """What contradicts each other is refused, naming both and where the property was given."""
        for pool, size in (("bounded:2GiB", "2GiB"), ("unbounded", "no bound")):
            self.assertMistake(["--pool", pool, *ROOMY], f"--pool {pool} means {size}", f"--set {QUEUED}=1GiB")
        self.assertMistake(["--pool", "bounded:1GiB", "--set", f"{QUEUED}=0"], "means 1GiB", "means no bound")

    def test_tooSmall(self) -> None:
        """A pool that hands out less than the largest request that was asked for is refused."""
        for pool, largest in (("bounded:1MiB", "1MiB"), ("bounded:64MiB:max=1MiB", "1MiB")):
            self.assertMistake(
                ["--pool", pool, "--set", f"{LARGEST}=2MiB"],
                f"allows requests of {largest} and {LARGEST} 2MiB (--set {LARGEST}=2MiB)",
            )

    def test_forNobody(self) -> None:
        """A pool that no client's first requests would fit in is refused, however it was made so small."""
        for arguments, words in (
            (["--pool", "bounded:1"], "--pool bounded:1 allows requests of 1B"),
            (["--pool", "fair:4095"], "--pool fair:4095 allows requests of 4095B"),
            (["--pool", "bounded:1MiB:max=100B"], "--pool bounded:1MiB:max=100B allows requests of 100B"),
            (["--pool", "bounded:1MiB", "--set", f"{LARGEST}=7"], "--pool bounded:1MiB allows requests of 7B"),
            (["--set", f"{QUEUED}=9", "--set", f"{LARGEST}=9"], f"{QUEUED} allows requests of 9B"),
        ):
            self.assertMistake(arguments, words, f"let the pool and {LARGEST} have 4KiB or more")
        self.parse("--pool", "bounded:4KiB")

    def test_divided(self) -> None:
        """Of several processes each has an equal part of the pool, however that is given, unless it has no bound."""
        settings = loadSettings(None, [f"{QUEUED}=64MiB", f"{LARGEST}=1MiB"])
        for description, divided in (
            (None, f"bounded:{16 << 20}"),
            ("bounded:64MiB", f"bounded:{16 << 20}"),
            ("bounded:64MiB:strict=yes:max=1MiB", f"bounded:{16 << 20}:strict=yes:max=1MiB"),
            ("fair:size=64MiB:max=67108864", f"fair:size={16 << 20}:max={16 << 20}"),
            ("unbounded", "unbounded"),
        ):
            self.assertEqual(poolDescription(settings, description, 4), divided)
        self.assertEqual(buildPool(settings, None, self, 4).sizeBytes, 16 << 20)
        self.assertIsInstance(buildPool(loadSettings(None, [f"{QUEUED}=0"]), None, self, 4), UnboundedPool)

    def test_notDivided(self) -> None:
        """A pool whose size is in none of its arguments is refused, and so is a part too small for a request."""
        settings = loadSettings(None, [f"{QUEUED}=64MiB", f"{LARGEST}=20MiB"])
        error = self.assertRaises(UsageError, buildPool, settings, None, self, 4)
        self.assertIn(f"{QUEUED} in 4 processes (--processes) allows requests of 16MiB and {LARGEST} 20MiB", str(error))
        self.patch(serveroptions, "buildChosen", lambda *_: BoundedPool(1 << 30, 1 << 20))
        error = self.assertRaises(UsageError, buildPool, loadSettings(None, []), "roomy:factor=3", self, 4)
        self.assertIn("--pool roomy:factor=3 cannot be divided among 4 processes", str(error))

    def test_bad(self) -> None:
        """A pool or an order that cannot be built is refused when the options are parsed."""
        for order, word in (("rounds:3", "expected rounds"), ("alphabetical", "alphabetical")):
            self.assertMistake(["--order", order], "--order", word)
        for pool, word in (
            ("bounded", "bounded:SIZE"),
            ("bounded:many", "many"),
            ("bounded:1MiB:max=2MiB", "2MiB"),
            ("bounded:1MiB:strict=perhaps", "yes or no"),
            ("swimming", "swimming"),
        ):
            self.assertMistake(["--pool", pool], "--pool", word)
