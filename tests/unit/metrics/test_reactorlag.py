"""L{admission.metrics.reactorlag}."""

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.reactorlag import INTERVAL_SECONDS, KEPT_SECONDS, STANDING_LOOKS, ReactorLag
from admission.metrics.registry import SensorRegistry


class ReactorLagTests(SynchronousTestCase):
    """What the sensor says."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.lag = ReactorLag(self.clock)
        self.registry = SensorRegistry(self.clock.seconds)
        self.lag.addSensors(self.registry)

    def test_longest(self) -> None:
        """The longest of the last seconds is told, and then forgotten."""
        self.lag.start()
        self.lag.start()
        self.clock.pump([INTERVAL_SECONDS, INTERVAL_SECONDS + 0.75, INTERVAL_SECONDS + 0.25])
        self.assertAlmostEqual(self.registry["ReactorLagSeconds"], 0.75)
        looks = round(KEPT_SECONDS / INTERVAL_SECONDS)
        self.clock.pump([INTERVAL_SECONDS] * (looks - 2))
        self.assertAlmostEqual(self.registry["ReactorLagSeconds"], 0.75)
        self.clock.advance(INTERVAL_SECONDS)
        self.assertAlmostEqual(self.registry["ReactorLagSeconds"], 0.25)

    def test_standing(self) -> None:
        """One long turn is nothing that stays; what is late at every look is, until one is not."""
        self.lag.start()
        late = INTERVAL_SECONDS + 0.25
        for pauses, standingSeconds in (
            ([INTERVAL_SECONDS] * STANDING_LOOKS, 0.0),
            ([late] * (STANDING_LOOKS - 1), 0.0),
            ([late + 0.5], 0.25),
            ([INTERVAL_SECONDS + 0.125], 0.125),
            ([INTERVAL_SECONDS], 0.0),
            ([late] * STANDING_LOOKS, 0.25),
        ):
            self.clock.pump(pauses)
            self.assertAlmostEqual(self.lag.standingSeconds, standingSeconds)
        self.lag.stop()
        self.assertEqual(self.lag.standingSeconds, 0.0)

    def test_stop(self) -> None:
        """It leaves no timer behind, and nothing that was."""
        self.lag.stop()
        self.lag.start()
        self.clock.advance(1.0)
        self.lag.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.registry["ReactorLagSeconds"], 0.0)
