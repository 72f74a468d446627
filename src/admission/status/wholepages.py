# -*- test-case-name: tests.unit.status.test_wholepages -*-
"""
The status port of a server that consists of several processes: it asks all of them, and answers as one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.web.http import OK, SERVICE_UNAVAILABLE
from twisted.web.resource import Resource

from .._version import __version__
from ..metrics.process import ProcessUsage
from ..metrics.prometheus import CONTENT_TYPE, exposition, mergedExposition
from ..metrics.registry import SensorRegistry
from .document import KEPT_SECONDS
from .frontpage import frontPage
from .history import History
from .merging import Fields, mergedExplanation, mergedReasons, mergedStatus
from .pageresource import Answer, BadQuestion, LaterPage, Page, Unavailable, encoded

SERVING = "serving"
"""The state of a process that should answer."""

NO_ANSWER = "no process has answered in time"

PARENT = {"process": "parent"}
"""The label of what is measured of the process that asks the others."""


class ProcessAnswer(NamedTuple):
    """
    What a process has answered.

    @ivar process: its number, from 1.
    @ivar code: the HTTP status.
    @ivar text: the page, or the refusal.
    """

    process: int
    code: int
    text: str


class Processes(Protocol):
    """
    The processes of a server, as far as its pages ask them.
    """

    def ask(self, page: str, question: Mapping[str, str], process: int | None = None) -> Deferred[list[ProcessAnswer]]:
        """
        Ask all processes that run, or one of them, for a page.

        @param question: the parameters of the page.
        @return: fires with the answers that came in time, by number; fails only if it is cancelled.
        """

    def fields(self, now: float) -> list[dict[str, Any]]:
        """
        A row for each process: C{process}, C{pid} (L{None} if it does not run), C{state} ("serving", "starting",
        "draining", "waiting to be started again"), C{sinceSeconds} and C{restarts}.
        """

    def troubles(self, now: float) -> Iterator[str]:
        """
        Why no client should be sent here, as far as it is known without asking, a sentence each.
        """

    def listeners(self) -> list[str]:
        """
        The addresses at which the server listens.
        """


class WholePages:
    """
    The pages of L{StatusPages<admission.status.pages.StatusPages>}, for all processes together.

    @ivar root: the page for people, which is the parent of all others.
    @ivar history: the last hour; to be started and stopped by the server of the pages.
    """

    def __init__(
        self,
        clock: IReactorTime,
        seconds: Callable[[], float],
        wallSeconds: Callable[[], float],
        processes: Processes,
    ) -> None:
        """
        @param clock: for the turns in which pages are written.
        @param seconds: a monotonic clock, that of the sensors.
        @param wallSeconds: returns seconds since the epoch.
        """
        self._seconds = seconds
        self._wallSeconds = wallSeconds
        self._processes = processes
        self._startedSeconds = seconds()
        self._askedSeconds = float("-inf")
        self._fields: Fields = {}
        self._isAsking = False
        self._waiting: list[Deferred[Fields]] = []
        self._sensors = SensorRegistry(seconds)
        self._addSensors()
        self.history = History(self._document, clock)

        page = partial(LaterPage, clock)
        self.root: Resource = frontPage(
            clock,
            {
                "status.json": page(
                    "The state of all processes at this moment, or of one; its lists are of the largest.",
                    self._status,
                    ("process",),
                ),
                "history": Page(
                    clock,
                    "The numbers of status.json every ten seconds of the last hour.",
                    lambda question: self.history.pieces(),
                ),
                "explain": page(
                    "Which limits hold for a client, whom they were set for, and how much of each is used.",
                    self._explain,
                    ("clientId", "user", "ip", "process"),
                ),
                "quotas": page("The limits in force, by whom they are for, as one process has them.", self._quotas),
                "sensors": page("Everything that is measured, as it is now, by process.", self._measured),
                "metrics": page(
                    "Everything that is measured, in the text format of Prometheus.",
                    self._metrics,
                    contentType=CONTENT_TYPE.encode("ascii"),
                ),
                "healthz": page(
                    "Whether all is well; if not, the status is 503, and the reasons are here.", self._health
                ),
                "memory": page(
                    "Where the memory of a process is; taken when asked for, in a few seconds, and kept for ten.",
                    self._memory,
                    ("process",),
                ),
            },
        )

    def _addSensors(self) -> None:
        registry, processes = self._sensors, self._processes
        ProcessUsage().addSensors(registry)
        registry.addGauge("Healthy", lambda now: not any(processes.troubles(now)))
        registry.addGauge(
            "ProcessesServing", lambda now: sum(each["state"] == SERVING for each in processes.fields(now))
        )
        registry.addFamily(
            "ProcessRestarts",
            ("process",),
            lambda now: [((str(each["process"]),), each["restarts"]) for each in processes.fields(now)],
            isCounter=True,
        )

    # The contents of the pages

    async def _status(self, question: Mapping[str, str]) -> Answer:
        if "process" in question:
            return await self._one("status.json", question)
        return OK, encoded(await self._document())

    async def _explain(self, question: Mapping[str, str]) -> Answer:
        if "process" in question:
            return await self._one("explain", question)
        answers = await self._all("explain", question)
        explanations = [json.loads(each.text) for each in answers if each.code == OK]
        return (OK, encoded(mergedExplanation(explanations))) if explanations else _refusalIn(answers)

    async def _quotas(self, question: Mapping[str, str]) -> Answer:
        # One after the other, since there may be many limits, and all processes have the same.
        for row in sorted(self._processes.fields(self._seconds()), key=lambda row: row["state"] != SERVING):
            for answer in await self._processes.ask("quotas", question, row["process"]):
                return answer.code, answer.text
        raise Unavailable(NO_ANSWER)

    async def _measured(self, question: Mapping[str, str]) -> Answer:
        answers = await self._all("sensors", question)
        parts = [f'"{each.process}": {each.text}' for each in answers if each.code == OK]
        return (OK, f'{{"processes": {{\n{",".join(parts)}}}}}\n') if parts else _refusalIn(answers)

    async def _metrics(self, question: Mapping[str, str]) -> Answer:
        answers = await self._all("metrics", question)
        texts = [each.text for each in answers if each.code == OK]
        own = "".join(exposition(self._sensors, labels=PARENT))
        return (OK, "".join(mergedExposition([*texts, own]))) if texts else _refusalIn(answers)

    async def _health(self, question: Mapping[str, str]) -> Answer:
        answers = await self._processes.ask("healthz", question)
        reasons = self._reasons({each.process: _reasonsIn(each) for each in answers})
        if reasons:
            return SERVICE_UNAVAILABLE, encoded({"status": "unavailable", "reasons": reasons})
        return OK, encoded({"status": "ok"})

    async def _memory(self, question: Mapping[str, str]) -> Answer:
        if "process" not in question:
            raise BadQuestion(
                f"say which process: /memory?process=N, or admission memory --process N; N is {self._numbers()}"
            )
        return await self._one("memory", question)

    # What the processes say

    async def _all(self, page: str, question: Mapping[str, str]) -> list[ProcessAnswer]:
        """
        @raise Unavailable: if no process answers.
        """
        answers = await self._processes.ask(page, question)
        if not answers:
            raise Unavailable(NO_ANSWER)
        return answers

    async def _one(self, page: str, question: Mapping[str, str]) -> Answer:
        """
        The answer of the process that a question names.

        @raise BadQuestion: if there is no such process.
        @raise Unavailable: if it does not answer.
        """
        rest = dict(question)
        named = rest.pop("process")
        numbers = {str(each["process"]): each["process"] for each in self._processes.fields(self._seconds())}
        if named not in numbers:
            raise BadQuestion(f"there is no process {named!r}; write {self._numbers()}")
        for answer in await self._processes.ask(page, rest, numbers[named]):
            return answer.code, answer.text
        raise Unavailable(f"process {named} does not answer")

    def _numbers(self) -> str:
        return " or ".join(str(each["process"]) for each in self._processes.fields(self._seconds()))

    def _reasons(self, reasons: Mapping[int, list[str]]) -> list[str]:
        """
        Why no client should be sent here.

        @param reasons: those of the processes that have answered.
        """
        now = self._seconds()
        silent = [
            f"process {each['process']} has not answered in time"
            for each in self._processes.fields(now)
            if each["state"] == SERVING and each["process"] not in reasons
        ]
        return [*self._processes.troubles(now), *silent, *mergedReasons(reasons)] or ([] if reasons else [NO_ANSWER])

    def _document(self) -> Deferred[Fields]:
        """
        The state of all, asked for at most once in L{KEPT_SECONDS}, however many want it.

        @return: fails with L{Unavailable} if no process answers.
        """
        now = self._seconds()
        if not self._isAsking and now - self._askedSeconds < KEPT_SECONDS and self._fields:
            return succeed(self._fields)
        waiting: Deferred[Fields] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if not self._isAsking:
            self._isAsking = True
            self._askedSeconds = now
            asked = Deferred.fromCoroutine(self._taken())
            asked.addBoth(self._tell)
        return waiting

    async def _taken(self) -> Fields:
        answers = await self._all("status.json", {})
        documents = {each.process: json.loads(each.text) for each in answers if each.code == OK}
        if not documents:
            raise Unavailable("no process could say how it is; their logs say why")
        now, reasons = self._seconds(), self._reasons({n: each["health"]["reasons"] for n, each in documents.items()})
        return {
            **mergedStatus(documents),
            "version": __version__,
            "atSeconds": self._wallSeconds(),
            "uptimeSeconds": now - self._startedSeconds,
            "health": {"status": "unavailable" if reasons else "ok", "reasons": reasons},
            "listeners": self._processes.listeners(),
            "processes": [{**each, **_used(documents.get(each["process"]))} for each in self._processes.fields(now)],
        }

    def _tell(self, result: Any) -> None:
        """
        The round is over.

        @param result: the state of all, or the failure.
        """
        self._isAsking = False
        self._fields = result if isinstance(result, dict) else {}
        waiting, self._waiting = self._waiting, []
        # One of them may be cancelled by what another does, and is then no longer in the list.
        while waiting:
            # For a failure this is the same as errback.
            waiting.pop(0).callback(result)


def _refusalIn(answers: list[ProcessAnswer]) -> Answer:
    return answers[0].code, answers[0].text


def _reasonsIn(answer: ProcessAnswer) -> list[str]:
    said = json.loads(answer.text)
    # A page that has failed says something else.
    reasons: list[str] = said.get("reasons", []) if answer.code in (OK, SERVICE_UNAVAILABLE) else [said["error"]]
    return reasons


def _used(document: Mapping[str, Any] | None) -> Fields:
    """
    What a process takes, as its document says, if there is one.
    """
    process, connections = ({}, {}) if document is None else (document["process"], document["connections"])
    return {
        "cpuSeconds": process.get("cpuSeconds"),
        "residentBytes": process.get("residentBytes"),
        "connections": connections.get("open"),
    }
