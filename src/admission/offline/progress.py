# -*- test-case-name: tests.offline.test_progress -*-
"""
What a job is doing, how far it is, and how long the rest may take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, TextIO

from attrs import define, field, frozen

from .outputtables import AGGREGATE, AUDIT, REPLAY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tqdm import tqdm  # type: ignore[import-untyped]

_COSTS: Final[Mapping[str, Mapping[str, float]]] = {
    AGGREGATE: {
        "client_minute": 1.7,
        "top_clients": 0.1,
        "throttle_minute": 0.6,
        "throttle_hist": 0.1,
        "fairness_minute": 1.3,
        "starved_minute": 0.5,
        "pool_minute": 0.7,
        "pool_time": 0.9,
    },
    AUDIT: {"unreadable files": 0.4, "bloom_audit": 0.1, "quota_span": 2.4, "quota_summary": 0.4},
    REPLAY: {"limits and gaps": 2.0, "unreadable files": 0.4},
}
"""What steps took for each of ten million requests on two cores, in microseconds on the wall."""

_REPLAYING, _POOLS = "replaying policies", "replaying pools"
_TRYING = "trying "
# What all policies share, and each; and each pool.
_OF_REPLAY, _OF_POLICY, _OF_POOL = 8.0, 4.7, 3.9

_FORM: Final = "{percentage:3.0f}% {bar:20} {remaining} left  {desc}"
_FORM_WITHOUT_TIME: Final = "{percentage:3.0f}% {bar:20} {desc}"
_LEAST_SHARE: Final = 0.03
"""What has to be done for a forecast of the time left."""

_LOOK_SECONDS: Final = 0.5
_IDLE_LOOKS: Final = 20
"""After so many looks at which no task of a stage ran that is said."""


@frozen
class Plan:
    """
    The steps of jobs that are known before they begin, and what they take beside one another.

    @ivar costs: of each step.
    """

    costs: Mapping[str, float]

    @classmethod
    def of(cls, jobs: Sequence[str], candidates: int = 0, pools: int = 0, modes: int = 1) -> Plan:
        """
        @param jobs: of L{admission.offline.outputtables}.
        @param candidates: how many quota policies are tried.
        @param pools: how many pools are tried.
        @param modes: in how many modes.
        """
        costs = {name: cost for job in jobs for name, cost in _COSTS[job].items()}
        # What was in force is replayed beside the candidates.
        if candidates:
            costs[_REPLAYING] = modes * (_OF_REPLAY + _OF_POLICY * (candidates + 1))
        if pools:
            costs[_POOLS] = _OF_POOL * (pools + 1)
        return cls(costs)

    def costOf(self, line: str) -> float:
        """
        @param line: what is told when a step begins.
        @return: 0 for what is not planned.
        """
        if line.startswith("replaying "):
            return self.costs.get(_POOLS if line.startswith(_POOLS) else _REPLAYING, 0.0)
        return self.costs.get(line, 0.0)


@define(eq=False)
class StepBar:
    """
    A bar on a terminal, which moves on with steps and with Spark's tasks of the present one.  It may be used from
    several threads.

    @ivar plan: of what is to be done.
    @ivar file: where it is written.
    """

    plan: Plan
    file: TextIO
    _bar: tqdm | None = None
    _step: str = ""
    _cost: float = 0.0
    _shown: float = 0.0
    _tasks: dict[int, tuple[int, int]] = field(factory=dict)
    _idleLooks: int = 0
    _lock: Lock = field(factory=Lock)

    def begin(self, line: str) -> None:
        """
        The last step is done, and the next one begins.

        @param line: says what is done.
        """
        with self._lock:
            bar = self._opened()
            bar.update(self._cost - self._shown)
            self._step, self._cost, self._shown = line, self.plan.costOf(line), 0.0
            self._tasks.clear()
            if self._cost and not bar.n:
                # Until now Spark was started, which does not take the longer the more there is to do.
                bar.reset()
            if line.startswith(_TRYING):
                # Nobody knew that it would be needed.
                self._cost = self.plan.costs.get(_REPLAYING, 0.0)
                bar.total += self._cost
            self._describe(bar)

    def look(self, tasks: Mapping[int, tuple[int, int]], running: int) -> None:
        """
        @param tasks: of each stage that has begun how many tasks are done, and how many there are.
        @param running: how many run.
        """
        with self._lock:
            # A stage that is not told of any more is done.
            gone = {stage: (count, count) for stage, (_, count) in self._tasks.items() if stage not in tasks}
            self._tasks.update({**gone, **tasks})
            done, count = (sum(numbers) for numbers in zip(*self._tasks.values(), (0, 0), strict=True))
            # Stages come one after another: a later one may have more tasks than all before it.
            shown = max(self._cost * done / max(count, 1), self._shown)
            self._idleLooks = 0 if running or not tasks else self._idleLooks + 1
            bar = self._opened()
            bar.update(shown - self._shown)
            self._shown = shown
            self._describe(bar)

    def close(self) -> None:
        """
        Remove it from the terminal.
        """
        with self._lock:
            if self._bar is not None:
                self._bar.close()

    def _describe(self, bar: tqdm) -> None:
        bar.bar_format = _FORM if bar.n >= bar.total * _LEAST_SHARE else _FORM_WITHOUT_TIME
        isIdle = self._idleLooks > _IDLE_LOOKS
        bar.set_description_str(f"{self._step}: waiting, Spark has nobody to do it" if isIdle else self._step)

    def _opened(self) -> tqdm:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=sum(self.plan.costs.values()) or 1.0,
                file=self.file,
                leave=False,
                # What is left is judged by all that is done, not by the last step.
                smoothing=0.0,
                dynamic_ncols=True,
                bar_format=_FORM_WITHOUT_TIME,
            )
        return self._bar


@contextmanager
def watching(session: SparkSession, bar: StepBar) -> Iterator[None]:
    """
    A context in which Spark's tasks move a bar.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):

        def told(*, stages: Iterable[Any], inflight_tasks: int, done: bool, **others: object) -> None:
            found = {each.stage_id: (each.num_completed_tasks, each.num_tasks) for each in stages}
            bar.look({} if done else found, inflight_tasks)

        handler: Any = told
        session.registerProgressHandler(handler)
        try:
            yield
        finally:
            session.removeProgressHandler(handler)
        return
    tracker, isOver = session.sparkContext.statusTracker(), Event()

    def look() -> None:
        while not isOver.wait(_LOOK_SECONDS):
            found = [each for each in map(tracker.getStageInfo, tracker.getActiveStageIds()) if each is not None]
            tasks = {each.stageId: (each.numCompletedTasks, each.numTasks) for each in found}
            bar.look(tasks, sum(each.numActiveTasks for each in found))

    thread = Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        isOver.set()
        thread.join()
