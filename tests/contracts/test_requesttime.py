"""
L{admission_plugins.requesttime}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import (
    CONNECTION,
    DEFAULT,
    NOTHING,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    PolicyContext,
    QuotaEntity,
    Request,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.testing.quotacontract import QuotaPolicyContract
from admission_plugins.requesttime import RequestTime

DEFAULT_CLIENT = QuotaEntity(clientId=DEFAULT)
PERCENTAGE = "request_percentage"


def request(kind: str = "Produce", clientId: str = "app") -> Request:
    """
    A request of alice.
    """
    return Request(kind, "alice", clientId, "192.0.2.1", 100)


def worked(seconds: float) -> Usage:
    """
    What a request took that was worked on for so long.
    """
    return Usage(100, 100, seconds)


class RequestTimeContractTests(QuotaPolicyContract, SynchronousTestCase):
    """
    L{RequestTime} is an L{IQuotaPolicy}.
    """

    limitName = PERCENTAGE
    limit = 50.0

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """
        With Kafka's windows.
        """
        return RequestTime(11, 1.0, isShadow=isShadow)

    def entity(self, client: int) -> QuotaEntity:
        """
        A user.
        """
        return QuotaEntity(user=f"user-{client}")

    def refusedEntity(self) -> QuotaEntity:
        """
        An address.
        """
        return QuotaEntity(ip="192.0.2.1")

    def request(self, client: int, number: int = 0) -> Request:
        """
        A request of any kind.
        """
        kind = ("Produce", "Fetch", "Metadata")[number % 3]
        return Request(kind, f"user-{client}", f"client-{number}", "192.0.2.1", 100)

    def usage(self, request: Request) -> Usage:
        """
        A tenth of the time that the windows hold.
        """
        return worked(0.5)


class RequestTimeTests(SynchronousTestCase):
    """
    L{RequestTime}.
    """

    def setUp(self) -> None:
        """
        Make a policy with half a thread for everybody.
        """
        self.clock = Clock()
        self.policy = RequestTime(11, 1.0)
        self.policy.configure(DEFAULT_CLIENT, {PERCENTAGE: 50.0}, self.clock.seconds())

    def test_percentOfAThread(self) -> None:
        """
        Five seconds of work in ten are 50 percent of one thread, and a tenth of
        a second more is 0.2 seconds too much.
        """
        self.assertEqual(self.policy.record(request(), worked(5.0), self.clock.seconds()), 0.0)
        [status] = self.policy.explain(request(), self.clock.seconds())
        self.assertEqual((status.used, status.utilization), (50.0, 1.0))
        self.assertAlmostEqual(self.policy.record(request(), worked(0.1), self.clock.seconds()), 0.2)

    def test_oneWindowAtMost(self) -> None:
        """
        However much was taken, the client is throttled for one window at a time.
        """
        self.assertEqual(self.policy.record(request(), worked(1000.0), self.clock.seconds()), 1.0)
        self.clock.advance(1.0)
        now = self.clock.seconds()
        [status] = self.policy.explain(request(), now)
        self.assertEqual((self.policy.record(request(), NOTHING, now), status.delaySeconds), (1.0, 1.0))
        longer = RequestTime(11, 2.5)
        longer.configure(DEFAULT_CLIENT, {PERCENTAGE: 50.0}, self.clock.seconds())
        self.assertEqual(longer.record(request(), worked(1000.0), self.clock.seconds()), 2.5)

    def test_allKinds(self) -> None:
        """
        All requests of a client count together, but for connections, which
        nobody has named themselves for yet.
        """
        for kind in ("Produce", "Fetch", "Metadata", "no such kind"):
            self.policy.record(request(kind), worked(2.0), self.clock.seconds())
        self.assertEqual(self.policy.record(request(), NOTHING, self.clock.seconds()), 1.0)
        self.assertEqual(self.policy.record(request(CONNECTION), worked(100.0), self.clock.seconds()), 0.0)
        now = self.clock.seconds()
        [status] = self.policy.explain(request(), now)
        self.assertEqual((status.used, self.policy.budgetBytes(request(CONNECTION), now)), (80.0, None))

    def test_budget(self) -> None:
        """
        Who has had too much time reads nothing, and everybody else anything.
        """
        self.assertIs(self.policy.budgetBytes(request("Fetch"), self.clock.seconds()), None)
        self.policy.record(request(), worked(6.0), self.clock.seconds())
        self.assertEqual(self.policy.budgetBytes(request("Fetch"), self.clock.seconds()), 0)
        self.assertIs(self.policy.budgetBytes(request("Fetch", "other"), self.clock.seconds()), None)

    def test_replayKey(self) -> None:
        """
        All kinds of requests of a client have one key.
        """
        keys = {self.policy.replayKey(request(kind)) for kind in ("Produce", "Fetch", "Metadata")}
        self.assertEqual(len(keys), 1)

    def test_sensors(self) -> None:
        """
        The time is published in percent.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.policy.addSensors(registry, "request-time")
        self.policy.record(request(), worked(6.0), self.clock.seconds())
        self.assertEqual(
            list(registry.families["request-time.Request.request-time"].read(self.clock.seconds())),
            [(("", "app"), 60.0)],
        )


class DescriptionTests(SynchronousTestCase):
    """
    C{request-time} in descriptions.
    """

    def build(self, description: str, **context: Any) -> Any:
        """
        Build what is described.
        """
        return buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0, **context))

    def test_bare(self) -> None:
        """
        Without arguments it limits nobody until it is told to.
        """
        policy = self.build("request-time")
        self.assertEqual((policy.isLimiting, policy.isShadow, policy.horizonSeconds), (False, False, 12.0))

    def test_arguments(self) -> None:
        """
        The percentage is that of clients without a limit of their own; the
        windows are those of the server.
        """
        policy = self.build("request-time:percent=12.5:shadow=yes:meters=5", quotaWindows=4, quotaWindowSeconds=2.0)
        self.assertEqual(policy.limits, {DEFAULT_CLIENT: {PERCENTAGE: 12.5}})
        self.assertEqual((policy.isShadow, policy.horizonSeconds), (True, 10.0))

    def test_mistakes(self) -> None:
        """
        What makes no sense is refused, saying what would.
        """
        for arguments, words in [
            ("percent=half", "write a number"),
            ("percent=0", "more than zero"),
            ("percent=nan", "finite"),
            ("shadow=1", "yes or no"),
            ("meters=x", "whole number"),
        ]:
            error = self.assertRaises(PolicyError, self.build, f"request-time:{arguments}")
            self.assertIn(words, str(error))
