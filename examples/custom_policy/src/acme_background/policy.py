"""
Work that can wait: who has the limit C{background_percentage} is held back
while the server is busier than that.
"""

from zope.interface import implementer

from admission.interfaces import CONNECTION, IQuotaPolicy, QuotaEntity, QuotaStatus
from admission.metrics.rate import SampledTotal
from admission.quotas.limits import LimitTable
from admission.quotas.policy import MeteredPolicy

PERCENTAGE = "background_percentage"


@implementer(IQuotaPolicy)
class Background(MeteredPolicy):
    """
    Adds up the time that requests take, whoever sends them.
    """

    def __init__(self, samples, windowSeconds, seconds, isShadow=False):
        super().__init__(LimitTable([PERCENTAGE]), (), (samples + 1) * windowSeconds, isShadow)
        self._busy = SampledTotal(samples, windowSeconds)
        self._seconds = seconds

    def record(self, request, usage):
        if usage.serviceSeconds > 0:
            self._busy.record(usage.serviceSeconds, self._seconds())
        return self._delaySeconds(request)

    def budgetBytes(self, request):
        return 0 if self._delaySeconds(request) else None

    def explain(self, request):
        limit = self._limits.resolve(request.principal, request.clientId, PERCENTAGE)
        if limit is None:
            return []
        return [QuotaStatus(PERCENTAGE, limit.value, limit.entity, self._busyPercent(), self._delaySeconds(request))]

    def replayKey(self, request):
        return "server"  # the same for all: everybody influences those in the background

    def addSensors(self, registry, name):
        registry.addGauge(f"{name}.busy-percentage", self._busyPercent)

    def _busyPercent(self):
        return self._busy.rate(self._seconds()) * 100

    def _delaySeconds(self, request):
        limit = self._limits.resolve(request.principal, request.clientId, PERCENTAGE)
        if limit is None or request.kind == CONNECTION:
            return 0.0
        # Until the mean is the limit if nobody does anything, and a window at most: who is held back is not shut out.
        busySeconds, spanSeconds = self._busy.measure(self._seconds())
        return min(max(busySeconds / limit.value * 100 - spanSeconds, 0.0), self._busy.windowSeconds)


def buildBackground(context, percent=None, clientId="background"):
    policy = Background(context.quotaWindows, context.quotaWindowSeconds, context.clock.seconds)
    if percent is not None:
        if not percent.replace(".", "", 1).isdecimal():
            raise ValueError(f"{percent} is no percentage: write a number; 100 is all of one thread")
        policy.configure(QuotaEntity(clientId=clientId), {PERCENTAGE: float(percent)})
    return policy
