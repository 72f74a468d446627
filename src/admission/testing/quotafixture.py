# -*- test-case-name: tests.contracts.test_testing_quotas -*-
"""
What the tests of a quota policy begin with.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..interfaces import IQuotaPolicy, QuotaEntity, Request, Usage
from .rules import Contract


class QuotaFixture(Contract):
    """
    Two clients of a policy, and how they are treated.

    @cvar limitName: one of the policy's limits; empty if none can be set.
    @cvar limit: a value of that limit which L{excess} goes well beyond.
    @ivar now: the time that the policy is told; add to it.
    """

    limitName = ""
    limit = 0.0

    isShared = False
    """Whether clients influence each other by design, so that all their requests have one key for replay."""

    forgetSeconds = 1e7
    """After this time the excess of L{excess} is forgiven."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """
        Make a policy; if it has limits that can be set, then without any.
        """
        raise NotImplementedError

    def entity(self, client: int) -> QuotaEntity:
        """
        Whom to set C{limitName} for, so that it holds for that client; another
        entity for each.
        """
        raise NotImplementedError

    def refusedEntity(self) -> QuotaEntity:
        """
        A well-formed entity that the policy cannot limit.
        """
        raise NotImplementedError

    def request(self, client: int, number: int = 0) -> Request:
        """
        One of many requests of a client, of a kind that is limited.
        """
        raise NotImplementedError

    def usage(self, request: Request) -> Usage:
        """
        What C{request} takes: at most a tenth of what a client may take at once.
        """
        raise NotImplementedError

    def excess(self, client: int) -> Sequence[Request]:
        """
        Requests that together, each with its L{usage}, go beyond the limit.
        """
        return [self.request(client, number) for number in range(100)]

    def build(self, isShadow: bool = False, clients: int = 2) -> IQuotaPolicy:
        """
        Make a policy that limits so many clients, or all if no limits can be set.
        """
        policy = self.buildPolicy(isShadow)
        for client in range(clients if self.limitName else 0):
            policy.configure(self.entity(client), {self.limitName: self.limit}, self.now)
        return policy

    def send(self, policy: IQuotaPolicy, request: Request) -> tuple[Any, ...]:
        """
        Treat a request as a server does.

        @return: what the policy said to it.
        """
        decision = policy.decide(request, self.now)
        delaySeconds = decision.delaySeconds
        if decision.admitted:
            delaySeconds = policy.record(request, self.usage(request), self.now)
        return (decision, delaySeconds, policy.budgetBytes(request, self.now))

    def exceed(self, policy: IQuotaPolicy, client: int = 0) -> list[tuple[Any, ...]]:
        """
        Have a client go beyond its limit.

        @return: what the policy said to each request.
        """
        return [self.send(policy, request) for request in self.excess(client)]

    def isThrottled(self, answers: Sequence[tuple[Any, ...]]) -> bool:
        """
        Whether any of these requests was refused or throttled.
        """
        return any(not decision.admitted or delaySeconds > 0 for decision, delaySeconds, _ in answers)

    def assertUnaffectedBy(self, what: Callable[[IQuotaPolicy], object]) -> None:
        """
        A policy to which something is done at every opportunity behaves as one
        that is left alone, before the limit, beyond it, and long after.
        """
        disturbed, alone = self.build(), self.build()
        for pauseSeconds in (0.0, 0.4, 3.0, 11.0, 50.0):
            self.now += pauseSeconds
            for request in self.excess(0)[:: 1 if pauseSeconds else 7]:
                what(disturbed)
                self.assertEqual(self.send(disturbed, request), self.send(alone, request))
                what(disturbed)

    def setUp(self) -> None:
        """
        Begin at some moment.
        """
        self.now = 1000.0
