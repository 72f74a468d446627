"""Python's libraries."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import ClassVar, Final

from tests.clients.suites.programs import pythons
from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import LIMITED, SuiteCase
from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.libraries import LIBRARIES

_MOST_SECONDS: Final = 300.0


class PythonsTests(SuiteCase):
    """
    A program for each.

    @cvar protocols: by library, that of groups which is tried besides the classic one.
    @cvar transactions: by library, what becomes of transactions, and what one sees.
    """

    protocols: ClassVar[Mapping[str, str]] = {}
    transactions: ClassVar[Mapping[str, Mapping[str, Outcome]]] = {
        library: {"transactions: at once: ": Outcome.REFUSED} for library in LIBRARIES
    }

    suite = Suite(
        "pythons",
        "Python's libraries",
        "Python",
        versions=f"confluent-kafka {version('confluent-kafka')}, kafka-python {version('kafka-python')}, "
        f"aiokafka {version('aiokafka')}",
    )

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}: they are installed with the tests."""

    def test_programs(self) -> None:
        """Everything is as the results say."""
        self.limit()
        for library in LIBRARIES:
            protocol = self.protocols.get(library)
            command = [
                sys.executable,
                "-m",
                pythons.__name__,
                library,
                self.address,
                LIMITED,
                *filter(None, [protocol]),
            ]
            printed, isWell = self.ran(command, environment=ENVIRONMENT, seconds=_MOST_SECONDS)
            self.assertTrue(isWell, printed)
            told = "" if library == "aiokafka" else ", and told so"
            looks = {
                **{
                    f"idempotent producer, compression {codec}, and a group: read {pythons.RECORDS}": Outcome.WORKS
                    for codec in pythons.CODECS
                },
                **self.transactions[library],
                f"three times as much as a limit allows in a second: held back{told}": Outcome.WORKS,
            }
            if protocol:
                looks[f"a group with group.protocol={protocol}: read {pythons.RECORDS}"] = Outcome.WORKS
            self.foundAll(printed, looks, library)
        self.check()
