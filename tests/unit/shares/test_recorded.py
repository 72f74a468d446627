"""What other servers have told, as events of limits."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import QuotaEntity, Taken
from admission.metrics.registry import SensorRegistry
from admission.recording.events import LimitEvent, Origin
from admission.recording.recorder import EventRecorder
from admission.recording.sharedusage import (
    isOfSharing,
    recordedShare,
    recordedTaken,
    recordShared,
    recordTaken,
)
from tests.kit.keptevents import Kept

ALICE = QuotaEntity("alice", "app")


class RecordedTests(SynchronousTestCase):
    """There and back."""

    def setUp(self) -> None:
        clock = Clock()
        self.kept = Kept()
        self.recorder = EventRecorder([("kept", self.kept)], clock, SensorRegistry(clock.seconds))
        self.recorder.start(Origin("1", "boot"), lambda *_: None)  # type: ignore[arg-type, return-value]

    def events(self) -> list[LimitEvent]:
        """What was recorded since this was last asked."""
        found = [each for each in self.kept.events if isinstance(each, LimitEvent)]
        self.kept.events.clear()
        return found

    def test_share(self) -> None:
        """How much of each limit is enforced, by how many."""
        for fraction, count in ((1.0, 1), (1.0, 3), (1 / 3, 3), (0.125, 8)):
            recordShared(self.recorder, fraction, count, 1.0)
            (event,) = self.events()
            self.assertTrue(isOfSharing(event.limitName))
            self.assertEqual(recordedShare(event.limitName, event.value), (fraction, count))

    def test_taken(self) -> None:
        """What was taken, and identities, the first of which is zero."""
        for taken, isOld in (
            (Taken("received_byte_rate", ALICE, 1234.5), False),
            (Taken("new_identity_rate", QuotaEntity(user="alice"), 1.0, (0,)), False),
            (Taken("new_identity_rate", QuotaEntity(user="alice"), 1.0, (2**40,)), True),
        ):
            recordTaken(self.recorder, taken, isOld, 1.0)
            (event,) = self.events()
            self.assertTrue(isOfSharing(event.limitName))
            self.assertIsNone(recordedShare(event.limitName, event.value))
            entity = QuotaEntity(event.user, event.clientId, event.ip)
            self.assertEqual(recordedTaken(event.limitName, entity, event.value), (taken, isOld))
            # What is no limit of somebody is no row of the table.
            self.assertGreater(event.value, 0)
            self.assertNotEqual(entity, QuotaEntity())
        self.assertFalse(isOfSharing("received_byte_rate"))
