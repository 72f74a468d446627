"""
The examples of how to deploy a broker and a gateway fit them.

Neither systemd nor a container engine needs to run; what can be known without them is checked.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import yaml
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from admission.commands.kafka.doctorservers import BrokerDoctorOptions, GatewayDoctorOptions, ServerDoctorOptions
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.brokersettings import Settings
from admission.kafka.gateway.gatewayoptions import GatewayOptions
from admission.kafka.gateway.gatewaysettings import GatewaySettings
from admission.kafka.serving.serveroptions import ServerOptions
from admission.kafka.serving.serversettings import RESERVED_DESCRIPTORS
from admission.units import parseSeconds
from tests.kit.checkout import ROOT

UNITS = ROOT / "examples" / "systemd"
DOCKER = ROOT / "examples" / "docker"
KUBERNETES = ROOT / "examples" / "kubernetes"


class DeploymentTestCase(SynchronousTestCase):
    """
    A test of command lines.

    @cvar command: what C{twistd} runs.
    @cvar options: what that understands.
    """

    command: ClassVar[str] = "admission"
    options: ClassVar[type[ServerOptions]] = Options

    def parse(self, words: list[str]) -> ServerOptions:
        """Parse what C{twistd} is given, with an empty file for every file of properties."""
        self.assertEqual(words[0].rpartition("/")[2], "twistd")
        name = words.index(self.command, 1)
        before, after = words[1:name], words[name + 1 :]
        # A daemon would leave the process that watches it, and a process file would stay behind.
        self.assertEqual(sorted(before), ["--nodaemon", "--pidfile="])
        options = self.options()
        options.parseOptions(self.withoutFiles(after))  # type: ignore[no-untyped-call]
        return options

    def withoutFiles(self, words: list[str]) -> list[str]:
        """The same with an empty file of properties."""
        empty = Path(self.mktemp())
        empty.touch()
        return [str(empty) if before == "--config" else each for before, each in zip(["", *words], words, strict=False)]


# Only a mixin at run time, or its tests would be run without a unit.
if TYPE_CHECKING:
    _Base = DeploymentTestCase
else:
    _Base = object


class UnitCases(_Base):
    """
    Rules for a unit.

    @cvar unit: its file.
    @cvar doctor: the command that looks at the machine before, and what it understands.
    @cvar descriptors: how many connections there may be, on both sides of the server.
    @cvar closeSeconds: how long a stop may wait for clients.
    """

    unit: ClassVar[str]
    doctor: ClassVar[tuple[str, type[ServerDoctorOptions]]]
    descriptors: ClassVar[int]
    closeSeconds: ClassVar[float]

    def setUp(self) -> None:
        self.path = UNITS / self.unit
        lines = [each for each in self.path.read_text("utf-8").splitlines() if each and each[0] not in "#["]
        self.lines = dict(each.split("=", 1) for each in lines)
        self.assertEqual(len(self.lines), len(lines), "a setting comes twice")

    def wordsOf(self, name: str) -> list[str]:
        """The words of a command, with the variables of the unit."""
        variables = dict(each.split("=", 1) for each in shlex.split(self.lines.get("Environment", "")))
        words = [
            re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], each) for each in shlex.split(self.lines[name])
        ]
        self.assertFalse([each for each in words if "$" in each])
        return words

    def analyze(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What systemd says of it, as if everything were installed."""
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            raise SkipTest("there is no systemd-analyze")
        unit = Path(self.mktemp()).absolute() / self.unit
        for name in ("twistd", "admission"):
            program = unit.parent / "bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        unit.write_text(self.path.read_text("utf-8").replace("/opt/admission/", f"{unit.parent}/"))
        command = [analyze, "--no-pager", *words, str(unit)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_verify(self) -> None:
        """systemd has nothing to say against it, but that nothing is installed here."""
        result = self.analyze("verify", "--man=no")
        said = [line for line in result.stderr.splitlines() if self.unit in line]
        self.assertEqual((result.returncode, said), (0, []), result.stderr)

    def test_security(self) -> None:
        """systemd calls its exposure at most 2 of 10."""
        result = self.analyze("security", "--offline=true", "--threshold=20")
        if "unrecognized option" in result.stderr:
            raise SkipTest("this systemd-analyze looks at running services only")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_start(self) -> None:
        """The command line is one that the server understands, on what the unit may write."""
        options = self.parse(self.wordsOf("ExecStart"))
        state = f"/var/lib/{self.lines['StateDirectory']}"
        self.assertEqual(Path(options["data"]).parent, Path(state))
        self.assertEqual(self.lines["WorkingDirectory"], state)
        self.assertIn(f"--config /etc/{self.lines['ConfigurationDirectory']}/", self.lines["ExecStart"])
        self.assertEqual(self.lines["ProtectSystem"], "strict")

    def test_doctor(self) -> None:
        """The doctor looks at the same as the server is told, and does not keep the server from starting."""
        program, command, *words = self.wordsOf("ExecStartPre")
        name, kind = self.doctor
        self.assertEqual((program[0], command), ("-", name))
        options = kind()
        options.parseOptions(self.withoutFiles(words))
        told = self.wordsOf("ExecStart")
        self.assertEqual(words, told[told.index(self.command, 1) + 1 :])

    def test_stop(self) -> None:
        """A server that drains is not killed, and no other process of its is told to stop while it does."""
        self.assertEqual((self.lines["KillSignal"], self.lines["KillMode"]), ("SIGTERM", "mixed"))
        self.assertGreater(parseSeconds(self.lines["TimeoutStopSec"]), 2 * self.closeSeconds)

    def test_limits(self) -> None:
        """As many connections as are allowed by default can be open, and the pool's default has something to go by."""
        self.assertGreaterEqual(int(self.lines["LimitNOFILE"]), self.descriptors + RESERVED_DESCRIPTORS)
        self.assertIn("MemoryMax", self.lines)

    def test_tls(self) -> None:
        """What pyOpenSSL cannot live with is not switched on."""
        self.assertNotIn("MemoryDenyWriteExecute", self.lines)


class BrokerUnitTests(UnitCases, DeploymentTestCase):
    """C{examples/systemd/admission.service}."""

    unit = "admission.service"
    doctor = ("doctor", BrokerDoctorOptions)
    descriptors = Settings().maxConnections
    closeSeconds = Settings().closeGraceTimeoutSeconds


class GatewayUnitTests(UnitCases, DeploymentTestCase):
    """C{examples/systemd/admission-gateway.service}."""

    command = "admission-gateway"
    options = GatewayOptions
    unit = "admission-gateway.service"
    doctor = ("doctor-gateway", GatewayDoctorOptions)
    # A client has a connection to a node besides its own.
    descriptors = 2 * GatewaySettings().maxConnections
    closeSeconds = GatewaySettings().closeGraceTimeoutSeconds

    def test_hardening(self) -> None:
        """It is as shut off as the broker's."""
        _, ours = self.path.read_text("utf-8").split("\nProtectSystem=")
        _, brokers = (UNITS / "admission.service").read_text("utf-8").split("\nProtectSystem=")
        self.assertEqual(ours, brokers)

    def test_memory(self) -> None:
        """A process that is killed for want of memory does not end the others, as the gateway begins it again."""
        self.assertEqual(self.lines["OOMPolicy"], "continue")


class ImageTests(DeploymentTestCase):
    """C{examples/docker/Dockerfile}."""

    def setUp(self) -> None:
        text = (DOCKER / "Dockerfile").read_text("utf-8")
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", "")
        self.instructions = [tuple(line.split(maxsplit=1)) for line in lines.splitlines() if line.strip()]

    def last(self, name: str) -> str:
        """What the last instruction of that name says, the one that counts."""
        return [words for instruction, words in self.instructions if instruction == name][-1]

    def test_command(self) -> None:
        """
        Both lists together are a command line that the broker understands, without a shell that would keep the
        signals to itself; the data is in the volume.
        """
        words = [*json.loads(self.last("ENTRYPOINT")), *json.loads(self.last("CMD"))]
        options = self.parse(words)
        (volume,) = json.loads(self.last("VOLUME"))
        self.assertEqual(Path(options["data"]).parent, Path(volume))
        self.assertIn(f"tcp:{self.last('EXPOSE')}", [each.description for each in options["listeners"]])
        self.assertEqual(self.last("STOPSIGNAL"), "SIGTERM")

    def test_sources(self) -> None:
        """What is copied is there, and not ignored; together it is what the package is made of."""
        ignored = (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
        self.assertIn("*", ignored)
        copied = set(self._copied())
        for name in copied:
            self.assertTrue((ROOT / name).exists(), name)
        self.assertEqual({each[1:] for each in ignored if each.startswith("!")}, copied)
        setup = (ROOT / "setup.cfg").read_text("utf-8")
        self.assertLessEqual(set(re.findall(r"^(?:readme|license_files|.*file:) *= *(\S+)$", setup, re.M)), copied)
        roots = {each.partition("/")[0] for each in re.findall(r"^ +\w+ = (\w+/\w+)$", setup, re.M)}
        self.assertLessEqual(roots | {"twisted"}, copied)

    def _copied(self) -> Iterator[str]:
        for instruction, words in self.instructions:
            if instruction == "COPY" and not words.startswith("--from"):
                *sources, _ = words.split()
                yield from sources

    def test_user(self) -> None:
        """The container does not run as root, and the cache of plug-ins was made by somebody who may write it."""
        self.assertNotIn(self.last("USER"), ("0", "root"))
        names = [name for name, _ in self.instructions]
        making = next(index for index, (_, words) in enumerate(self.instructions) if "twistd --help" in words)
        lastCopy = len(names) - 1 - names[::-1].index("COPY")
        self.assertTrue(lastCopy < making < names.index("USER"))
        self.assertIn("-name dropin.cache -delete", self.instructions[making][1])

    def test_health(self) -> None:
        """The health check asks the page that is there for it, on the port where it is, by a program that compiles."""
        options, _, command = self.last("HEALTHCHECK").partition("CMD ")
        program, flag, source = json.loads(command)
        self.assertEqual((program, flag), ("python", "-c"))
        compile(source, "HEALTHCHECK", "exec")
        url = urlsplit(re.findall(r"'(http://[^']+)'", source)[0])
        self.assertIn(f"tcp:{url.port}:interface={url.hostname}", json.loads(self.last("ENTRYPOINT")))
        self.assertEqual(url.path, "/healthz")
        self.assertIn("--start-period", options)


class KubernetesTests(DeploymentTestCase):
    """C{examples/kubernetes/broker.yaml}."""

    def setUp(self) -> None:
        documents = yaml.safe_load_all((KUBERNETES / "broker.yaml").read_text("utf-8"))
        self.service, self.brokers = (each["spec"] for each in documents)
        self.pod = self.brokers["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.told = self.parse([*self.container["command"], *self.container["args"]])

    def test_ports(self) -> None:
        """The service has the port that clients are told, and the container all that the broker listens at."""
        self.assertEqual(self.brokers["template"]["metadata"]["labels"], self.service["selector"])
        (port,) = self.service["ports"]
        self.assertIn(f"--advertise={self.brokers['serviceName']}:{port['port']}", self.container["args"])
        listening = {*(each.description for each in self.told["listeners"]), self.told["status"]}
        self.assertEqual(listening, {f"tcp:{each['containerPort']}" for each in self.container["ports"]})

    def test_probes(self) -> None:
        """Each asks the status port; the one after which a container is killed does not ask whether it is healthy."""
        asked = {name: self.container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
        self.assertEqual(
            {name: each["path"] for name, each in asked.items()},
            {"startup": "/healthz", "readiness": "/healthz", "liveness": "/status.json"},
        )
        self.assertEqual({f"tcp:{each['port']}" for each in asked.values()}, {self.told["status"]})

    def test_stop(self) -> None:
        """A broker that drains is not killed."""
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], 2 * Settings().closeGraceTimeoutSeconds)

    def test_image(self) -> None:
        """The image's user may write where the data is, and its memory is limited."""
        dockerfile = (DOCKER / "Dockerfile").read_text("utf-8")
        self.assertIn(f"USER {self.pod['securityContext']['runAsUser']}\n", dockerfile)
        (mount,) = self.container["volumeMounts"]
        self.assertEqual(Path(self.told["data"]).parent, Path(mount["mountPath"]))
        self.assertEqual(mount["name"], self.brokers["volumeClaimTemplates"][0]["metadata"]["name"])
        self.assertIn("memory", self.container["resources"]["limits"])
