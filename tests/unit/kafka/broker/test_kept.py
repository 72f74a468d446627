"""What a broker has left of before limits had names of their own, and its modules stood in rooms."""

import shutil

from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.serving.quotalimits import KAFKA_LIMITS, QuotaLimits
from admission.quotas.metering import Windows
from admission_plugins.clientquotas import ClientBytes
from admission_plugins.producerids import ProducerIds
from tests.kit.checkout import ROOT
from tests.kit.logfixture import Threads, TurnClock


class KeptDataTests(SynchronousTestCase):
    """C{tests/kept/broker}: 80 records, a group, producers and limits."""

    def test_opens(self) -> None:
        """All of it is there, the records byte for byte."""
        path = self.mktemp()
        shutil.copytree(ROOT / "tests/kept/broker", path)
        clock, threads = TurnClock(), Threads()
        log = SegmentLog(path, clock, lambda: 1.8e9, threads.deferToThread, retentionSeconds=None)
        [partition] = log.topic("kept").partitions
        self.assertEqual((partition.highWatermark, log.endedUncleanly), (80, False))
        [segment] = (ROOT / "tests/kept/broker/partitions/kept-0.0").glob("*.log")
        self.assertEqual(log.read(partition, 0, 1 << 20), segment.read_bytes())
        self.assertEqual(len(list(log.table("groups").items())), 1)
        self.assertEqual(len(list(log.producers())), 1)
        policies = [("client-bytes", ClientBytes(Windows(11, 1.0))), ("producer-ids", ProducerIds())]
        control = AdmissionControl(policies, 60.0, shownAliases=KAFKA_LIMITS)
        limits = QuotaLimits(log, control, {}, clock.seconds)
        expected = {
            QuotaEntity(clientId="reports"): {"producer_byte_rate": 4e6, "consumer_byte_rate": 8e6},
            QuotaEntity(clientId=DEFAULT): {"producer_byte_rate": 3e4},
            QuotaEntity(user="alice"): {"producer_ids_rate": 10.0},
        }
        self.assertEqual(dict(limits.describe({}, False)), expected)
        self.assertEqual(control.limits, expected)
        closed = log.close()
        threads.runAll()
        self.successResultOf(closed)
