"""kcat, the command."""

from __future__ import annotations

import shutil

from twisted.trial.unittest import SkipTest

from tests.clients.suites.results import Suite
from tests.clients.suites.suitecase import SuiteCase


class KcatTests(SuiteCase):
    """What its users do with a topic."""

    suite = Suite("kcat", "kcat 1.7", "kcat, as Debian has it")

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        if shutil.which("kcat") is None:
            raise SkipTest("kcat is not installed")

    def tried(self, what: str, wanted: str, input: str = "") -> None:
        """
        Use it.

        @param what: the command line, but for where the broker is.
        @param wanted: part of what it is to print.
        @param input: what it reads.
        """
        printed, isWell = self.ran(["kcat", "-b", self.broker.address, *what.split()[1:]], input)
        self.assertTrue(isWell, printed)
        self.found(what, printed, wanted)

    def test_commands(self) -> None:
        """Everything is as the results say."""
        self.tried("kcat -P -t events -K : -z lz4", "", "key:first\nkey:second\n")
        self.tried("kcat -L -t events", 'topic "events" with 1 partitions')
        self.tried("kcat -C -t events -o beginning -e -q", "first\nsecond")
        self.tried("kcat -C -t events -o beginning -e -q -J", '"key":"key","payload":"second"')
        self.tried("kcat -Q -t events:0:0", "events [0] offset 0")
        self.tried("kcat -G readers -X auto.offset.reset=earliest -e -q events", "second")
        self.check()
