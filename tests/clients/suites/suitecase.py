"""A suite: other people's software with a broker of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.clients.suites.results import Finding, Outcome, Suite
from tests.kit.brokerprocess import DYING_WITH_US, PATIENCE_SECONDS, BrokerProcess
from tests.kit.checkout import ROOT

PROGRAMS: Final = Path(__file__).parent / "programs"


def prepared(name: str, program: str, commands: Sequence[Sequence[str]], what: str) -> Path:
    """
    A directory in C{build} with a program and what it needs, from the registries; made once.

    @param name: of the directory.
    @param program: of the file in L{PROGRAMS}, which is copied each time.
    @param commands: what makes the directory.
    @param what: whose software it is.
    @raise SkipTest: where that is not installed or cannot be fetched.
    """
    (tool,) = {command[0] for command in commands}
    if shutil.which(tool) is None:
        raise SkipTest(f"{tool} is needed for {what}, and not installed")
    directory = ROOT / "build" / name
    if not directory.exists():
        unfinished = directory.with_name(f"{name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        shutil.copy(PROGRAMS / program, unfinished)
        for command in commands:
            ran = subprocess.run(command, cwd=unfinished, capture_output=True, text=True)
            if ran.returncode:
                raise SkipTest(f"{what} could not be fetched: {(ran.stdout + ran.stderr)[-300:]}")
        unfinished.rename(directory)
    shutil.copy(PROGRAMS / program, directory)
    return directory


class SuiteCase(SynchronousTestCase):
    """
    A test that notes what it finds.

    @cvar suite: which suite it is.
    @cvar properties: settings of the broker.
    @ivar broker: runs.
    """

    suite: ClassVar[Suite]
    properties: ClassVar[Sequence[str]] = ("group.initial.rebalance.delay.ms=0",)

    def setUp(self) -> None:
        """See what is there; start a broker; find nothing yet."""
        self.prepare()
        self.broker = BrokerProcess(*(word for each in self.properties for word in ("--set", each)))
        self.addCleanup(self.broker.remove)
        self.broker.start()
        self._findings: list[Finding] = []

    def prepare(self) -> None:
        """
        Fetch what is needed.

        @raise SkipTest: where it is not to be had.
        """
        raise NotImplementedError

    def ran(
        self,
        command: Sequence[str],
        input: str = "",
        cwd: Path | None = None,
        environment: Mapping[str, str] = {},
        seconds: float = PATIENCE_SECONDS,
    ) -> tuple[str, bool]:
        """
        Run a program.

        @param environment: what is added to ours.
        @param seconds: how long it may take.
        @return: what it has printed, and whether it ended well.
        """
        ended = subprocess.run(
            [*DYING_WITH_US, *command],
            input=input,
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return ended.stdout + ended.stderr, ended.returncode == 0

    def found(self, what: str, printed: str, looks: str, outcome: Outcome = Outcome.WORKS) -> None:
        """
        Note what a program has found, if it has.

        @param looks: part of what it is to have printed.
        """
        self.assertIn(looks, printed, what)
        self._findings.append(Finding(what, outcome.value, looks))

    def foundAll(self, printed: str, wanted: Mapping[str, Outcome]) -> None:
        """The same for a program that says what it does, in lines of the form C{what: what one sees}."""
        for each, outcome in wanted.items():
            self.assertIn(each, printed)
            what, _, looks = each.partition(": ")
            self._findings.append(Finding(what, outcome.value, looks))

    def note(self, what: str, outcome: Outcome, looks: str = "") -> None:
        """Note what was found otherwise."""
        self._findings.append(Finding(what, outcome.value, looks))

    def check(self) -> None:
        """See whether it is what the results say."""
        self.suite.check(self._findings)
