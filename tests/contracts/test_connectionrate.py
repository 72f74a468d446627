"""
L{admission_plugins.connectionrate}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import (
    CONNECTION,
    DEFAULT,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    PolicyContext,
    QuotaEntity,
    Request,
    Usage,
)
from admission.plugins import PolicyError, buildPolicy
from admission.testing.quotacontract import QuotaPolicyContract
from admission_plugins.connectionrate import ConnectionRate

DEFAULT_ADDRESS = QuotaEntity(ip=DEFAULT)
RATE = "connection_creation_rate"
OPENED = Usage(connections=1)


def connection(ip: str = "192.0.2.1") -> Request:
    """
    A connection being opened.
    """
    return Request(CONNECTION, "", "", ip, 0)


class ConnectionRateContractTests(QuotaPolicyContract, SynchronousTestCase):
    """
    L{ConnectionRate} is an L{IQuotaPolicy}.
    """

    limitName = RATE
    limit = 10.0

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """
        With a burst of a second.
        """
        return ConnectionRate(1.0, isShadow=isShadow)

    def entity(self, client: int) -> QuotaEntity:
        """
        An address.
        """
        return QuotaEntity(ip=f"192.0.2.{client}")

    def refusedEntity(self) -> QuotaEntity:
        """
        A user.
        """
        return QuotaEntity(user="alice")

    def request(self, client: int, number: int = 0) -> Request:
        """
        A connection.
        """
        return connection(f"192.0.2.{client}")

    def usage(self, request: Request) -> Usage:
        """
        One connection.
        """
        return OPENED


class ConnectionRateTests(SynchronousTestCase):
    """
    L{ConnectionRate}.
    """

    def setUp(self) -> None:
        """
        Make a policy with two connections a second for every address.
        """
        self.clock = Clock()
        self.policy = ConnectionRate(2.0)
        self.policy.configure(DEFAULT_ADDRESS, {RATE: 2.0}, self.clock.seconds())

    def test_throttled(self) -> None:
        """
        Beyond the burst each connection waits for its turn, and the limit is
        kept exactly.
        """
        delays = [self.policy.record(connection(), OPENED, self.clock.seconds()) for _ in range(7)]
        self.assertEqual(delays, [0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.5])
        self.clock.advance(1.5)
        self.assertEqual(self.policy.record(connection(), OPENED, self.clock.seconds()), 0.5)

    def test_addressesApart(self) -> None:
        """
        One address does not delay another.
        """
        for _ in range(10):
            self.policy.record(connection(), OPENED, self.clock.seconds())
        self.assertEqual(self.policy.record(connection("192.0.2.2"), OPENED, self.clock.seconds()), 0.0)
        self.assertNotEqual(*[self.policy.replayKey(connection(ip)) for ip in ("192.0.2.1", "192.0.2.2")])

    def test_firstIsNeverLate(self) -> None:
        """
        However low the limit, a first connection is let in at once.
        """
        self.policy.configure(DEFAULT_ADDRESS, {RATE: 0.1}, self.clock.seconds())
        self.assertEqual(
            [self.policy.record(connection(), OPENED, self.clock.seconds()) for _ in range(2)], [0.0, 10.0]
        )

    def test_otherKinds(self) -> None:
        """
        Requests do not count.
        """
        request = Request("Produce", "alice", "app", "192.0.2.1", 100)
        for _ in range(10):
            self.assertEqual(self.policy.record(request, OPENED, self.clock.seconds()), 0.0)
        self.assertEqual(self.policy.explain(request, self.clock.seconds())[0].used, 0.0)
        self.assertIs(self.policy.budgetBytes(connection(), self.clock.seconds()), None)


class DescriptionTests(SynchronousTestCase):
    """
    C{connections} in descriptions.
    """

    def build(self, description: str) -> Any:
        """
        Build what is described.
        """
        return buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0))

    def test_bare(self) -> None:
        """
        Without arguments it limits nobody until it is told to.
        """
        policy = self.build("connections")
        self.assertEqual((policy.isLimiting, policy.isShadow, policy.horizonSeconds), (False, False, None))

    def test_arguments(self) -> None:
        """
        The rate is that of addresses without a limit of their own.
        """
        policy = self.build("connections:perSecond=30/1m:burst=4s:shadow=yes:meters=1")
        self.assertEqual((policy.limits, policy.isShadow), ({DEFAULT_ADDRESS: {RATE: 0.5}}, True))
        self.assertEqual([policy.record(connection(), OPENED, 0.0) for _ in range(3)], [0.0, 0.0, 2.0])
        self.assertEqual([policy.record(connection(f"192.0.2.{n}"), OPENED, 0.0) for n in (2, 3, 4)], [0.0, 0.0, 2.0])

    def test_mistakes(self) -> None:
        """
        What makes no sense is refused, saying what would.
        """
        for arguments, words in [
            ("perSecond=0", "more than zero"),
            ("perSecond=few", "is not a rate"),
            ("burst=0s", "more than nothing"),
            ("shadow=", "yes or no"),
            ("meters=-1", "whole number"),
        ]:
            error = self.assertRaises(PolicyError, self.build, f"connections:{arguments}")
            self.assertIn(words, str(error))
