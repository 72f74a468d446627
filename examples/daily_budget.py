"""
A policy by calendar: each user may send so many bytes a day, and the day ends at midnight of a time zone.
"""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from admission import ADMITTED, Decision, QuotaPolicy, parseBytes


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
        self._used = {}  # by user, today

    def decide(self, request, now):
        if now >= self._midnight or self._used.get(request.principal, 0) < self._budgetBytes:
            return ADMITTED
        return Decision(False, self._midnight - now, "the budget of the day is spent")

    def record(self, request, usage, now):
        if usage.requestBytes:
            self.sweep(now)
            self._used[request.principal] = self._used.get(request.principal, 0) + usage.requestBytes
        return 0.0

    def sweep(self, now):
        if now >= self._midnight:
            self._used.clear()
            today = datetime.fromtimestamp(now + self._wallOffsetSeconds, self._zone).date()
            midnight = datetime.combine(today + timedelta(days=1), time(), self._zone)
            self._midnight = midnight.timestamp() - self._wallOffsetSeconds


def buildDailyBudget(context, size, zone="UTC"):
    """
    Build C{daily-budget:SIZE[:zone=UTC]}.
    """
    # Read once, so that a replay, which knows the recorded difference, has the same days.
    return DailyBudget(parseBytes(size), ZoneInfo(zone), context.wallSeconds() - context.clock.seconds())
