"""The demonstration of the gateway does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from examples.gateway_demo.__main__ import IDS
from tests.kit.apachekafka import classPath
from tests.kit.brokerprocess import ENVIRONMENT, ROOT
from tests.kit.longform import longForm

_COMMAND = [sys.executable, "-m", "examples.gateway_demo"]
_SECONDS = 10
_PATIENCE_SECONDS = 600.0


class GatewayDemoTests(SynchronousTestCase):
    """C{make demo-gateway}, and what it prints."""

    def test_withoutJava(self) -> None:
        """Without Java, the demonstration says in one sentence that it needs it."""
        nothing = Path(self.mktemp())
        nothing.mkdir()
        environment = {**ENVIRONMENT, "PATH": str(nothing.absolute())}
        ran = subprocess.run(_COMMAND, capture_output=True, text=True, cwd=ROOT, env=environment)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertRegex(ran.stderr, r"^the demo needs Java [^\n]*\n$")

    @longForm
    def test_demo(self) -> None:
        """
        The cluster remembers fewer producer ids of the rogue with the gateway than without, and the other user loses
        no record.
        """
        classes = os.path.dirname(classPath())
        demo = subprocess.Popen(
            [*_COMMAND, "--seconds", str(_SECONDS), "--kafka", classes],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=ENVIRONMENT,
        )
        try:
            said, complaints = demo.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            # It ends its nodes when it is asked to end, and could not if it was killed.
            demo.terminate()
            said, complaints = demo.communicate()
        self.assertEqual((demo.returncode, complaints), (0, ""), said)
        ends = re.findall(r"at the end: steady has (\d+) of (\d+) records acknowledged", said)
        self.assertEqual(len(ends), 2, said)
        for acknowledged, sent in ends:
            self.assertEqual(acknowledged, sent, said)
        found = re.search(r"rogue has left (\d+) producer ids in the cluster, with it (\d+)", said)
        assert found is not None, said
        before, behind = map(int, found.groups())
        # Tokens come back while it works, and while it is waited for.
        self.assertLessEqual(behind, IDS + IDS * (_SECONDS + 20) // 60)
        self.assertLess(behind, before)
