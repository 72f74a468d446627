"""
Beside the clients of the soak: those that connect for a moment, and an administrator.

C{python -m benchmarks.soakerrands SETTINGS} runs them until its standard input ends, and writes a line of JSON for
whatever fails and, at the end, how much was done.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Callable
from random import Random

from attrs import asdict, frozen

from tests.kit.brokerfixture import requestFrame, requestOf
from tests.kit.lines import hasEnded
from tests.kit.rawclient import RawClient, fetchRequest

ADMINISTRATOR_EVERY = 20
"""After so many of the others."""

PATIENCE_SECONDS = 30.0


@frozen
class ErrandSettings:
    """
    @ivar port: the broker's for TCP.
    @ivar tlsPort: its port for TLS.
    @ivar authority: the path of the certificate that signed its own.
    @ivar topic: one that is there.
    @ivar perSecond: how many connections are made in a second.
    """

    port: int
    tlsPort: int
    authority: str
    topic: str
    perSecond: float


def commandOf(settings: ErrandSettings) -> list[str]:
    """
    How to run them.
    """
    return [sys.executable, "-m", __name__, json.dumps(asdict(settings))]


class Errands:
    """
    Runs them, one after another.
    """

    def __init__(self, settings: ErrandSettings) -> None:
        from confluent_kafka.admin import AdminClient

        self._settings = settings
        self._random = Random(0)
        self._tls = ssl.create_default_context(cafile=settings.authority)
        self._admin = AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{settings.tlsPort}",
                "security.protocol": "SSL",
                "ssl.ca.location": settings.authority,
                "client.id": "administrator",
                "log_level": 2,
            }
        )
        self._counts: dict[str, int] = {}

    def run(self) -> None:
        """
        Until standard input ends.
        """
        number = 0
        while not hasEnded(1 / self._settings.perSecond):
            number += 1
            isAdministrators = number % ADMINISTRATOR_EVERY == 0
            errand: Callable[[], None] = (
                self.administrate
                if isAdministrators
                else self._random.choice(
                    [self.ask, self.askAndReset, self.hangUpBefore, self.hangUpWithin, self.waitAndLeave]
                )
            )
            name = errand.__name__
            self._counts[name] = self._counts.get(name, 0) + 1
            try:
                errand()
            except Exception as error:
                print(json.dumps({"error": f"{name}: {error!r}"}), flush=True)
        print(json.dumps({"errands": self._counts}), flush=True)

    def _connect(self) -> RawClient:
        isTLS = self._random.random() < 0.5
        settings = self._settings
        client = RawClient(settings.tlsPort if isTLS else settings.port, self._tls if isTLS else None)
        client.socket.settimeout(PATIENCE_SECONDS)
        return client

    def ask(self) -> None:
        """
        A question, an answer, and a farewell.
        """
        with self._connect() as client:
            client.metadata(self._settings.topic)
            client.endOffset(self._settings.topic)

    def askAndReset(self) -> None:
        """
        The same without a farewell.
        """
        client = self._connect()
        client.metadata(self._settings.topic)
        client.reset()

    def hangUpBefore(self) -> None:
        """
        A connection and nothing more, as of a monitor that looks whether the port is open.
        """
        self._connect().close()

    def hangUpWithin(self) -> None:
        """
        Hang up in the middle of a request.
        """
        frame = requestFrame(requestOf("Metadata", 12, topics=None), 1)
        client = self._connect()
        client.sendBytes(frame[: self._random.randrange(1, len(frame))])
        (client.reset if self._random.random() < 0.5 else client.close)()

    def waitAndLeave(self) -> None:
        """
        Wait at the end of a partition, and hang up while waiting.
        """
        client = self._connect()
        end = client.endOffset(self._settings.topic)
        client.send(fetchRequest(self._settings.topic, end, waitMs=30_000, minBytes=1 << 20))
        (client.reset if self._random.random() < 0.5 else client.close)()

    def administrate(self) -> None:
        """
        Create a topic, look at it and at others, change limits, and delete the topic.
        """
        from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

        name = f"errand{self._random.randrange(1 << 30)}"
        for created in self._admin.create_topics([NewTopic(name, num_partitions=4)]).values():
            created.result(PATIENCE_SECONDS)
        for described in self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values():
            described.result(PATIENCE_SECONDS)
        self._admin.list_topics(timeout=PATIENCE_SECONDS)
        self._admin.list_consumer_groups().result(PATIENCE_SECONDS)
        with self._connect() as client:
            for isRemoved in (False, True):
                operation = {"key": "consumer_byte_rate", "value": 5e6, "remove": isRemoved}
                entity = [{"entity_type": "client-id", "entity_name": name}]
                answer = client.ask(
                    requestOf(
                        "AlterClientQuotas", 1, entries=[{"entity": entity, "ops": [operation]}], validate_only=False
                    )
                )
                assert not answer.entries[0].error_code, answer
        for deleted in self._admin.delete_topics([name]).values():
            deleted.result(PATIENCE_SECONDS)


def main(text: str) -> None:
    """
    Run errands.
    """
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    Errands(ErrandSettings(**json.loads(text))).run()


if __name__ == "__main__":
    main(sys.argv[1])
