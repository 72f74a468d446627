"""Two gateways that share limits through their cluster: a client gets all of its limit, and a failover costs nobody."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.gateway.sharedchurn import run as churn
from tests.clients.gateway.sharedlimits import (
    AFTER_SECONDS,
    CLIENT,
    FAST,
    SCENARIOS,
    Scenario,
    Senders,
    SharingGateway,
    alone,
    beyond,
    gateways,
    idempotent,
    prepare,
    quotas,
    run,
    sent,
)
from tests.kit.brokerprocess import until
from tests.kit.kafkacluster import KafkaCluster
from tests.kit.longform import isLongForm, longForm

SECONDS = 12
IDS = 8


class SharedLimitsTests(SynchronousTestCase):
    """Three nodes of Apache Kafka, and gateways before them."""

    cluster: ClassVar[KafkaCluster]

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = KafkaCluster()
        cls.cluster.start()
        prepare(cls.cluster)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.cluster.remove()

    def test_limits(self) -> None:
        """
        Together they let through what one does, wherever its client's connections are and whatever happens.

        A busy machine lets through less, and is as slow to tell; it does not let through more.
        """
        scenarios = SCENARIOS if isLongForm() else [Scenario("two and two", [(2, FAST), (2, FAST)], SECONDS)]
        whole = alone(self.cluster)
        for scenario in scenarios:
            found, shown = run(self.cluster, scenario)
            self.cluster.heal()
            seconds = [each / whole for each in found]
            self.assertLess(beyond(seconds), scenario.bound(), f"{scenario.name}: {seconds}, {shown}")
            rest = seconds[AFTER_SECONDS:]
            # More than a half would be had by fixed parts, too.
            self.assertGreater(sum(rest) / len(rest), 0.8, f"{scenario.name}: {seconds}, {shown}")

    def test_explained(self) -> None:
        """What a client uses at one gateway is used here for that one, and elsewhere for the other."""
        made = gateways(self.cluster, 2)
        for each in made:
            self.addCleanup(each.remove)
        senders = Senders(made[0].address, 2)
        self.addCleanup(senders.stop)

        def limitAt(gateway: SharingGateway) -> dict[str, Any]:
            explained = gateway.ask(f"explain?clientId={CLIENT}&user=ANONYMOUS")
            self.assertEqual((explained["sharing"]["servers"], explained["sharing"]["isLive"]), (2, True))
            found: dict[str, Any] = explained["limits"][0]
            return found

        until(lambda: all(limitAt(each)["usedFraction"] > 0.5 for each in made))
        here, elsewhere = map(limitAt, made)
        self.assertEqual((here["usedElsewhere"], here["usedHere"]), (0.0, here["used"]))
        self.assertAlmostEqual(elsewhere["usedElsewhere"] / elsewhere["used"], 1.0)

    def test_producers(self) -> None:
        """Producers that one gateway has let in are new to none, and one too many is refused by all."""
        made = gateways(self.cluster, 2, quota=f"producer-ids:rate={IDS}:window=1h")
        for each in made:
            self.addCleanup(each.remove)
        first, second = made
        producers = [idempotent(first, second) for _ in range(IDS)]
        self.assertEqual(sent(*producers), [True] * IDS)
        # In a turn of the exchange or two each has told the other.
        time.sleep(1)
        until(lambda: 1 <= sum(each.sharing["told"] for each in made) == sum(each.sharing["heard"] for each in made))
        first.kill()
        self.assertEqual(sent(*producers), [True] * IDS)
        self.assertEqual(sent(idempotent(second)), [False])
        third = SharingGateway(
            self.cluster.bootstrap, "--shared-limits", "topic", quota=f"producer-ids:rate={IDS}:window=1h"
        )
        third.startedFor(self)
        self.assertEqual(sent(*producers), [True] * IDS)

    def test_limitsAtRunTime(self) -> None:
        """A limit that is set at one gateway holds at all, and at one that starts later, until it is removed."""
        open_ = ("--set", "super.users=User:ANONYMOUS")
        made = gateways(self.cluster, 2, *open_)
        for each in made:
            self.addCleanup(each.remove)
        first, second = made
        quotas("set", first, "--client-id", "bob", "producer_byte_rate=123456")
        until(lambda: "123456" in quotas("describe", second))
        third = SharingGateway(self.cluster.bootstrap, "--shared-limits", "topic", *open_)
        third.startedFor(self)
        until(lambda: "123456" in quotas("describe", third))
        quotas("remove", third, "--client-id", "bob", "producer_byte_rate")
        until(lambda: not any("123456" in quotas("describe", each) for each in (first, second, third)))


@longForm
class ChurnTests(SynchronousTestCase):
    """Two minutes of L{tests.clients.gateway.sharedchurn}."""

    timeout: ClassVar[float] = 600.0

    def test_churn(self) -> None:
        """While gateways and nodes are killed, no record is lost or doubled, limits are kept, and nothing grows."""
        self.assertEqual(churn(minutes=2, seed=1), [])
