"""L{admission.offline.streaming}, fed by recordings that grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.offline.aggregate import clientMinutes, throttleMinutes
from admission.offline.clean import clean
from admission.offline.streaming import CHECKPOINT, appendAvailable, clientMinutesStream, throttleMinutesStream
from admission.recording.events import ADMIT, REJECT, THROTTLE, Origin
from admission.recording.tables import REQUESTS
from tests.kit.recordings import writeRecording
from tests.kit.sparksession import sharedSession
from tests.offline.offlinerows import BEGIN, Row, at, rowsOf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

POLICIES = ("client-bytes", "request-time")


def randomEvents(seed: int, beginMinutes: float, endMinutes: float, count: int) -> list[KafkaRequestEvent]:
    """Requests of a few clients between two times, in order."""
    random = Random(seed)
    events = []
    for seconds in sorted(random.uniform(beginMinutes * 60, endMinutes * 60) for _ in range(count)):
        throttleMs = random.choice((0, 0, 3, 40, 700_000))
        events.append(
            KafkaRequestEvent(
                connectionId=1,
                arrivedSeconds=seconds,
                principal="alice",
                clientId=random.choice((None, "app", "web")),
                kind="Produce",
                requestBytes=random.randrange(1000),
                decision=THROTTLE if throttleMs else random.choice((ADMIT, REJECT)),
                throttleTimeMs=throttleMs,
                policyDelaysSeconds=(throttleMs / 1000, 0.0),
                decidedSeconds=seconds,
                sentSeconds=seconds + 0.1,
            )
        )
    return events


class StreamingTests(SynchronousTestCase):
    """A recording that grows between runs."""

    def setUp(self) -> None:
        self.recording = self.mktemp()
        self.results = self.mktemp()

    def record(self, boot: str, events: list[KafkaRequestEvent]) -> None:
        """Add to the recording."""
        origin = Origin("0", boot, policyNames=POLICIES)
        writeRecording(self.recording, events, origin, wallSeconds=BEGIN.timestamp())

    def runOnce(self, transform: Callable[..., DataFrame]) -> StreamingQuery:
        """Take what there is."""
        requests = sharedSession().readStream.format("admission").load(self.recording)
        query = appendAvailable(transform(requests, "2 minutes"), self.results, "results")
        query.awaitTermination()
        return query

    def forgetLastCommit(self) -> None:
        """Leave everything as if the last run had been killed at its very end."""
        commits = Path(self.results, CHECKPOINT, "commits")
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / f"{last}", commits / f".{last}.crc"):
            path.unlink()

    def found(self) -> list[Row]:
        """The results so far."""
        return rowsOf(sharedSession().read.parquet(self.results))

    def batch(self, transform: Callable[[DataFrame], DataFrame]) -> list[Row]:
        """The same of the whole recording at once."""
        return rowsOf(transform(clean(sharedSession().read.format("admission").load(self.recording), REQUESTS)))

    def test_clientMinutes(self) -> None:
        """
        Runs over a recording that grows, one of them twice because its end was
        lost, come to what a batch says of the minutes that are over, each once.
        Rows that cannot be are left out and counted.
        """
        self.record("one", [KafkaRequestEvent(1, 1.0, requestBytes=-1), *randomEvents(1, 0, 6, 60)])
        query = self.runOnce(clientMinutesStream)
        observed = [progress["observedMetrics"].get(REQUESTS.name) for progress in query.recentProgress]
        counted = [metrics.asDict() for metrics in observed if metrics is not None]
        self.assertEqual([sum(each[name] for each in counted) for name in ("rows", "size", "origin")], [61, 1, 0])
        early = self.found()
        self.assertEqual({row["minute"] for row in early}, {at(0), at(1), at(2)})

        self.record("one", randomEvents(2, 6, 9, 40))
        self.record("two", randomEvents(3, 5, 9, 40))
        self.runOnce(clientMinutesStream)
        later = self.found()
        self.assertGreater(len(later), len(early))
        self.assertEqual([row for row in later if row["minute"] <= at(2)], early)

        self.forgetLastCommit()
        self.record("two", [KafkaRequestEvent(1, 3600.0)])
        self.runOnce(clientMinutesStream)
        expected = self.batch(partial(clientMinutes, isExact=False))
        self.assertEqual(self.found(), [row for row in expected if row["minute"] < at(60)])

    def test_throttleMinutes(self) -> None:
        """So do the histograms; and who comes later than is waited for is left out and counted."""
        self.record("one", randomEvents(4, 0, 3, 60))
        expected = self.batch(throttleMinutes)
        self.record("one", [KafkaRequestEvent(1, 3600.0)])
        self.runOnce(throttleMinutesStream)
        self.assertEqual(self.found(), expected)

        self.record("two", randomEvents(5, 0, 1, 3))
        query = self.runOnce(throttleMinutesStream)
        self.assertEqual(self.found(), expected)
        dropped = sum(
            operator["numRowsDroppedByWatermark"]
            for progress in query.recentProgress
            for operator in progress["stateOperators"]
        )
        self.assertGreater(dropped, 0)
