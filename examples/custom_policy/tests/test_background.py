from acme_background.policy import PERCENTAGE, Background
from twisted.trial.unittest import SynchronousTestCase

from admission import QuotaEntity, Request, Usage
from admission.interfaces import NOTHING
from admission.testing import QuotaPolicyContract


class BackgroundTests(QuotaPolicyContract, SynchronousTestCase):
    limitName, limit, isShared = PERCENTAGE, 50.0, True

    def buildPolicy(self, isShadow=False):
        return Background(11, 1.0, isShadow)

    def entity(self, client):
        return QuotaEntity(user=f"user-{client}")

    def refusedEntity(self):
        return QuotaEntity(ip="192.0.2.1")

    def request(self, client, number=0):
        return Request("Produce", f"user-{client}", "app", "192.0.2.9", sizeBytes=100)

    def usage(self, request):
        return Usage(serviceSeconds=0.5)

    def test_others(self):
        """
        Whichever client keeps the server busy, those in the background wait, and nobody else.
        """
        policy = self.build(clients=1)
        self.assertEqual(policy.record(self.request(1), Usage(serviceSeconds=6.0), self.now), 0.0)
        self.assertEqual(policy.record(self.request(0), NOTHING, self.now), 1.0)
