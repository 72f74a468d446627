"""Tests for L{admission.kafka.wire.versions}."""

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.versions import API_VERSIONS, APIS, BY_KEY, FETCH, METADATA, PRODUCE, Api, advertised, served
from tests.kit.kioentities import everyVersion


class TableTests(SynchronousTestCase):
    """The table of what is served says what kio and the clients need."""

    def test_served(self) -> None:
        """A version is served from the oldest to the newest of its row, and nothing else is."""
        for api, apiVersion in everyVersion():
            self.assertIs(served(api.apiKey, apiVersion), api)
        for api in APIS:
            self.assertIsNone(served(api.apiKey, api.minVersion - 1))
            self.assertIsNone(served(api.apiKey, api.maxVersion + 1))
        self.assertIsNone(served(999, 0))
        self.assertIsNone(served(-1, -1))

    def test_produceIsAdvertisedFromZero(self) -> None:
        """Clients are told of Produce 0 to 12, though only 3 to 12 are served."""
        self.assertIn({"api_key": PRODUCE, "min_version": 0, "max_version": 12}, advertised())
        self.assertIsNone(served(PRODUCE, 2))
        self.assertIsNotNone(served(PRODUCE, 3))

    def test_othersAreAdvertisedAsServed(self) -> None:
        """Of every other API clients are told just what is served."""
        for api, row in zip(APIS, advertised(), strict=True):
            self.assertEqual((row["api_key"], row["max_version"]), (api.apiKey, api.maxVersion))
            if api.apiKey != PRODUCE:
                self.assertEqual(row["min_version"], api.minVersion)

    def test_fetchBeginsAtFour(self) -> None:
        """Fetch is served from version 4, without which librdkafka's producers write record formats of long ago."""
        self.assertEqual(BY_KEY[FETCH].minVersion, 4)

    def test_frameLimits(self) -> None:
        """Only Produce may use up the configured limit; the others have their own."""
        largest = [BY_KEY[each].largestFrameBytes for each in (PRODUCE, METADATA, API_VERSIONS)]
        self.assertEqual(largest, [None, 2**20, 4096])

    def test_oneRowIsEnough(self) -> None:
        """What a new row leaves out has a default."""
        heartbeat = Api(12, "Heartbeat", 0, 4, 4)
        self.assertEqual(advertised([heartbeat]), [{"api_key": 12, "min_version": 0, "max_version": 4}])
        self.assertEqual(heartbeat.largestFrameBytes, 2**20)
        self.assertGreater(heartbeat.maxElements, 0)
