"""What a test says of a server of Kafka's protocol, for L{admission.testing.servercontract}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import unpack_from
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from admission.kafka.wire.versions import PRODUCE
from admission.testing.servercontract import REFUSED, SERVED, AdmittedServerContract
from tests.kit.brokerfixture import batchOf, produceFields, readResponse, requestFrame, requestOf

WAIT_MS = 3_600_000

WAITING = 1000
"""Added to the numbers of requests that wait."""


class KafkaServerContract(AdmittedServerContract):
    """Requests that are answered at once are Produce, and those that wait are Fetch."""

    # The answer to a Produce does not exist yet when it is charged, or has not been passed on.
    isChargedLast = False

    def fetchedFields(self) -> Mapping[str, Any]:
        """The fields of a Fetch that waits for C{WAIT_MS}."""
        raise NotImplementedError

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """A frame, which has the number for its correlation id."""
        if isWaiting:
            return requestFrame(requestOf("Fetch", 12, **self.fetchedFields()), number + WAITING, client)
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
