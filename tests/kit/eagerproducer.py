"""A librdkafka producer that does not wait for acknowledgements, unless thousands are missing."""

from __future__ import annotations

from typing import Any

from attrs import define, field
from confluent_kafka import KafkaError, Producer

from tests.kit.brokerprocess import PATIENCE_SECONDS

_MOST_UNDERWAY = 5000
"""So few that a slow machine acknowledges them before librdkafka gives them up, after five minutes."""


@define(eq=False)
class EagerProducer:
    """
    A producer of the numbers from 0 on, to the first partition of a topic.

    @ivar address: of the broker.
    @ivar acknowledged: values by their offsets, as the broker said.
    @ivar errors: of those that were given up, or refused.
    @ivar sentCount: how many values there were so far.
    """

    address: str
    topic: str
    settings: dict[str, Any]
    acknowledged: dict[int, bytes] = field(factory=dict)
    errors: list[KafkaError] = field(factory=list)
    sentCount: int = 0
    _producer: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        common = {
            "bootstrap.servers": self.address,
            "linger.ms": 1,
            "batch.num.messages": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }
        self._producer = Producer(common | self.settings)

    def send(self, count: int) -> None:
        """Send the next values, as far as not too many are underway, and hear of earlier ones."""
        underway = self.sentCount - len(self.acknowledged) - len(self.errors)
        for _ in range(min(count, _MOST_UNDERWAY - underway)):
            self._producer.produce(self.topic, b"%d" % self.sentCount, on_delivery=self._delivered)
            self.sentCount += 1
        self._producer.poll(0.02)

    def flush(self) -> int:
        """
        Wait until all is acknowledged.

        @return: how much is not.
        """
        return int(self._producer.flush(PATIENCE_SECONDS))

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged[message.offset()] = message.value()
        else:
            self.errors.append(error)
