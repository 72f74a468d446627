"""L{admission.testing.sharedlimitscontract}, with policies that are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from zope.interface import implementer

from admission.interfaces import IShared, QuotaEntity, QuotaStatus, Request, Taken, Usage
from admission.quotas.metering import SharedBuckets
from admission.quotas.sharedmeters import SharedMeters
from admission_plugins.clientquotas import ClientBytes
from admission_plugins.producerids import PRODUCE, ProducerIds
from tests.contracts import test_clientquotas, test_producerids
from tests.contracts.test_clientquotas import produce
from tests.contracts.test_producerids import KEY
from tests.kit.seededfaults import SeededFaultsTestCase


@implementer(IShared)
class Amounts(ClientBytes):
    """A sound policy of amounts, for others to break."""

    def __init__(self, isShadow: bool = False) -> None:
        self.buckets = SharedBuckets(1.0)
        super().__init__(self.buckets, isShadow=isShadow)
        # It has methods of its own.
        self.shared = SharedMeters(self.buckets, (self._received, self._sent))
        del self.taken, self.takenElsewhere, self.share

    def taken(self, leastSeconds: float, now: float) -> Any:
        return self.shared.taken(leastSeconds, now)

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        self.shared.takenElsewhere(taken, isOld, now)

    def share(self, fraction: float, count: int, now: float) -> None:
        self.shared.share(fraction, count, now)


class Silent(Amounts):
    """Tells nothing."""

    def taken(self, leastSeconds: float, now: float) -> Any:
        return iter(())


class Nameless(Amounts):
    """Tells of a limit that it does not have."""

    def taken(self, leastSeconds: float, now: float) -> Any:
        return (each._replace(limitName="bytes") for each in super().taken(leastSeconds, now))


class Repeats(Amounts):
    """Tells all that was ever taken."""

    def __init__(self, isShadow: bool = False) -> None:
        super().__init__(isShadow)
        self.told: list[Taken] = []

    def taken(self, leastSeconds: float, now: float) -> Any:
        self.told += super().taken(leastSeconds, now)
        return iter(list(self.told))


class Samples(Amounts):
    """Tells of the latest request of each client."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        for _, meter in self._received.items():
            meter.untold = 0.0
        return super().record(request, usage, now)


class DropsLittle(Amounts):
    """Forgets what is too little to be told."""

    def taken(self, leastSeconds: float, now: float) -> Any:
        found = list(super().taken(leastSeconds, now))
        list(super().taken(0.0, now))
        return iter(found)


class TellsAllAtOnce(Amounts):
    """Takes what it says for told, whether it is heard or not."""

    def taken(self, leastSeconds: float, now: float) -> Any:
        return iter(list(super().taken(leastSeconds, now)))


class TellsHalf(Amounts):
    def taken(self, leastSeconds: float, now: float) -> Any:
        return (each._replace(amount=each.amount / 2) for each in super().taken(leastSeconds, now))


class Deaf(Amounts):
    """Does not count what it is told."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        pass


class ForgetsWhenSwept(Amounts):
    """Forgets what it was told."""

    def sweep(self, now: float) -> None:
        for _, meter in self._received.items():
            meter.spend(-meter.elsewhereTotal, now)
        super().sweep(now)


class Resentful(Amounts):
    """Does not forgive what was taken elsewhere."""

    elsewhere = 0.0

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        self.elsewhere += 0.0 if isOld else taken.amount
        super().takenElsewhere(taken, isOld, now)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return max(super().record(request, usage, now), 1.0 if self.elsewhere >= 5000 else 0.0)


class TakesFromAll(Amounts):
    """Takes what others tell from all clients."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        for entity in self.limits:
            super().takenElsewhere(taken._replace(entity=entity), isOld, now)


class TellsBack(Amounts):
    """Tells what it was told."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        if not isOld and taken.entity.clientId is not None:
            self.record(produce(taken.entity.clientId), Usage(int(min(taken.amount, 1e18))), now)


class CountsOld(Amounts):
    """Takes what was taken long ago from clients of today."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        super().takenElsewhere(taken, False, now)


class TakesItForLimited(Amounts):
    """Takes it that only clients with limits are told of."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        if not self.limits[taken.entity][taken.limitName]:
            raise AssertionError("who has no limit takes nothing")
        super().takenElsewhere(taken, isOld, now)


class ChargesForNews(Amounts):
    """To tell it something costs something."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        super().takenElsewhere(taken._replace(amount=taken.amount + 1.0), isOld, now)


class RefundsWhenAsked(Amounts):
    """What was told is not counted any more."""

    def taken(self, leastSeconds: float, now: float) -> Any:
        for _, meter in self._received.items():
            meter.spendElsewhere(-meter.untold, 0.0)
        return super().taken(leastSeconds, now)


class WantsWholeNames(Amounts):
    """Cannot do with some names."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        str(taken.entity.clientId).encode()
        super().takenElsewhere(taken, isOld, now)


class CountsInSixtyFourBits(Amounts):
    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        round(taken.amount).to_bytes(8, "big", signed=True)
        super().takenElsewhere(taken, isOld, now)


class IgnoresShares(Amounts):
    def share(self, fraction: float, count: int, now: float) -> None:
        pass


class SharesNewMetersOnly(Amounts):
    """Leaves clients that are there as they are."""

    def share(self, fraction: float, count: int, now: float) -> None:
        self.buckets.fraction, self.buckets.count = fraction, count


class SharesOldMetersOnly(Amounts):
    """New clients have all of their limit."""

    def share(self, fraction: float, count: int, now: float) -> None:
        super().share(fraction, count, now)
        self.buckets.fraction, self.buckets.count = 1.0, 1


class GoesByCount(Amounts):
    """Always enforces a part."""

    def share(self, fraction: float, count: int, now: float) -> None:
        super().share(1 / count, count, now)


class ChangesLimits(Amounts):
    """Sets other limits instead."""

    fraction = 1.0

    def share(self, fraction: float, count: int, now: float) -> None:
        for entity, limits in list(self.limits.items()):
            changed = {name: value * fraction / self.fraction for name, value in limits.items()}
            super().configure(entity, changed, now)
        self.fraction = fraction


class BlamesOthers(Amounts):
    """Says that all is used elsewhere."""

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        return [evolve(each, usedElsewhere=each.used) for each in super().explain(request, now)]


class ForgetsItsShare(Amounts):
    """Enforces all of a limit that is changed."""

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        super().configure(entity, limits, now)
        self.shared.share(1.0, 1, now)


class HoardsStrangers(Amounts):
    """Keeps whom others told of."""

    def __init__(self, isShadow: bool = False) -> None:
        super().__init__(isShadow)
        self.strangers: set[QuotaEntity] = set()

    @property
    def sizeBytes(self) -> int:
        return super().sizeBytes + 100 * len(self.strangers)

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        self.strangers.add(taken.entity)
        super().takenElsewhere(taken, isOld, now)


class Ids(ProducerIds):
    """A sound policy of identities, for others to break."""

    def __init__(self, isShadow: bool = False) -> None:
        super().__init__(isShadow=isShadow, key=KEY, isShared=True)


class TakesEachTime(Ids):
    """Takes a token of each id that is told."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        super().takenElsewhere(taken, isOld, now)
        meter = self._meters.obtain(Request(PRODUCE, taken.entity.user or "", "", "", 0), now)
        if meter is not None and not isOld:
            meter.spend(len(taken.identities), now)


class ForgetsOld(Ids):
    """Does not know ids of before."""

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        if not isOld:
            super().takenElsewhere(taken, isOld, now)


class TellsOneId(Ids):
    """Tells how many there were, and one of them."""

    def taken(self, leastSeconds: float, now: float) -> Any:
        return (each._replace(identities=each.identities[:1]) for each in super().taken(leastSeconds, now))


class TellsIdsBack(Ids):
    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        super().takenElsewhere(taken, isOld, now)
        if self._untold is not None:
            self._untold.setdefault(taken.entity.user or "", []).extend(taken.identities)


class ForgetsTheShareOfIds(Ids):
    """Fills as fast as the limit says that is set."""

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        self._fraction = 1.0
        super().configure(entity, limits, now)


class SharedLimitsContractTests(SeededFaultsTestCase):
    """L{SharedLimitsContract}."""

    def test_sound(self) -> None:
        """Sound policies pass."""
        self.assertSound(test_clientquotas.SharedContractTests, buildPolicy=Amounts)
        self.assertSound(test_producerids.SharedContractTests, buildPolicy=Ids)

    def test_clientsShare(self) -> None:
        """One whose clients influence each other passes if its author says so."""
        outcome = self.outcome(
            test_clientquotas.SharedContractTests, "test_elsewhereByOthers", buildPolicy=TakesFromAll, isShared=True
        )
        self.assertEqual(outcome, "")

    def test_faults(self) -> None:
        """Each way in which a policy of amounts may be wrong is found by the test that is for it."""
        faults: list[tuple[type[Amounts], str]] = [
            (Silent, "test_toldOnce"),
            (Nameless, "test_saysThatItIsShared"),
            (Repeats, "test_toldOnce"),
            (Samples, "test_toldOnce"),
            (DropsLittle, "test_toldLater"),
            (TellsAllAtOnce, "test_notTakenOut"),
            (TellsHalf, "test_elsewhere"),
            (Deaf, "test_elsewhere"),
            (BlamesOthers, "test_explainsElsewhere"),
            (ForgetsWhenSwept, "test_elsewhere"),
            (Resentful, "test_elsewhereIsForgiven"),
            (TakesFromAll, "test_elsewhereByOthers"),
            (TellsBack, "test_notToldBack"),
            (CountsOld, "test_old"),
            (TakesItForLimited, "test_withoutLimit"),
            (HoardsStrangers, "test_withoutLimit"),
            (ChargesForNews, "test_nothingTaken"),
            (RefundsWhenAsked, "test_telling"),
            (WantsWholeNames, "test_oddTold"),
            (CountsInSixtyFourBits, "test_oddTold"),
            (IgnoresShares, "test_share"),
            (SharesNewMetersOnly, "test_share"),
            (SharesOldMetersOnly, "test_share"),
            (GoesByCount, "test_share"),
            (ChangesLimits, "test_share"),
            (ForgetsItsShare, "test_shareAndLimits"),
            (HoardsStrangers, "test_forgetsThoseElsewhere"),
        ]
        for policy, test in faults:
            self.assertBroken(test_clientquotas.SharedContractTests, test, policy.__name__, buildPolicy=policy)

    def test_faultsOfIdentities(self) -> None:
        """So is each way in which one of identities may be."""
        faults: list[tuple[type[Ids], str]] = [
            (TakesEachTime, "test_identityTwice"),
            (ForgetsOld, "test_old"),
            (TellsOneId, "test_elsewhere"),
            (TellsIdsBack, "test_notToldBack"),
            (ForgetsTheShareOfIds, "test_shareAndLimits"),
        ]
        for policy, test in faults:
            self.assertBroken(test_producerids.SharedContractTests, test, policy.__name__, buildPolicy=policy)
