"""The integration tests of kafka-python, as it ships them but for a few time limits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from twisted.trial.unittest import SkipTest

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import SuiteCase
from tests.kit.checkout import ROOT

VERSION: Final = "3.0.12"

_KAFKA_VERSION: Final = "4.1.0"
_NEEDED: Final = ("pytest", "pytest-mock", "pytest-timeout", "lz4", "python-snappy", "zstandard")

_MOST_SECONDS: Final = 400

_OWN_BROKER: Final = "it starts a broker of its own"
_NO_REPLICAS: Final = "there is one broker, and partitions stay where they are"
_NO_TRANSACTIONS: Final = "there are no transactions: TransactionalIdAuthorizationFailedError"

DOES_NOT_APPLY: Final = {
    "test_admin_integration.test_alter_partition_reassignments": _NO_REPLICAS,
    "test_admin_integration.test_alter_replica_log_dirs": _NO_REPLICAS,
    "test_admin_integration.test_create_describe_delete_acls": "there are no access control lists",
    "test_admin_integration.test_describe_metadata_quorum": "there is no quorum of controllers",
    "test_consumer_integration.test_kafka_version_infer": "it wants the APIs of exactly the version that it is told",
    "test_producer_integration.test_transactional_producer_messages": _NO_TRANSACTIONS,
    "test_producer_integration.test_transactional_producer_offsets": _NO_TRANSACTIONS,
    "test_ssl_integration.TestSSLConnection.test_legacy_kafka_client_ssl": _OWN_BROKER,
    "test_ssl_integration.TestSSLConnection.test_ssl_handshake": _OWN_BROKER,
}
"""What does not pass, by its name, and why not."""

_SERVICE = """\
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""
"""What its archive lacks of the tests: how to start and stop a broker, which we do."""

_PATIENCE: Final = {
    ".get(timeout=1)": ".get(timeout=30)",
    ".get(timeout=5)": ".get(timeout=30)",
    ".poll(timeout_ms=2000)": ".poll(timeout_ms=30_000)",
}
"""For what its tests wait a few seconds for, whatever else the machine has to do."""


class KafkaPythonTests(SuiteCase):
    """
    They are run against a broker that is there.

    They want a machine that has nothing else to do: kafka-python forgets an assignment that comes between two of its
    short polls, and then reads nothing.
    """

    suite = Suite("kafka_python_itself", f"kafka-python {VERSION}: its own integration tests", "Python")
    isLong = True

    # They want broker 0, several partitions, and members that are missed soon.
    properties = (
        "group.initial.rebalance.delay.ms=0",
        "broker.id=0",
        "num.partitions=4",
        "group.min.session.timeout.ms=1s",
    )

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        self.directory = ROOT / "build" / f"kafka-python-{VERSION}"
        if not self.directory.exists():
            self._fetch()
        for path in (self.directory / "test" / "integration").glob("test_*.py"):
            text = path.read_text("utf-8")
            for impatient, patient in _PATIENCE.items():
                text = text.replace(impatient, patient)
            path.write_text(text, "utf-8")

    def _fetch(self) -> None:
        unfinished = self.directory.with_name(f"{self.directory.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        package = f"kafka-python=={VERSION}"
        self._install(unfinished, "-m", "pip", "download", "-q", "--no-binary=kafka-python", "--no-deps", package)
        (archive,) = unfinished.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(unfinished, filter="data")
        (tests,) = unfinished.glob("*/test")
        tests.rename(unfinished / "test")
        (unfinished / "test" / "__init__.py").touch()
        (unfinished / "test" / "service.py").write_text(_SERVICE, "utf-8")
        (unfinished / "servers" / _KAFKA_VERSION / "kafka-bin").mkdir(parents=True)
        self._install(unfinished, "-m", "venv", "venv")
        self._install(unfinished, "-m", "pip", "--python", "venv/bin/python", "install", "-q", package, *_NEEDED)
        unfinished.rename(self.directory)

    def _install(self, directory: Path, *arguments: str) -> None:
        ran = subprocess.run([sys.executable, *arguments], cwd=directory, capture_output=True, text=True)
        if ran.returncode:
            raise SkipTest(f"the tests of kafka-python could not be fetched: {ran.stderr[-300:]}")

    def outcomes(self, *arguments: str) -> dict[str, bool]:
        """
        Run tests.

        @return: of those that were not skipped, whether they passed.
        """
        environment = {"KAFKA_URI": f"kafka://{self.address}", "KAFKA_VERSION": _KAFKA_VERSION}
        command = ["venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        options = ["--rootdir=.", "--timeout=60", "--timeout-method=signal", "--tb=no", "--junitxml=results.xml"]
        printed, _ = self.ran(
            [*command, *options, *arguments], cwd=self.directory, environment=environment, seconds=_MOST_SECONDS
        )
        report = self.directory / "results.xml"
        self.assertTrue(report.exists(), printed)
        cases = list(ElementTree.parse(report).iter("testcase"))
        report.unlink()
        outcomes: dict[str, bool] = {}
        for case in cases:
            name = f"{case.get('classname', '').removeprefix('test.integration.')}.{case.get('name')}"
            if case.find("skipped") is None:
                outcomes[name] = not [*case.iter("failure"), *case.iter("error")]
        return outcomes

    def test_integration(self) -> None:
        """All pass, but for those of which the results say why not."""
        for name, hasPassed in self.outcomes("test/integration").items():
            self.assertNotEqual(hasPassed, name in DOES_NOT_APPLY, name)
            if hasPassed:
                self.note(name, Outcome.WORKS)
            else:
                self.note(name, Outcome.DOES_NOT_APPLY, DOES_NOT_APPLY[name])
        self.check()
