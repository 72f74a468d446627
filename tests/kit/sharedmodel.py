"""Servers that enforce limits together, as simply as possible, and what each of them records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from attrs import frozen
from twisted.internet.task import Clock

from admission.interfaces import QuotaEntity
from admission.recording.sharedusage import recordShared, recordTaken
from admission.shares.limitsharing import LimitSharing
from admission.testing.scriptedexchange import ScriptedExchange, ScriptedLine

from .replaymodel import WALL_OFFSET_US, Client, Recording, Serving, Steps


@frozen
class ShiftedClock:
    """
    A clock that began later.

    @ivar clock: the other one.
    @ivar beganSeconds: when, on that one.
    """

    clock: Clock
    beganSeconds: float

    def seconds(self) -> float:
        return self.clock.seconds() - self.beganSeconds

    def callLater(self, seconds: float, call: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        # A call that is due in less than the other clock can tell would be due again and again.
        return self.clock.callLater(max(seconds, 1e-6), call, *args, **kwargs)


@frozen
class Events:
    """Records what others have told, as C{recorder} of a server does it."""

    serving: Serving

    def limitsChanged(self, entity: QuotaEntity, limits: Mapping[str, float], now: float, by: str) -> None:
        for name, value in limits.items():
            self.serving.tellLimit(round(now * 1e6), entity, name, value, by)


def serveTogether(
    policies: Mapping[str, str],
    clients: Sequence[Sequence[Client]],
    steps: Steps,
    seconds: float,
    beganSeconds: Sequence[float] = (),
    cutSeconds: Sequence[float] = (),
    ahead: Mapping[int, float] | None = None,
) -> list[Recording]:
    """
    Let clients send requests to servers that tell each other ten times a second what these take.

    @param clients: of each server.
    @param seconds: how long it goes on.
    @param beganSeconds: when each server began; all at once if empty.
    @param cutSeconds: when messages stop coming, and come again.
    @param ahead: by how many seconds the calendar of a server is wrong.
    @return: what each has recorded.
    """
    clock = Clock()
    line = ScriptedLine(clock)
    servings: list[tuple[Serving, float]] = []
    began = beganSeconds or [0.0] * len(clients)
    for number, each in enumerate(clients):
        beganUs = round(began[number] * 1e6)
        aheadUs = round((ahead or {}).get(number, 0.0) * 1e6)
        serving = Serving.begin(
            policies,
            each,
            steps,
            round(seconds * 1e6) - beganUs,
            bootId=f"boot {number}",
            wallOffsetUs=WALL_OFFSET_US + beganUs + aheadUs,
        )
        servings.append((serving, beganUs))
        own: Any = ShiftedClock(clock, beganUs / 1e6)
        sharing = LimitSharing(ScriptedExchange(line), serving.control, own, f"server {number}")
        events: Any = Events(serving)
        sharing.whenTaken = lambda taken, isOld, now, events=events: recordTaken(events, taken, isOld, now)
        sharing.whenShared = lambda share, count, now, events=events: recordShared(events, share, count, now)
        clock.callLater(beganUs / 1e6, sharing.start)
    for index, atSeconds in enumerate(cutSeconds):
        clock.callLater(atSeconds, setattr, line, "isCut", index % 2 == 0)
    clock.advance(0.0)
    while True:
        serving, beganUs = min(servings, key=lambda each: each[0].nextUs + each[1])
        atUs = serving.nextUs + beganUs
        if atUs > seconds * 1e6:
            return [serving.recording for serving, _ in servings]
        # One call after the other, each at its own moment, which sums of differences would miss.
        while (nextSeconds := min((each.getTime() for each in clock.getDelayedCalls()), default=inf)) * 1e6 < atUs:
            clock.rightNow = nextSeconds
            clock.advance(0.0)
        clock.rightNow = atUs / 1e6
        clock.advance(0.0)
        serving.decide()
