"""kcat, the command."""

from __future__ import annotations

import shutil

from twisted.trial.unittest import SkipTest

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import SuiteCase


class KcatTests(SuiteCase):
    """What its users do with a topic."""

    suite = Suite("kcat", "kcat 1.7", "kcat, as Debian has it")

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        if shutil.which("kcat") is None:
            raise SkipTest("kcat is not installed")

    def tried(self, what: str, wanted: str, input: str = "", outcome: Outcome = Outcome.WORKS) -> None:
        """
        Use it.

        @param what: the command line, but for where the broker is.
        @param wanted: part of what it is to print.
        @param input: what it reads.
        """
        printed, isWell = self.ran(["kcat", "-b", self.address, *what.split()[1:]], input)
        wanted, outcome = self.expected(what, wanted, outcome)
        self.assertEqual(isWell, outcome is Outcome.WORKS, printed)
        self.found(what, printed, wanted, outcome)

    def test_commands(self) -> None:
        """Everything is as the results say."""
        self.tried("kcat -P -t events -K : -z lz4", "", "key:first\nkey:second\n")
        self.tried("kcat -L -t events", 'topic "events" with ')
        self.tried("kcat -C -t events -o beginning -e -q", "first\nsecond")
        self.tried("kcat -C -t events -o beginning -e -q -J", '"key":"key","payload":"second"')
        self.tried("kcat -Q -t events:0:0", "events [0] offset ")
        self.tried("kcat -G readers -X auto.offset.reset=earliest -e -q events", "second")
        self.tried(
            "kcat -P -t events -X transactional.id=t",
            "Transactional Id authorization failed: this broker coordinates groups only; it has no transactions",
            "third\n",
            Outcome.REFUSED,
        )
        self.check()
