"""A suite: other people's software with a broker of its own, or a gateway."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.clients.suites.results import BROKER, Finding, Outcome, Page, Suite
from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS, BrokerProcess
from tests.kit.checkout import ROOT
from tests.kit.longform import isLongForm

LIMITED: Final = "limited"
"""The client id that L{SuiteCase.limit} limits."""

LIMIT: Final = ("--quota", "client-bytes:algorithm=bucket:burst=1s", "--set=super.users=User:ANONYMOUS")
"""Options of a server where it can."""

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
    @cvar page: where its findings are told.
    @cvar isLong: whether it runs only when the long form is asked for.
    @cvar properties: settings of the broker.
    @cvar otherwise: by what was tried, what a user sees and what becomes of it, where that is not what the suite says.
    @ivar address: where clients begin.
    """

    suite: ClassVar[Suite]
    page: ClassVar[Page] = BROKER
    isLong: ClassVar[bool] = False
    properties: ClassVar[Sequence[str]] = ("group.initial.rebalance.delay.ms=0",)
    otherwise: ClassVar[Mapping[str, tuple[str, Outcome]]] = {}

    def setUp(self) -> None:
        """See what is there; start a server; find nothing yet."""
        if self.isLong and not isLongForm():
            raise SkipTest("takes long: make test-long runs it")
        self.prepare()
        self.address = self.startServer()
        self._findings: list[Finding] = []

    def startServer(self) -> str:
        """
        Start a broker, which is removed when the test ends.

        @return: where clients begin.
        """
        broker = BrokerProcess(*LIMIT, *(word for each in self.properties for word in ("--set", each)))
        self.addCleanup(broker.remove)
        broker.start()
        return broker.address

    def limit(self) -> None:
        """From now on, the client L{LIMITED} may produce 20 kB in a second."""
        command = [sys.executable, "-m", "admission", "quotas", "set", "--broker", self.address]
        words = ["--client-id", LIMITED, "producer_byte_rate=20k"]
        printed, isWell = self.ran([*command, *words], environment=ENVIRONMENT)
        self.assertTrue(isWell, printed)

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

    def expected(self, what: str, looks: str, outcome: Outcome) -> tuple[str, Outcome]:
        """What a user sees here, and what becomes of it."""
        return self.otherwise.get(what, (looks, outcome))

    def found(self, what: str, printed: str, looks: str, outcome: Outcome = Outcome.WORKS) -> None:
        """
        Note what a program has found, if it has.

        @param looks: part of what it is to have printed.
        """
        looks, outcome = self.expected(what, looks, outcome)
        self.assertIn(looks, printed, what)
        self.note(what, outcome, looks)

    def foundAll(self, printed: str, wanted: Mapping[str, Outcome], software: str = "") -> None:
        """
        The same for a program that says what it does, in lines of the form C{what: what one sees}.

        @param software: whose program it is, if the suite has several.
        """
        for each, outcome in wanted.items():
            tried, _, looks = each.partition(": ")
            what = f"{software}: {tried}" if software else tried
            looks, outcome = self.expected(what, looks, outcome)
            self.assertIn(f"{tried}: {looks}", printed)
            self.note(what, outcome, looks)

    def note(self, what: str, outcome: Outcome, looks: str = "") -> None:
        """Note what was found otherwise."""
        self._findings.append(Finding(what, outcome.value, looks))

    def check(self) -> None:
        """See whether it is what the results say, and whether all that differs from the suite was tried."""
        self.assertEqual(set(self.otherwise) - {each.what for each in self._findings}, set())
        self.suite.check(self.page, self._command(), self._findings)

    def _command(self) -> str:
        module = Path(inspect.getfile(type(self))).relative_to(ROOT)
        environment = "ADMISSION_LONG=yes " if self.isLong else ""
        return f"{environment}python -m pytest {module} -k {type(self).__name__}"
