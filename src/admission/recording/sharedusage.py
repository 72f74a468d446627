# -*- test-case-name: tests.unit.shares.test_recorded -*-
"""
What servers that enforce limits together have told this one, as events of limits: a replay needs them.
"""

from __future__ import annotations

from ..interfaces import DEFAULT, QuotaEntity, Taken
from .recorder import EventRecorder

SHARED, ALONE = "servers sharing limits", "servers not sharing limits"
"""Events of these names say how many servers enforce limits together: each all of it, or each its part alone."""

TAKEN, LET_IN, KNOWN = "taken elsewhere of ", "let in elsewhere of ", "known elsewhere of "
"""
Before the name of a limit: how much was taken of it; or an identity that another server has let in, or had before this
one began to listen.
"""

TOLD_BY = "other servers"
"""The author of these "changes" of limits."""


def isOfSharing(name: str) -> bool:
    """
    Whether an event of this name is about other servers, and changes no limit.
    """
    return name in (SHARED, ALONE) or name.startswith((TAKEN, LET_IN, KNOWN))


def isOfUse(name: str) -> bool:
    """
    Whether an event of this name says what clients of other servers took while this one listened.
    """
    return name.startswith((TAKEN, LET_IN))


def recordShared(recorder: EventRecorder, fraction: float, count: int, now: float) -> None:
    """
    So much of each limit is enforced from now on; see L{IShared.share <admission.interfaces.IShared.share>}.
    """
    name = SHARED if fraction == 1.0 else ALONE
    recorder.limitsChanged(QuotaEntity(user=DEFAULT), {name: float(count)}, now, TOLD_BY)


def recordTaken(recorder: EventRecorder, taken: Taken, isOld: bool, now: float) -> None:
    """
    Others have told something; see L{IShared.takenElsewhere <admission.interfaces.IShared.takenElsewhere>}.

    @param taken: with one identity at most.
    """
    if taken.identities:
        # One more, since no limit is zero.
        name, value = f"{KNOWN if isOld else LET_IN}{taken.limitName}", taken.identities[0] + 1.0
    else:
        name, value = f"{TAKEN}{taken.limitName}", taken.amount
    recorder.limitsChanged(taken.entity, {name: value}, now, TOLD_BY)


def recordedShare(name: str, value: float) -> tuple[float, int] | None:
    """
    The fraction and the count that an event of this name and value says; L{None} if it says something else.
    """
    if name not in (SHARED, ALONE):
        return None
    count = int(value)
    return (1.0 if name == SHARED else 1 / count), count


def recordedTaken(name: str, entity: QuotaEntity, value: float) -> tuple[Taken, bool]:
    """
    What an event says that is no share, and whether it was old.
    """
    for prefix in (LET_IN, KNOWN):
        if name.startswith(prefix):
            return Taken(name.removeprefix(prefix), entity, 1.0, (int(value) - 1,)), prefix is KNOWN
    return Taken(name.removeprefix(TAKEN), entity, value), False
