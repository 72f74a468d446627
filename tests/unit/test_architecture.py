"""The recipes in ARCHITECTURE.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import admission
from tests.kit.checkout import ROOT

_PROGRAM = """
import io
from twisted.internet.task import Clock
from admission import IMemoryPoolFactory, IQuotaPolicyFactory, PolicyContext, Request, buildPolicy
from admission.clock import wallSeconds
from admission.gate.gate import buildGate
from admission.metrics import SensorRegistry
from admission.cli import main
from admission.kafka.broker.servedapis import SERVED
from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.wire.codec import encodeResponse
from admission.kafka.wire.versions import BY_KEY
from admission.recording import REQUESTS, RequestEvent
from admission.recording.tables import RECORDED_REQUESTS

assert SERVED[BY_KEY[41].name].serve(None, None) == {"tokens": ()}
assert encodeResponse(41, 3, {"tokens": ()})
assert loadSettings(None, ["fetch.min.bytes.max=2MiB"]).fetchMinBytesMax == 2 << 20
context = PolicyContext(Clock(), wallSeconds)
policy = buildPolicy(IQuotaPolicyFactory, "request-size:1KiB", context)
large = policy.decide(Request("Produce", "alice", "", "", 1025), 0.0)
assert (large.admitted, large.reason) == (False, "a request may have 1KiB"), large
gate = buildGate(buildPolicy(IMemoryPoolFactory, "bounded:1MiB", context), context)
registry = SensorRegistry(context.clock.seconds)
gate.addSensors(registry)
assert dict(registry)["RequestsWaitingForTurn"] == 0
assert main(["policies"]) == 0
assert RequestEvent(1, 0.0, isTLS=1).isTLS and REQUESTS.columns[-1].name == "is_tls"
assert len(RECORDED_REQUESTS) == 2, "there is no room for it"
"""


class RecipesTests(SynchronousTestCase):
    """A newcomer does what the recipes say."""

    def test_work(self) -> None:
        """Every diff applies to this checkout, and together they do what they promise."""
        if not Path(admission.__file__).is_relative_to(ROOT / "src"):
            raise SkipTest("the recipes are about a checkout, and what is installed here is a copy")
        if shutil.which("git") is None:
            raise SkipTest("git applies the diffs, and is not installed")
        diffs = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.M | re.S)
        self.assertEqual(len(diffs), 6)
        tree = Path(self.mktemp())
        for name in ("src", "plugins", "twisted", "docs"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "dropin.cache"))
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
        for diff in diffs:
            applied = subprocess.run(
                ["git", "apply", "-"], cwd=tree, env=environment, input=diff, capture_output=True, text=True
            )
            self.assertEqual(applied.returncode, 0, f"{applied.stderr}\n{diff}")
        paths = [str((tree / part).resolve()) for part in ("src", "plugins", ".")]
        tried = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            cwd=tree,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(tried.returncode, 0, tried.stderr)
        self.assertIn("request-size", tried.stdout)
