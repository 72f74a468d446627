"""A fault of a real broker process or of its machine, real clients beside it, and what they get."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import decodeRecords
from tests.kit.brokerfixture import batchOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess, MeasuredBroker, endpoint, freePort
from tests.kit.rawclient import RawClient


class FaultyBroker(MeasuredBroker):
    """A broker run by L{tests.kit.faultybroker}."""

    module = "tests.kit.faultybroker"

    def hang(self) -> None:
        """Have flushes to the disk hang from now on."""
        self._asked("hang")

    def release(self) -> None:
        """Let them end."""
        self._asked("release")

    def setClock(self, bySeconds: float) -> None:
        """Set the machine's clock."""
        self._asked(f"jump {bySeconds}")

    def stall(self, seconds: float) -> None:
        """Have it do nothing for so long."""
        self._asked(f"stall {seconds}")


class Copy(NamedTuple):
    """Where a value stands, and who has written it."""

    offset: int
    producerId: int
    epoch: int
    sequence: int


def copiesIn(port: int, topic: str, partitionCount: int = 1) -> Mapping[bytes, Sequence[Copy]]:
    """
    All that stands in a topic, by its values.

    @param port: of a broker on this machine.
    """
    found: dict[bytes, list[Copy]] = defaultdict(list)
    with RawClient(port) as raw:
        for partition in range(partitionCount):
            for batch, content in raw.batches(topic, partition=partition):
                for number, record in enumerate(decodeRecords(content)):
                    assert record.value is not None
                    sequence = batch.baseSequence + number
                    copy = Copy(batch.baseOffset + number, batch.producerId, batch.producerEpoch, sequence)
                    found[record.value].append(copy)
    return found


def sameProducer(copies: Iterable[Sequence[Copy]]) -> int:
    """
    How many values one producer, of one epoch, has written more than once: a broker that does as it should accepts
    none.
    """
    return sum(len({(each.producerId, each.epoch) for each in some}) < len(some) for some in copies)


class Busy:
    """
    A thread that does something again and again, while it is entered.

    @ivar error: what has ended it early.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._isOver = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._isOver.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._isOver.is_set():
                self._work()
        except BaseException as error:
            self.error = error


class FaultTestCase(SynchronousTestCase):
    """
    One broker for each test.

    @cvar settings: of the broker, as NAME=VALUE.
    @cvar options: of C{twistd admission} besides.
    @cvar brokerType: which kind of process.
    """

    settings: Sequence[str] = ()
    options: Sequence[str] = ()
    brokerType: type[BrokerProcess] = BrokerProcess

    def setUp(self) -> None:
        self.start()

    def start(self, *options: str) -> None:
        """
        Start a broker, which ends with the test.

        @param options: further ones.
        """
        self._statusPort = freePort()
        self.broker = self.brokerType(
            *("--status", endpoint(self._statusPort)),
            *(f"--set={each}" for each in self.settings),
            *self.options,
            *options,
        )
        self.addCleanup(self.broker.remove)
        self.prepare()
        self.broker.start()

    def prepare(self) -> None:
        """Called before the broker starts."""

    def connect(self) -> RawClient:
        """A connection, closed when the test ends at the latest."""
        client = RawClient(self.broker.port)
        self.addCleanup(client.close)
        return client

    def health(self) -> list[str]:
        """What C{/healthz} complains of."""
        try:
            with urlopen(f"http://127.0.0.1:{self._statusPort}/healthz", timeout=PATIENCE_SECONDS) as response:
                answer = json.load(response)
        except HTTPError as unavailable:
            with unavailable:
                answer = json.load(unavailable)
        reasons: list[str] = answer.get("reasons", [])
        return reasons

    def tell(self, fault: str, figures: str) -> None:
        """Print what has been measured, in a line."""
        print(f"\n{fault}: {figures}")

    def assertNoComplaints(self) -> None:
        """The log of the broker has nothing that only a bug writes there."""
        self.assertEqual(self.broker.complaints(), [])


def recent(value: bytes) -> bytes:
    """A batch with one record, which retention keeps."""
    return batchOf(value, timestampMs=int(time.time() * 1000))


def milliseconds(seconds: Sequence[float]) -> str:
    """The median and the largest of some times, for a person."""
    ordered: list[Any] = sorted(seconds)
    return f"{1000 * ordered[len(ordered) // 2]:.0f} ms, at most {1000 * ordered[-1]:.0f}"
