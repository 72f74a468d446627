"""What works without the extras, and what says which of them it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.cli import COMMANDS
from admission.extras import EXTRAS
from tests.installation.test_packaging import build
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.checkout import ROOT
from tests.kit.documentation import Reader
from tests.kit.longform import longForm

TWISTD = ("-c", "from twisted.scripts.twistd import run; run()")
TWIST = ("-m", "twisted")
ADMISSION = ("-m", "admission")

NEEDS_KAFKA = {"quotas", "topics", "groups", "data"}
"""The commands of which nothing is left without it; the doctor names what is missing."""

NEEDS_SPARK = (
    "synth recording",
    "evaluate recording --candidate client-bytes --out results",
    "aggregate recording --out results",
    "audit recording --out results",
    "replay recording --candidate client-bytes --out results",
    "report results",
    "recording ship . file:///nowhere/at/all",
)

BASE = {
    "admission",
    "attrs",
    "mypy-extensions",
    "packaging",
    "prometheus-client",
    "pympler",
    "twisted",
    "zope-interface",
}
TWISTEDS = {
    "automat", "cffi", "constantly", "cryptography", "hyperlink", "idna", "incremental", "pycparser", "pyopenssl",
    "pyasn1", "pyasn1-modules", "service-identity", "typing-extensions",
}  # fmt: skip
"""What C{twisted[tls]} brings, in one version or another of its own requirements."""

IMPORTING = """
import json, sys
from importlib import import_module
failed = {}
for name in sys.argv[1:]:
    module, _, attribute = name.partition(":")
    try:
        getattr(import_module(module), attribute or "__name__")
    except ImportError as error:
        failed[name] = str(error)
json.dump(failed, sys.stdout)
"""

DESCRIBING = """
import json, sys
from twisted.internet.task import Clock
from admission import PolicyContext, buildPolicy, interfaces
from admission.plugins import listFactories
said = {}
for kind in ("MemoryPool", "WaitOrder", "Purgatory", "QuotaPolicy", "MetricsExporter"):
    interface = getattr(interfaces, f"I{kind}Factory")
    for each in listFactories(interface):
        examples = {"bounded": ":1MiB", "fair": ":1MiB", "spark": ":recording", "shed": ":kinds=report"}
        argument = examples.get(each.name, "")
        try:
            buildPolicy(interface, each.name + argument, PolicyContext(clock=Clock(), wallSeconds=lambda: 0.0))
        except ValueError as error:
            said[each.name] = str(error)
        else:
            said[each.name] = ""
json.dump(said, sys.stdout)
"""

SERVING = """
import socket
from urllib.request import urlopen

from twisted.internet import reactor
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThread
from twisted.protocols.wire import Echo

from admission import wrapFactory
from admission.status import statusSite

factory = wrapFactory(Factory.forProtocol(Echo), pool="share:10", quota="client-bytes:produce=1M:fetch=4M")
ports = [reactor.listenTCP(0, each, interface="127.0.0.1").getHost().port for each in (factory, statusSite(factory))]


def visit():
    with socket.create_connection(("127.0.0.1", ports[0])) as connection:
        connection.sendall(b"hello")
        assert connection.recv(5) == b"hello"
        for page, words in (("", "<title>"), ("metrics", "admission_"), ("explain?ip=127.0.0.1", "client-bytes")):
            assert words in urlopen(f"http://127.0.0.1:{ports[1]}/{page}").read().decode(), page
    print("served")


deferToThread(visit).addErrback(print).addBoth(lambda _: reactor.stop())
reactor.run()
"""


def ourModules() -> list[str]:
    """All modules but the drop-ins, which Twisted imports."""
    found = []
    for root in (ROOT / "src", ROOT / "plugins"):
        for path in sorted(root.rglob("*.py")):
            words = path.relative_to(root).with_suffix("").parts
            found.append(".".join(words[:-1] if words[-1] == "__init__" else words))
    return [name for name in found if not name.endswith("__main__") and not name.startswith("twisted")]


class LightInstallationCases(SynchronousTestCase):
    """An installation in which something is not there."""

    python: str | Path = sys.executable
    environment: Mapping[str, str]

    def setUp(self) -> None:
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()

    def run_(self, *arguments: str) -> tuple[int, str, str]:
        """
        Run Python.

        @return: its status and what it wrote to both streams.
        """
        result = subprocess.run(
            [self.python, *arguments],
            cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        self.assertNotIn("Traceback", result.stdout + result.stderr)
        return result.returncode, result.stdout, result.stderr

    def answers(self, program: str, *arguments: str) -> dict[str, str]:
        """What a program says in JSON."""
        status, output, errors = self.run_("-c", program, *arguments)
        self.assertEqual((status, errors), (0, ""))
        answers: dict[str, str] = json.loads(output)
        return answers

    def assertServes(self) -> None:
        """A server is protected as the README does it, with a page and a policy of one's own."""
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        chapters = [
            chapter
            for chapter in readme.split("\n## ")
            if chapter.startswith(("A Twisted server", "A policy of your own"))
        ]
        own = {**self.environment, "PATH": os.pathsep.join([str(Path(self.python).parent), os.environ["PATH"]])}
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.directory), own.get("PYTHONPATH")]))
        self.assertEqual(len(Reader(self.directory, own).follow("\n## ".join(chapters))), 3)
        self.environment = own
        status, output, errors = self.run_("-c", SERVING)
        self.assertEqual((status, output), (0, "served\n"), errors)

    def assertListed(self) -> None:
        """Twisted's commands list ours, and ours lists its own."""
        for command in (TWISTD, TWIST):
            status, output, errors = self.run_(*command, "--help")
            self.assertEqual((status, errors), (0, ""))
            self.assertRegex(output, r"\n +admission +A Kafka")
            self.assertRegex(output, r"\n +admission-gateway +A bounded")
        status, output, errors = self.run_(*ADMISSION, "--help")
        self.assertEqual((status, errors), (0, ""))
        for each in COMMANDS:
            self.assertRegex(output, rf"\n +{each.name} ")

    def assertNeeds(self, sentence: str, extra: str) -> None:
        """A sentence is one, and names the extra."""
        self.assertRegex(sentence, rf"^[^\n]* needs [\w, ]+: pip install 'admission\[{extra}\]'\n?$")


class WithoutTests(LightInstallationCases):
    """What is installed here, without the libraries of one extra or of both."""

    def without(self, *modules: str) -> None:
        """Have these be missing from now on."""
        # kio imports hypothesis where that is installed, and hypothesis does not expect that a module is hidden.
        hiding = f"import sys\nsys.modules.update(dict.fromkeys({(*modules, 'hypothesis')!r}))\n"
        self.directory.joinpath("sitecustomize.py").write_text(hiding)
        path = os.pathsep.join([str(self.directory), ENVIRONMENT["PYTHONPATH"]])
        self.environment = {**ENVIRONMENT, "PYTHONPATH": path}

    def assertWithoutKafka(self) -> None:
        """Each command that needs the extra says so, and the others do what they can."""
        for name in ("admission", "admission-gateway"):
            status, output, errors = self.run_(*TWISTD, "-n", name, "--help-pool")
            self.assertEqual((status, errors), (1, ""))
            self.assertNeeds(output.rpartition("\n-c -n: ")[2], "kafka")
            status, output, errors = self.run_(*TWIST, name, "--help")
            self.assertNotEqual(status, 0)
            self.assertIn("pip install 'admission[kafka]'", output + errors)
        for each in COMMANDS:
            status, output, errors = self.run_(*ADMISSION, each.name, "--help")
            if each.name in NEEDS_KAFKA:
                self.assertEqual((status, output), (1, ""))
                self.assertNeeds(errors, "kafka")
            else:
                self.assertEqual((status, errors), (0, ""), each.name)

    def assertWithoutSpark(self) -> None:
        for line in NEEDS_SPARK:
            status, output, errors = self.run_(*ADMISSION, *line.split())
            self.assertEqual((status, output), (1, ""), line)
            self.assertNeeds(errors, "spark")

    def test_neither(self) -> None:
        """
        All but what knows Kafka and what reads recordings can be imported, and a server can be protected; the rest says
        in a sentence which extra it needs.
        """
        self.without(*EXTRAS["kafka"], *EXTRAS["spark"])
        self.assertListed()
        self.assertWithoutKafka()
        self.assertWithoutSpark()
        others = (
            "admission.kafka",
            "admission.commands.kafka",
            "admission.offline",
            "admission.shipping",
            "pyspark_admission",
        )
        framework = [name for name in ourModules() if not name.startswith(others)]
        needing = {
            "admission.recording.arrow",
            "admission.recording.hdfs",
            *map("admission_plugins.{}".format, ("bloom", "producerids", "sealing")),
        }
        self.assertEqual(set(self.answers(IMPORTING, *framework)), needing)
        names = {
            "admission.kafka:Consumer": "kafka",
            "admission.kafka:encodeBatch": "kafka",
            "admission_plugins:ProducerIds": "kafka",
            "admission.offline:replay": "spark",
        }
        failed = self.answers(IMPORTING, *names)
        for name, extra in names.items():
            self.assertNeeds(failed[name], extra)
        self.assertPolicies({"producer-ids": "kafka", "spark": "spark"})
        self.assertServes()

    def assertPolicies(self, needing: Mapping[str, str]) -> None:
        """Policies that need an extra say so, and all others are built."""
        said = self.answers(DESCRIBING)
        self.assertEqual({name for name, sentence in said.items() if sentence}, set(needing))
        for name, extra in needing.items():
            self.assertNeeds(said[name], extra)
        for option, words in (
            ("--help-quota", "producer-ids"),
            ("--help-quota-type=producer-ids", "Needs admission[kafka]"),
        ):
            status, listed, errors = self.run_(*ADMISSION, "synth", option)
            self.assertEqual((status, errors), (0, ""))
            self.assertIn(words, listed)

    def test_kafkaAlone(self) -> None:
        """With the extra C{kafka} alone only what reads and writes recordings is missing."""
        self.without(*set(EXTRAS["spark"]) - set(EXTRAS["kafka"]))
        self.assertListed()
        self.assertWithoutSpark()
        self.assertPolicies({"spark": "spark"})
        for command in ((*TWISTD, "-n", "admission"), (*TWISTD, "-n", "admission-gateway"), (*ADMISSION, "quotas")):
            status, _, errors = self.run_(*command, "--help")
            self.assertEqual((status, errors), (0, ""))
        self.assertEqual(self.answers(IMPORTING, "admission.kafka:Consumer", "admission.kafka.broker.service"), {})

    def test_sparkAlone(self) -> None:
        """With the extra C{spark} alone recordings are made and read, the policy C{producer-ids} included."""
        self.without(*set(EXTRAS["kafka"]) - set(EXTRAS["spark"]))
        self.assertListed()
        self.assertWithoutKafka()
        self.assertPolicies({})
        synthetic = "synth recording --clients 2 --seconds 2 --quota producer-ids"
        status, _, errors = self.run_(*ADMISSION, *synthetic.split())
        self.assertEqual(status, 0, errors)
        offline = ("admission.offline", "admission.shipping", "admission_plugins", "pyspark_admission")
        self.assertEqual(self.answers(IMPORTING, *[name for name in ourModules() if name.startswith(offline)]), {})


@longForm
class InstalledTests(LightInstallationCases):
    """A fresh environment."""

    def test_base(self) -> None:
        """Without an extra C{pip install} brings little, and with that a server is protected."""
        target = Path(self.mktemp()).absolute()
        venv.create(target, with_pip=False)
        self.python = target / "bin" / "python"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python)]
        subprocess.run([*pip, "install", "--quiet", str(build().wheel)], check=True, timeout=300)
        listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True, timeout=60).stdout
        installed = {each["name"].lower().replace("_", "-").replace(".", "-") for each in json.loads(listed)}
        self.assertEqual(installed - TWISTEDS - {"pip", "setuptools"}, BASE)
        self.assertListed()
        self.assertServes()
