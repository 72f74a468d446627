"""
A policy by calendar that survives restarts: each user may send so many bytes a day, and the day ends at midnight of a
time zone.
"""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from zope.interface import implementer

from admission import ADMITTED, Decision, QuotaEntity
from admission.interfaces import IPersistent, QuotaStatus
from admission.quotas import QuotaPolicy
from admission.units import parseBytes


@implementer(IPersistent)
class DailyBudget(QuotaPolicy):
    """
    Refuses requests of a user that has sent C{budgetBytes} today, until midnight.
    """

    def __init__(self, budgetBytes, zone, wallOffsetSeconds, isShadow=False):
        self._budgetBytes = budgetBytes
        self._zone = zone
        self._wallOffsetSeconds = wallOffsetSeconds
        self.isShadow = isShadow
        self._midnight = 0.0  # seconds of the monotonic clock
        self._day = ""  # such as 2026-11-26
        self._used = {}  # by user, today
        self._changed = {}  # what is to be stored, by day and user

    def decide(self, request, now):
        if now >= self._midnight or self._used.get(request.principal, 0) < self._budgetBytes:
            return ADMITTED
        return Decision(False, self._midnight - now, "the budget of the day is spent")

    def record(self, request, usage, now):
        if usage.requestBytes:
            self.sweep(now)
            used = self._used[request.principal] = self._used.get(request.principal, 0) + usage.requestBytes
            self._changed[f"{self._day} {request.principal}"] = used
        return 0.0

    def sweep(self, now):
        if now >= self._midnight:
            for user in self._used:
                self._changed[f"{self._day} {user}"] = 0
            self._used.clear()
            today = datetime.fromtimestamp(now + self._wallOffsetSeconds, self._zone).date()
            midnight = datetime.combine(today + timedelta(days=1), time(), self._zone)
            self._day = str(today)
            self._midnight = midnight.timestamp() - self._wallOffsetSeconds

    def explain(self, request, now):
        used = self._used.get(request.principal, 0) if now < self._midnight else 0
        delaySeconds = self.decide(request, now).delaySeconds
        return [QuotaStatus("bytes_a_day", self._budgetBytes, QuotaEntity(user=request.principal), used, delaySeconds)]

    def takeChanges(self):
        changes, self._changed = self._changed, {}
        return changes

    def resume(self, kept, now):
        self.sweep(now)
        for key, used in kept.items():
            day, _, user = key.partition(" ")
            if day == self._day:
                self._used[user] = used
            else:
                self._changed[key] = 0


def buildDailyBudget(context, size, zone="UTC"):
    """
    Build C{daily-budget:SIZE[:zone=UTC]}.
    """
    try:
        days = ZoneInfo(zone)
    except (KeyError, ValueError):
        raise ValueError(f"{zone!r} is no time zone; write one such as Europe/Berlin") from None
    # Read once, so that a replay, which knows the recorded difference, has the same days.
    return DailyBudget(parseBytes(size), days, context.wallSeconds() - context.clock.seconds())
