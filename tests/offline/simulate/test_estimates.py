"""L{admission.offline.simulate.estimates}"""

from __future__ import annotations

from math import inf
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import QuotaEntity
from admission.offline.simulate.candidates import resolveCandidate
from admission.offline.simulate.estimates import MAX_ERROR, MAX_LEFT_OUT, Sampled, keysBeyond, requestsOf
from admission.offline.simulate.live import Requester
from admission.offline.simulate.runs import LimitChange, Run
from admission.offline.simulate.trials import Trial, planTrials


class SampledTests(SynchronousTestCase):
    """L{Sampled}"""

    def test_bounds(self) -> None:
        """Of samples with usable bounds nine in ten or more have the truth within them, also of unequal clients."""
        random = Random(1)
        for draw in (lambda: 100, lambda: random.randint(1, 100), lambda: int(100 * random.lognormvariate(0, 1)) + 1):
            everybody = {("", str(number)): draw() for number in range(1000)}
            typical = 0.8 * sorted(everybody.values())[500]
            # Either by chance, or those who send much.
            byChance = {name: count * random.random() for name, count in everybody.items()}
            bySize = {name: max(0.0, count - typical) for name, count in everybody.items()}
            for values in (byChance, bySize):
                usable = right = 0
                for _ in range(300):
                    chosen = {name: count for name, count in everybody.items() if random.random() < 0.3}
                    sampled = Sampled(0.3, chosen, everybody)
                    total, error = sampled.estimate({name: values[name] for name in chosen})
                    if error <= MAX_ERROR and sampled.largestLeftOut <= MAX_LEFT_OUT:
                        usable += 1
                        right += abs(total - sum(values.values())) <= error * total
                self.assertGreaterEqual(right, 0.9 * usable)
                self.assertGreater(usable, 30)

    def test_leftOut(self) -> None:
        """What is left out of one client counts, also if it is in the sample elsewhere."""
        everybody = {("", "a"): 60, ("", "b"): 40}
        self.assertEqual(Sampled(0.5, {("", "a"): 60}, everybody).largestLeftOut, 0.4)
        self.assertEqual(Sampled(0.5, {("", "a"): 10, ("", "b"): 40}, everybody).largestLeftOut, 0.5)
        self.assertEqual(Sampled(1.0, everybody, everybody).estimate({("", "a"): 3.0}), (3.0, 0.0))

    def test_nobody(self) -> None:
        """That nobody of a sample had any may be chance."""
        self.assertEqual(Sampled(0.5, {("", "a"): 60}, {("", "a"): 60}).estimate({}), (0.0, inf))

    def test_names(self) -> None:
        """A client is who has a user and a client id, whatever it asks for and from where."""
        requesters = {("Produce", "u", "c", "192.0.2.1", 9): 3, ("Fetch", "u", "c", "192.0.2.2", 14): 4}
        self.assertEqual(requestsOf(requesters), {("u", "c"): 7})


class BeyondTests(SynchronousTestCase):
    """L{keysBeyond}"""

    def trial(self, *limits: QuotaEntity) -> Trial:
        """A candidate that limits each of these."""
        changes = [LimitChange(0, entity, "received_byte_rate", 1e6, isStart=True) for entity in limits]
        run = Run("1", "boot", 10**9, ("client-bytes",), ("client-bytes",), changes=changes)
        (trial,) = planTrials([resolveCandidate("client-bytes")], [run]).values()
        return trial

    def test_shared(self) -> None:
        """A user's limit is shared by clients, of which some are left out; one of a client is not."""
        chosen: dict[Requester, int] = {("Produce", "alice", "one", "192.0.2.1", 9): 3}
        others: dict[Requester, int] = {("Produce", "alice", "two", "192.0.2.1", 9): 3}
        ofUser, ofClient = self.trial(QuotaEntity(user="alice")), self.trial(QuotaEntity(clientId="one"))
        self.assertEqual(len(keysBeyond(ofUser, chosen, {**chosen, **others})), 1)
        self.assertEqual(keysBeyond(ofClient, chosen, {**chosen, **others}), [])
        self.assertEqual(keysBeyond(ofUser, chosen, chosen), [])

    def test_halfInside(self) -> None:
        """A client that has the same name inside and outside shares a limit with itself."""
        chosen: dict[Requester, int] = {("Produce", "alice", "one", "192.0.2.1", 9): 3}
        everybody = {requester: 2 * count for requester, count in chosen.items()}
        self.assertEqual(len(keysBeyond(self.trial(QuotaEntity(clientId="one")), chosen, everybody)), 1)
