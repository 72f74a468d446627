"""The broker is a server whose requests policies admit, as L{admission.testing.servercontract} has it."""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack_from

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from admission.connection.factory import AdmittedFactory
from admission.control import AdmissionControl
from admission.kafka.wire.versions import PRODUCE
from admission.testing.servercontract import REFUSED, SERVED, AdmittedServerContract, WatchedPolicy
from tests.kit.brokerfixture import (
    BrokerTestCase,
    batchOf,
    fetchFields,
    produceFields,
    readResponse,
    requestFrame,
    requestOf,
)

WAITING = 1000
"""Added to the numbers of requests that wait."""

WAIT_MS = 3_600_000


class BrokerContractTests(AdmittedServerContract, BrokerTestCase):
    """Requests that are answered at once are Produce, and those that wait are Fetch."""

    # The answer to a Produce does not exist yet when it is charged.
    isChargedLast = False

    def setUp(self) -> None:
        BrokerTestCase.setUp(self)
        self.policy = WatchedPolicy()
        self.takeControl(AdmissionControl([("watched", self.policy)], 20.0))
        self.server: AdmittedFactory = self.factory
        self.connected = []
        self.topic()
        self.read = self.topic("read")
        self.stored = 0

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """A frame, which has the number for its correlation id."""
        if isWaiting:
            fields = fetchFields(self.read, self.stored, maxWaitMs=WAIT_MS)
            return requestFrame(requestOf("Fetch", 12, **fields), number + WAITING, client)
        return requestFrame(requestOf("Produce", 9, **produceFields("events", batchOf(b"a"))), number, client)

    def answersIn(self, received: bytes) -> Sequence[str]:
        """What is in frames."""
        answers, offset = [], 0
        while offset < len(received):
            sizeBytes, number = unpack_from(">ii", received, offset)
            body = received[offset + 4 : offset + 4 + sizeBytes]
            offset += 4 + sizeBytes
            isRefused = False
            if number < WAITING:
                _, answer = readResponse(body, load_response_schema(PRODUCE, 9))
                error = answer.responses[0].partition_responses[0].error_code
                isRefused = error is ErrorCode.throttling_quota_exceeded
            answers.append(REFUSED if isRefused else SERVED)
        return answers

    def waiting(self) -> int:
        """What is in the purgatory."""
        return self.purgatory.delayed

    def release(self) -> None:
        """Let there be a record."""
        self.stored += 1
        self.store(self.read.partitions[0], b"a")
