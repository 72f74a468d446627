"""L{admission.status.requesttimes}."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.request import ServerRequest
from admission.status.requesttimes import MAX_KINDS, OTHERS, WINDOW_SECONDS, RequestTimes


class RequestTimesTests(SynchronousTestCase):
    """L{RequestTimes}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.times = RequestTimes(self.clock.seconds)

    def serve(self, kind: str | None, seconds: float, isAnswered: bool = True) -> None:
        """Have a request take so long."""
        now = self.clock.seconds()
        request = ServerRequest(None, 100, now - seconds)
        request.kind = kind
        if isAnswered:
            request.answer(now)
        self.times.requestOver(request)

    def test_quantiles(self) -> None:
        """Each kind has the median and the 99th percentile of its times, the most frequent first."""
        for number in range(100):
            self.serve("Produce", 0.001 if number < 60 else 0.05)
        self.serve("Fetch", 0.5)
        self.assertEqual(
            self.times.fields(self.clock.seconds()),
            [
                {"kind": "Produce", "count": 100, "medianSeconds": 0.001, "percentile99Seconds": 0.05},
                {"kind": "Fetch", "count": 1, "medianSeconds": 0.5, "percentile99Seconds": 0.5},
            ],
        )
        self.assertEqual(dict(self.times.read(self.clock.seconds()))[("Produce", "0.99")], 0.05)

    def test_others(self) -> None:
        """What was not answered, and what is of no kind, has no time."""
        self.serve("Produce", 1.0, isAnswered=False)
        self.serve(None, 1.0)
        self.assertEqual(self.times.fields(self.clock.seconds()), [])

    def test_forgets(self) -> None:
        """What ended long ago does not count, whether or not requests come."""
        self.serve("Produce", 1.0)
        self.clock.advance(WINDOW_SECONDS)
        self.serve("Produce", 0.001)
        (row,) = self.times.fields(self.clock.seconds())
        self.assertEqual((row["count"], row["percentile99Seconds"]), (2, 1.0))
        self.clock.advance(WINDOW_SECONDS)
        (row,) = self.times.fields(self.clock.seconds())
        self.assertEqual((row["count"], row["percentile99Seconds"]), (1, 0.001))
        self.clock.advance(2 * WINDOW_SECONDS)
        self.assertEqual(self.times.fields(self.clock.seconds()), [])

    def test_tooLong(self) -> None:
        """A time beyond all ranges is not told as a number, and fails nothing."""
        self.serve("Fetch", 1e6)
        (row,) = self.times.fields(self.clock.seconds())
        self.assertEqual((row["count"], row["medianSeconds"]), (1, None))
        self.assertEqual(list(self.times.read(self.clock.seconds())), [])

    def test_anyNumberOfKinds(self) -> None:
        """However many kinds there are, there is an end to what is kept."""
        for number in range(MAX_KINDS + 5):
            self.serve(f"kind {number}", 0.001)
        rows = self.times.fields(self.clock.seconds())
        self.assertEqual((len(rows), rows[0]["kind"], rows[0]["count"]), (MAX_KINDS + 1, OTHERS, 5))
