"""A policy whose limits other servers share, replayed: it is told what they told, at the same moments."""

from __future__ import annotations

from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, IQuotaPolicyFactory, PolicyContext, QuotaEntity, Request, Taken, Usage
from admission.offline.simulate.live import LivePolicy
from admission.offline.simulate.runs import LimitChange
from admission.plugins import buildPolicy
from admission.recording.sharedusage import ALONE, SHARED, TAKEN

BEGIN_US = 10_000_000
RATE = "received_byte_rate"


class SharedTests(SynchronousTestCase):
    """Of a server and of its replay."""

    def test_exact(self) -> None:
        """Every delay is the same, while others take something, fall silent and come back; also of a shadow policy."""
        for description in (
            "client-bytes:received=100k:shared=yes",
            "client-bytes:received=100k:shared=yes:shadow=yes",
        ):
            self.check(description)

    def check(self, description: str) -> None:
        random = Random(7)
        made = [buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0)) for _ in range(2)]
        server = AdmissionControl([("client-bytes", made[0])])
        requests = [Request("Produce", "", f"c{number}", "192.0.2.1", 5000) for number in range(3)]
        changes: list[LimitChange] = []
        asked: list[tuple[int, int, Request, int]] = []
        atUs = BEGIN_US
        for seq in range(600):
            atUs += random.choice((0, 1, 1000, 40_000))
            now = atUs / 1e6
            what = random.random()
            if what < 0.05:
                count, isShared = random.randint(1, 4), random.random() < 0.6
                server.share(1.0 if isShared else 1 / count, count, now)
                changes.append(
                    LimitChange(atUs, QuotaEntity(user=DEFAULT), SHARED if isShared else ALONE, float(count), seq=seq)
                )
            elif what < 0.4:
                entity = QuotaEntity(clientId=f"c{random.randrange(3)}")
                amount = float(random.randrange(1, 20_000))
                server.takenElsewhere(Taken(RATE, entity, amount), False, now)
                changes.append(LimitChange(atUs, entity, f"{TAKEN}{RATE}", amount, seq=seq))
            else:
                request = random.choice(requests)
                delayUs = round(server.charge(request, Usage(5000), now).shares[0] * 1e6)
                asked.append((atUs, seq, request, delayUs))
        live = LivePolicy(made[1], BEGIN_US, changes, 2**62, hasSay=not made[1].isShadow)
        replayed = [live.answer(at, seq, request, Usage(5000), 1)[0] for at, seq, request, _ in asked]
        self.assertEqual(replayed, [delayUs for *_, delayUs in asked])
        self.assertGreater(sum(map(bool, replayed)), 50)
