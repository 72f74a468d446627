"""Processes of one server, which answer as scripts or real pages say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.registry import SensorRegistry
from admission.status.document import StatusDocument
from admission.status.pages import StatusPages
from admission.status.sections import Section
from admission.status.wholepages import ProcessAnswer
from tests.kit.statusfixture import NOW_SECONDS, TurningClock
from tests.kit.wrapped import Wrapped, wrapped


class StandInProcesses:
    """
    Processes of which a test says how they are.

    @ivar rows: what is said of them.
    @ivar problems: what is wrong, as far as it is known without asking.
    @ivar asked: what they were asked.
    @ivar scripts: what each answers, by page.
    @ivar silent: those that do not answer.
    """

    def __init__(self, count: int) -> None:
        self.rows = [
            {"process": number, "pid": 100 + number, "state": "serving", "sinceSeconds": 5.0, "restarts": 0}
            for number in range(1, count + 1)
        ]
        self.problems: list[str] = []
        self.asked: list[tuple[str, Mapping[str, str], int | None]] = []
        self.scripts: dict[str, list[tuple[int, str]]] = {}
        self.silent: set[int] = set()

    def ask(self, page: str, question: Mapping[str, str], process: int | None = None) -> Deferred[list[ProcessAnswer]]:
        """Fires with what those say that are not silent."""
        self.asked.append((page, question, process))
        numbers = [each["process"] for each in self.rows if process in (None, each["process"])]
        told = {number: self.answer(number, page, question) for number in numbers if number not in self.silent}
        return gatherResults(told.values(), consumeErrors=True).addCallback(
            lambda answers: [ProcessAnswer(number, *each) for number, each in zip(told, answers, strict=True)]
        )

    def answer(self, process: int, page: str, question: Mapping[str, str]) -> Deferred[tuple[int, str]]:
        """What was prepared."""
        answer: Deferred[tuple[int, str]] = Deferred()
        answer.callback(self.scripts[page][process - 1])
        return answer

    def fields(self, now: float) -> list[dict[str, Any]]:
        """What was prepared."""
        return self.rows

    def troubles(self, now: float) -> Iterator[str]:
        """What was prepared."""
        return iter(self.problems)

    def listeners(self) -> list[str]:
        """A port."""
        return ["127.0.0.1:9092"]


class RealProcesses(StandInProcesses):
    """
    Whole servers, in this process.

    @ivar servers: by number, from 1.
    @ivar documents: likewise.
    @ivar checks: likewise, why each is not healthy.
    """

    def __init__(self, case: SynchronousTestCase, clock: TurningClock, count: int, **kwargs: Any) -> None:
        """
        @param clock: for the turns in which pages are made.
        @param kwargs: see L{wrapped}.
        """
        super().__init__(count)
        self.servers: dict[int, Wrapped] = {}
        self.documents: dict[int, StatusDocument] = {}
        self.checks: dict[int, list[str]] = {}
        self._pages: dict[int, StatusPages] = {}
        for number in range(1, count + 1):
            server = self.servers[number] = wrapped(case, **kwargs)
            checks = self.checks[number] = []
            sensors = SensorRegistry(server.clock.seconds)
            server.factory.addSensors(sensors)
            document = self.documents[number] = StatusDocument(
                server.factory,
                sensors,
                lambda: NOW_SECONDS,
                [Section("nodes", lambda now, number=number: [{"nodeId": 7, "links": number, "lastError": None}])],
                [lambda now, checks=checks: list(checks)],
            )
            document.addSensors()
            self._pages[number] = StatusPages(clock, document, process=number)

    def answer(self, process: int, page: str, question: Mapping[str, str]) -> Deferred[tuple[int, str]]:
        """What the process says itself."""
        return self._pages[process].answer(page, question)

    def advance(self, seconds: float) -> None:
        """Let time pass for all of them."""
        for server in self.servers.values():
            server.clock.advance(seconds)
