"""
The examples of how to deploy a broker fit the broker.

Neither systemd nor a container engine runs here; what can be known without them is checked.
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
from urllib.parse import urlsplit

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from admission.commands.kafka.doctorservers import BrokerDoctorOptions
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.brokersettings import Settings
from admission.kafka.serving.serversettings import RESERVED_DESCRIPTORS
from admission.units import parseSeconds
from tests.kit.checkout import ROOT

UNIT = ROOT / "examples" / "systemd" / "admission.service"
DOCKER = ROOT / "examples" / "docker"


class DeploymentTestCase(SynchronousTestCase):
    """A test of command lines."""

    def parse(self, words: list[str]) -> Options:
        """Parse what C{twistd} is given, with an empty file for every file of properties."""
        self.assertEqual(words[0].rpartition("/")[2], "twistd")
        before, after = words[1 : words.index("admission", 1)], words[words.index("admission", 1) + 1 :]
        # A daemon would leave the process that watches it, and a process file would stay behind.
        self.assertEqual(sorted(before), ["--nodaemon", "--pidfile="])
        options = Options()
        options.parseOptions(self.withoutFiles(after))  # type: ignore[no-untyped-call]
        return options

    def withoutFiles(self, words: list[str]) -> list[str]:
        """The same with an empty file of properties."""
        empty = Path(self.mktemp())
        empty.touch()
        return [str(empty) if before == "--config" else each for before, each in zip(["", *words], words, strict=False)]


class UnitTests(DeploymentTestCase):
    """C{examples/systemd/admission.service}."""

    def setUp(self) -> None:
        lines = [each for each in UNIT.read_text("utf-8").splitlines() if each and each[0] not in "#["]
        self.lines = dict(each.split("=", 1) for each in lines)
        self.assertEqual(len(self.lines), len(lines), "a setting comes twice")

    def test_verify(self) -> None:
        """systemd has nothing to say against it, but that nothing is installed here."""
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            raise SkipTest("there is no systemd-analyze")
        unit = Path(self.mktemp()).absolute() / UNIT.name
        for name in ("twistd", "admission"):
            program = unit.parent / "bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        unit.write_text(UNIT.read_text("utf-8").replace("/opt/admission/", f"{unit.parent}/"))
        command = [analyze, "verify", "--man=no", str(unit)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said = [line for line in result.stderr.splitlines() if UNIT.name in line]
        self.assertEqual((result.returncode, said), (0, []), result.stderr)

    def test_start(self) -> None:
        """The command line is one that the broker understands, on what the unit may write."""
        options = self.parse(shlex.split(self.lines["ExecStart"]))
        state = f"/var/lib/{self.lines['StateDirectory']}"
        self.assertEqual(Path(options["data"]).parent, Path(state))
        self.assertEqual(self.lines["WorkingDirectory"], state)
        self.assertIn(f"--config /etc/{self.lines['ConfigurationDirectory']}/", self.lines["ExecStart"])
        self.assertEqual(self.lines["ProtectSystem"], "strict")

    def test_doctor(self) -> None:
        """The doctor looks at the same endpoints and directories, and does not keep the broker from starting."""
        start = self.parse(shlex.split(self.lines["ExecStart"]))
        program, command, *words = shlex.split(self.lines["ExecStartPre"])
        self.assertEqual((program[0], command), ("-", "doctor"))
        options = BrokerDoctorOptions()
        options.parseOptions(self.withoutFiles(words))
        self.assertEqual(options["data"], start["data"])
        self.assertEqual(options["listen"], [each.description for each in start["listeners"]])

    def test_stop(self) -> None:
        """A broker that drains is not killed, and no other process of its is told to stop while it does."""
        self.assertEqual((self.lines["KillSignal"], self.lines["KillMode"]), ("SIGTERM", "mixed"))
        self.assertGreater(parseSeconds(self.lines["TimeoutStopSec"]), 2 * Settings().closeGraceTimeoutSeconds)

    def test_limits(self) -> None:
        """As many connections as are allowed by default can be open, and the pool's default has something to go by."""
        self.assertGreaterEqual(int(self.lines["LimitNOFILE"]), Settings().maxConnections + RESERVED_DESCRIPTORS)
        self.assertIn("MemoryMax", self.lines)

    def test_tls(self) -> None:
        """What pyOpenSSL cannot live with is not switched on."""
        self.assertNotIn("MemoryDenyWriteExecute", self.lines)


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
