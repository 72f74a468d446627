"""A recording of before limits had names of their own is replayed as it always was."""

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.checkout import ROOT
from tests.kit.identitygate import assertAsRecorded, gate, readRecording


class KeptRecordingTests(SynchronousTestCase):
    """C{tests/kept/recording}: a broker with idempotent producers over their quota, and limits that were set."""

    def test_gate(self) -> None:
        """Every decision is the one that was recorded, and the limits keep the names that they were recorded by."""
        recording = readRecording(str(ROOT / "tests/kept/recording"))
        names = {row["limit_name"] for row in recording.limits}
        self.assertLessEqual({"producer_byte_rate", "consumer_byte_rate", "producer_ids_rate"}, names)
        self.assertGreater(sum(row["throttle_ms"] > 0 for row in recording.rows), 0)
        judged = gate(recording)
        assertAsRecorded(self, judged)
        self.assertEqual({each.candidate for each in judged}, {"recorded client-bytes", "recorded producer-ids"})
