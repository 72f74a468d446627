"""
The policy in C{examples/custom_policy} is a distribution of its own: installed
beside us, it is found, works in a broker, and passes its own tests.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT, TWISTD, BrokerProcess, until
from tests.system.test_documentation import blocksOf

EXAMPLE = ROOT / "examples" / "custom_policy"
DROP_IN = "twisted/plugins/acme_background_dropin.py"
ENTRY_POINT = "acme_background-1.0.dist-info/entry_points.txt"


@cache
def installed() -> Path:
    """
    Have pip build and install a copy of the example, once in a run.  The build
    fetches setuptools, as it does for everybody.

    @return: the directory that it is in.
    """
    scratch = Path(tempfile.mkdtemp(prefix="admission-custom-policy-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    source = shutil.copytree(EXAMPLE, scratch / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    result = subprocess.run(
        [*pip, "--target", scratch / "site", source], cwd=scratch, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return scratch / "site"


class CustomPolicyTests(SynchronousTestCase):
    """The example, installed."""

    def site(self, without: str | None = None) -> Path:
        """The installed files, or a copy of them that lacks one."""
        if without is None:
            return installed()
        copy = Path(shutil.copytree(installed(), Path(self.mktemp()).absolute()))
        copy.joinpath(without).unlink()
        return copy

    def environment(self, site: Path) -> dict[str, str]:
        """The environment of a process that finds it beside us."""
        return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(site), ENVIRONMENT["PYTHONPATH"]])}

    def output(self, site: Path, *command: str) -> str:
        """What a command prints, far from the checkout."""
        result = subprocess.run(
            command,
            cwd=site,
            env=self.environment(site),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def broker(self, site: Path, *options: str) -> BrokerProcess:
        """A running broker that finds it."""
        broker = BrokerProcess(*options)
        broker.command = ["env", f"PYTHONPATH={self.environment(site)['PYTHONPATH']}", *TWISTD]
        self.addCleanup(broker.remove)
        broker.start()
        return broker

    def throttledMs(self, producer: Any) -> float:
        """Send a record, and look for how long a producer has been told to wait at most."""
        producer.send("topic", b"x" * 1000).get(PATIENCE_SECONDS)
        milliseconds: float = producer.metrics()["producer-metrics"]["throttle-time-max"]
        return milliseconds

    def assertWorks(self, broker: BrokerProcess) -> None:
        """A client in the background is throttled, and another is not."""
        from kafka import KafkaProducer

        settings: dict[str, Any] = {"bootstrap_servers": broker.address, "enable_idempotence": False, "acks": 1}
        with closing(KafkaProducer(client_id="background", **settings)) as background:
            until(lambda: self.throttledMs(background) > 0)
            self.assertLessEqual(self.throttledMs(background), 1000)
        with closing(KafkaProducer(client_id="app", **settings)) as app:
            self.assertEqual([max(self.throttledMs(app), 0) for _ in range(5)], [0] * 5)
        self.assertEqual(broker.complaints(), [])

    def test_listed(self) -> None:
        """
        It is listed once, whichever of its drop-in and its entry point is
        there, and both at once are no conflict.
        """
        for without, providedBy in [
            (None, "twisted.plugins.acme_background_dropin"),
            (ENTRY_POINT, "twisted.plugins.acme_background_dropin"),
            (DROP_IN, "entry point background (acme_background:background) of acme-background"),
        ]:
            listing = self.output(self.site(without), *TWISTD, "admission", "--help-quota")
            [line] = [line for line in listing.splitlines() if line.startswith("  background ")]
            self.assertTrue(line.endswith(providedBy), line)

    def test_dropIn(self) -> None:
        """A broker uses it by its drop-in, with a limit from the description."""
        self.assertWorks(self.broker(self.site(ENTRY_POINT), "--quota", "background:0.05"))

    def test_itsOwnTests(self) -> None:
        """It passes its own tests, the contract's among them."""
        output = self.output(installed(), sys.executable, "-m", "unittest", "discover", "-v", str(EXAMPLE / "tests"))
        self.assertIn("test_others", output)
        self.assertIn("test_replayKey", output)
        self.assertRegex(output, r"(?m)^OK$")


class ExampleTests(SynchronousTestCase):
    """The example as its readers see it."""

    def test_small(self) -> None:
        """It is a hundred lines in all, empty ones aside."""
        files = [*EXAMPLE.rglob("*.py"), EXAMPLE / "pyproject.toml"]
        lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line]
        self.assertLessEqual(len(lines), 100)

    def test_manual(self) -> None:
        """The manual shows all of its files, as they are."""
        document = ROOT.joinpath("docs", "write-a-policy.md").read_text(encoding="utf-8")
        shown = {
            block.word.removeprefix("file="): block.text
            for block in blocksOf(document)
            if block.word.startswith("file=")
        }
        files = {
            str(path.relative_to(EXAMPLE)): path.read_text(encoding="utf-8")
            for path in [*EXAMPLE.rglob("*.py"), EXAMPLE / "pyproject.toml"]
        }
        self.assertEqual({name: shown.get(name) for name in files}, files)
