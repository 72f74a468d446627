"""
Work that can wait: who has the limit C{background_percentage} is throttled
while the server is busier than that.
"""

from admission import QuotaEntity
from admission.interfaces import QuotaStatus
from admission.metrics import SampledTotal
from admission.quotas import LimitTable, MeteredPolicy

PERCENTAGE = "background_percentage"


class Background(MeteredPolicy):
    """
    Adds up the time that requests of all clients take.
    """

    def __init__(self, samples, windowSeconds, isShadow=False):
        super().__init__(LimitTable([PERCENTAGE]), (), (samples + 1) * windowSeconds, isShadow)
        self._busy = SampledTotal(samples, windowSeconds)

    def record(self, request, usage, now):
        if usage.serviceSeconds > 0:
            self._busy.record(usage.serviceSeconds, now)
        return self._delaySeconds(request, now)

    def budgetBytes(self, request, now):
        return 0 if self._delaySeconds(request, now) else None

    def explain(self, request, now):
        limit = self._limits.resolve(request.principal, request.clientId, PERCENTAGE)
        if limit is None:
            return []
        used, delaySeconds = self._busy.rate(now) * 100, self._delaySeconds(request, now)
        return [QuotaStatus(PERCENTAGE, limit.value, limit.entity, used, delaySeconds)]

    def addSensors(self, registry, name):
        registry.addGauge(f"{name}.busy-percentage", lambda now: self._busy.rate(now) * 100)

    def _delaySeconds(self, request, now):
        limit = self._limits.resolve(request.principal, request.clientId, PERCENTAGE)
        if limit is None or request.traits.isConnection:
            return 0.0
        # Until the mean is the limit if nobody does anything, and a window at most: who is throttled is not shut out.
        busySeconds, spanSeconds = self._busy.measure(now)
        return min(max(busySeconds / limit.value * 100 - spanSeconds, 0.0), self._busy.windowSeconds)


def buildBackground(context, percent=None, clientId="background"):
    policy = Background(context.quotaWindows, context.quotaWindowSeconds)
    if percent is not None:
        if not percent.replace(".", "", 1).isdecimal():
            raise ValueError(f"{percent} is no percentage: write a number; 100 is all of one thread")
        policy.configure(QuotaEntity(clientId=clientId), {PERCENTAGE: float(percent)}, context.clock.seconds())
    return policy
