# -*- test-case-name: tests.contracts.test_sharedlimitscontract -*-
"""
The rules for quota policies whose limits several servers enforce together.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from math import isfinite

from zope.interface.verify import verifyObject

from ..interfaces import DEFAULT, IAccountable, IQuotaPolicy, IShared, QuotaEntity, Taken
from .quotacontract import QuotaFixture

_TOLERANCE = 0.05
"""By what part a speed may be off: where requests are refused, a client is let through now and then only."""


class SharedLimitsContract(QuotaFixture):
    """
    The rules for an L{IShared}; mix it in besides L{QuotaPolicyContract
    <admission.testing.quotacontract.QuotaPolicyContract>}.

    Policies of one test stand for servers, and are told what the others say, identities one by one.
    """

    def setUp(self) -> None:
        super().setUp()
        self._numbers = count(10_000)

    def taken(self, policy: IQuotaPolicy, leastSeconds: float = 0.0) -> list[Taken]:
        """
        What a policy says has been taken.
        """
        return list(IShared(policy).taken(leastSeconds, self.now))

    def tell(self, policy: IQuotaPolicy, taken: Iterable[Taken], isOld: bool = False) -> None:
        """
        Tell a policy what was taken elsewhere.
        """
        for each in taken:
            one = [each._replace(amount=1.0, identities=(identity,)) for identity in each.identities]
            for told in one or [each]:
                IShared(policy).takenElsewhere(told, isOld, self.now)

    def take(self, policy: IQuotaPolicy, *numbers: int, client: int = 0) -> None:
        """
        Send requests that are within the limit if there are ten or less.
        """
        for number in numbers:
            self.send(policy, self.request(client, number))

    def excessElsewhere(self) -> list[Taken]:
        """
        What is told by a policy of which the first client has exceeded its limit.
        """
        elsewhere = self.build()
        self.exceed(elsewhere)
        taken = self.taken(elsewhere)
        self.assertTrue(taken, "it says that nothing was taken")
        return taken

    def secondsFor(self, policy: IQuotaPolicy, client: int, requests: int) -> float:
        """
        How long a client takes that sends new requests as fast as it may.
        """
        begunSeconds = self.now
        for _ in range(requests):
            request = self.request(client, next(self._numbers))
            for _attempt in range(10):
                decision, delaySeconds, _ = self.send(policy, request)
                self.passSeconds(delaySeconds)
                if decision.admitted:
                    # Of what is not told, only a part may be let through.
                    self.taken(policy)
                    break
            else:
                self.fail("a request is refused again and again, however long its client waits")
        return self.now - begunSeconds

    def assertSpeed(self, policy: IQuotaPolicy, client: int, speed: float, isNew: bool = True) -> None:
        """
        Check how many requests a second a client is let through over a long time.
        """
        measured = self.speed(policy, client, isNew)
        self.assertTrue(
            abs(measured / speed - 1) <= _TOLERANCE, f"client {client}: {measured:g} a second, and not {speed:g}"
        )

    def speed(self, policy: IQuotaPolicy, client: int, isNew: bool = True) -> float:
        """
        How many requests a second a client is let through once it has spent what it may take at once.

        @param isNew: whether it has that yet to do, because it is new or some time has passed.
        """
        if isNew:
            self.exceed(policy, client)
            # So much was untold that the policy may let through a part until others have been told.
            self.secondsFor(policy, client, 5)
        return 50 / self.secondsFor(policy, client, 50)

    def assertTotals(self, taken: Iterable[Taken], expected: Iterable[Taken]) -> None:
        """
        Check that the same was taken in all, whatever the pieces in which it is told.
        """
        self.assertEqual(_totals(taken), _totals(expected))

    def test_saysThatItIsShared(self) -> None:
        """
        The policy has all methods of L{IShared}, and tells only of limits that it names.
        """
        policy = self.build()
        verifyObject(IShared, policy)
        self.take(policy, *range(8))
        self.assertLessEqual({each.limitName for each in self.taken(policy)}, set(policy.limitNames))

    def test_toldOnce(self) -> None:
        """
        What clients have taken is told once, all of it, and not again.
        """
        policy, other = self.build(), self.build()
        taken = []
        for numbers in (range(4), range(4, 8)):
            self.take(policy, *numbers)
            told = self.taken(policy)
            self.assertTrue(told, "it says that nothing was taken")
            taken += told
            self.assertEqual(self.taken(policy), [])
        self.take(other, *range(8))
        self.assertTotals(taken, self.taken(other))

    def test_toldLater(self) -> None:
        """
        What is left for later because it is little is not lost.
        """
        policy, other = self.build(), self.build()
        taken = []
        for number in range(8):
            self.take(policy, number)
            self.take(other, number)
            taken += self.taken(policy, 1e9)
        self.assertTotals([*taken, *self.taken(policy)], self.taken(other))

    def test_notTakenOut(self) -> None:
        """
        What is not taken out of the iterator is told the next time, also if clients have taken more by then.
        """
        policy, other = self.build(), self.build()
        taken = []
        for numbers in (range(4), range(4, 8)):
            for client in (0, 1):
                for each in (policy, other):
                    self.take(each, *numbers, client=client)
            taken.append(next(iter(IShared(policy).taken(0.0, self.now))))
        self.assertTotals([*taken, *self.taken(policy)], self.taken(other))

    def test_elsewhere(self) -> None:
        """
        What was taken elsewhere delays clients as if they had taken it here, also after a sweep.
        """
        here, told = self.build(), self.build()
        self.exceed(here)
        self.tell(told, self.excessElsewhere())
        told.sweep(self.now)
        request = self.request(0, next(self._numbers))
        (wanted, delaySeconds, wantedBudget), (decision, toldSeconds, budget) = (
            self.send(each, request) for each in (here, told)
        )
        self.assertEqual((decision.admitted, budget == 0), (wanted.admitted, wantedBudget == 0))
        self.assertGreater(toldSeconds, 0.0)
        self.assertAlmostEqual(toldSeconds / delaySeconds, 1.0, places=6)

    def test_explainsElsewhere(self) -> None:
        """
        A policy that says how much of a limit is used elsewhere says it of what it was told, and not of what clients
        take here.
        """
        here, told = self.build(), self.build()
        self.exceed(here)
        self.tell(told, self.excessElsewhere())
        for policy, isElsewhere in ((here, False), (told, True)):
            [status] = [each for each in policy.explain(self.request(0), self.now) if each.limitName == self.limitName]
            if status.usedElsewhere is not None:
                self.assertAlmostEqual(status.usedElsewhere / status.used, float(isElsewhere))

    def test_elsewhereIsForgiven(self) -> None:
        """
        However much was taken elsewhere, in time clients are treated as at first.
        """
        policy = self.build()
        self.tell(policy, self.excessElsewhere())
        self.passSeconds(self.forgetSeconds)
        self.assertSameAnswers(self.exceed(policy), self.exceed(self.build()))

    def test_elsewhereByOthers(self) -> None:
        """
        What one client has taken elsewhere delays no other, unless clients influence each other by design.
        """
        policy = self.build()
        self.tell(policy, self.excessElsewhere())
        if not self.isShared:
            self.assertSameAnswers(self.exceed(policy, client=1), self.exceed(self.build(), client=1))

    def test_notToldBack(self) -> None:
        """
        What was taken elsewhere is not told by this server, and what clients take here is told as ever.
        """
        elsewhere, policy, other = self.build(), self.build(), self.build()
        self.take(elsewhere, *range(4))
        self.tell(policy, self.taken(elsewhere))
        self.assertEqual(self.taken(policy), [])
        for each in (policy, other):
            self.take(each, *range(100, 104))
        self.assertTotals(self.taken(policy), self.taken(other))

    def test_old(self) -> None:
        """
        What was taken before this server began to listen delays no client.  Identities are known then.
        """
        policy, taken = self.build(), self.excessElsewhere()
        self.tell(policy, taken, isOld=True)
        known = {identity for each in taken for identity in each.identities}
        for number in range(100):
            request = self.request(0, number)
            if known.issuperset(request.identities) and request.identities:
                self.assertFalse(self.isThrottled([self.send(policy, request)]), "it is not known")
        requests = [self.request(0, next(self._numbers)) for _ in range(100)]
        fresh = self.build()
        answers, expected = ([self.send(each, request) for request in requests] for each in (policy, fresh))
        self.assertSameAnswers(answers, expected)

    def test_identityTwice(self) -> None:
        """
        An identity that is told more than once is taken once.
        """
        elsewhere, once, often = self.build(), self.build(), self.build()
        self.take(elsewhere, *range(4))
        taken = [each for each in self.taken(elsewhere) if each.identities]
        self.tell(once, taken)
        for isOld in (False, True, False, True, False):
            self.tell(often, taken, isOld)
        requests = [self.request(0, next(self._numbers)) for _ in range(100)]
        answers, expected = ([self.send(each, request) for request in requests] for each in (often, once))
        self.assertSameAnswers(answers, expected)

    def test_withoutLimit(self) -> None:
        """
        What is told of clients without a limit is ignored, and nothing is told of them.
        """
        policy = self.build(clients=0)
        beforeBytes = IAccountable(policy).sizeBytes if IAccountable.providedBy(policy) else 0
        self.tell(policy, self.excessElsewhere())
        policy.sweep(self.now)
        if IAccountable.providedBy(policy):
            self.assertEqual(IAccountable(policy).sizeBytes, beforeBytes)
        self.assertFalse(self.isThrottled(self.exceed(policy)))
        self.assertEqual((self.taken(policy), bool(policy.isLimiting)), ([], False))

    def test_nothingTaken(self) -> None:
        """
        To be told that nothing was taken changes nothing.
        """
        nothing = Taken(self.limitName, self.entity(0), 0.0)
        self.assertUnaffectedBy(lambda policy: self.tell(policy, [nothing]))

    def test_telling(self) -> None:
        """
        Saying what was taken changes nothing for clients.
        """
        self.assertUnaffectedBy(lambda policy: self.taken(policy, 0.0))

    def test_oddTold(self) -> None:
        """
        Whatever names, amounts and identities are told, the policy takes it, and goes on.
        """
        policy = self.build()
        entities = [self.entity(0), QuotaEntity()]
        for name in ("", DEFAULT, "\0", "\ud800", "\N{SNOWMAN}" * 1000, "192.0.2.1"):
            entities += [QuotaEntity(name), QuotaEntity(None, name), QuotaEntity(name, name), QuotaEntity(ip=name)]
        for entity in entities:
            for amount in (0.0, 5e-324, 1.0, 2.0**63):
                for identities in ((), (0,), (7, 7), ((1 << 63) - 1,)):
                    for limitName in policy.limitNames:
                        for isOld in (False, True):
                            taken = Taken(limitName, entity, amount, identities)
                            IShared(policy).takenElsewhere(taken, isOld, self.now)
            self.passSeconds(1.0)
        policy.sweep(self.now)
        self.assertEqual(self.taken(policy), [])
        for client in (0, 1):
            decision, delaySeconds, _ = self.send(policy, self.request(client, next(self._numbers)))
            self.assertTrue(isfinite(decision.delaySeconds) and isfinite(delaySeconds) and delaySeconds >= 0.0)
            for status in policy.explain(self.request(client), self.now):
                self.assertTrue(isfinite(status.used) and isfinite(status.delaySeconds), status)

    def test_share(self) -> None:
        """
        Over a long time a server lets through that part of each limit that it is to enforce, to clients old and new,
        and all of it again when it is told so.  The limits that are set stay what they are.
        """
        policy = self.build()
        limits = {entity: dict(values) for entity, values in policy.limits.items()}
        alone = self.speed(policy, 0)
        IShared(policy).share(1 / 2, 2, self.now)
        for client in (0, 1):
            self.assertSpeed(policy, client, alone / 2, isNew=client == 1)
        IShared(policy).share(1 / 5, 5, self.now)
        self.assertSpeed(policy, 0, alone / 5)
        self.assertEqual({entity: dict(values) for entity, values in policy.limits.items()}, limits)
        for servers in (5, 1):
            IShared(policy).share(1.0, servers, self.now)
            for client in (0, 1):
                self.assertSpeed(policy, client, alone)

    def test_shareAndLimits(self) -> None:
        """
        A share holds for limits that are changed, set or set anew while it is enforced.
        """
        policy = self.build(clients=1)
        alone = self.speed(policy, 0)
        IShared(policy).share(1 / 2, 2, self.now)
        policy.configure(self.entity(0), {self.limitName: 2 * self.limit}, self.now)
        self.assertSpeed(policy, 0, alone)
        policy.configure(self.entity(1), {self.limitName: self.limit}, self.now)
        self.assertSpeed(policy, 1, alone / 2)
        for limit in (None, self.limit):
            policy.configure(self.entity(0), {self.limitName: limit}, self.now)
        self.assertSpeed(policy, 0, alone / 2)
        IShared(policy).share(1.0, 2, self.now)
        self.assertSpeed(policy, 0, alone)

    def test_forgetsThoseElsewhere(self) -> None:
        """
        What an L{IAccountable} keeps about clients of other servers goes with time, as for those here.
        """
        clients = 200
        policy, elsewhere = self.build(clients=clients), self.build(clients=clients)
        if not IAccountable.providedBy(policy):
            return
        beforeBytes = IAccountable(policy).sizeBytes
        for client in range(clients):
            self.send(elsewhere, self.request(client))
        self.tell(policy, self.taken(elsewhere))
        for _ in range(10):
            self.passSeconds(self.forgetSeconds / 10)
            policy.sweep(self.now)
        self.assertLessEqual(IAccountable(policy).sizeBytes, beforeBytes)


def _totals(taken: Iterable[Taken]) -> dict[tuple[str, QuotaEntity], tuple[str, list[int]]]:
    amounts: dict[tuple[str, QuotaEntity], float] = {}
    identities: dict[tuple[str, QuotaEntity], list[int]] = {}
    for each in taken:
        key = each.limitName, each.entity
        amounts[key] = amounts.get(key, 0.0) + each.amount
        identities.setdefault(key, []).extend(each.identities)
    # Sums of floats depend on how they are grouped.
    return {key: (f"{amount:.9g}", sorted(identities[key])) for key, amount in amounts.items()}
