"""
A client of good manners in a process of its own, and what it notices.

C{python -m tests.kit.goodclient PORT PID TOPIC PACE BYTES [PASSWORD]} asks the
broker, whose process is PID, for Metadata, to store a record of BYTES and to
fetch it, by turns, every PACE seconds; given a password, it logs in.  For each
line on standard input it tells on standard output, as JSON, what has happened
since the one before.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from tests.kit.brokerfixture import batchOf, requestFrame, requestOf
from tests.kit.brokerprocess import ENVIRONMENT, BrokerProcess
from tests.kit.fairclock import FairClock, cpuSeconds
from tests.kit.rawclient import RawClient, fetchRequest, produceRequest

HOST = "127.0.0.2"
"""Its address, which no attacker has."""

CLIENT_ID = "good"

_LEADER_ONLY = 1
"""The acknowledgement that waits for no disk, which is not what is attacked here."""


@frozen
class Noticed:
    """
    What a client has noticed in some time.

    @ivar latencies: in seconds, for each request since it was due: if one waits,
        those that should have been sent meanwhile are late as well.
    @ivar worked: how much of each latency, at most, the broker has computed.
    @ivar failures: of requests that had no answer, or an error for one.
    """

    latencies: list[float]
    worked: list[float]
    failures: list[str]

    def quantile(self, fraction: float) -> float:
        """The latency that C{fraction} of the requests did not exceed."""
        return quantile(self.latencies, fraction)


def quantile(values: Sequence[float], fraction: float) -> float:
    """What C{fraction} of C{values} do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]


class GoodClient:
    """Runs such a process from its making until L{stop}."""

    def __init__(
        self, broker: BrokerProcess, topic: str, paceSeconds: float, recordBytes: int, password: str | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.kit.goodclient"),
                *(str(broker.port), str(broker.process.pid), topic, str(paceSeconds), str(recordBytes)),
                *(() if password is None else (password,)),
            ],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def noticed(self) -> Noticed:
        """What has happened since this was last asked; a request that is out is awaited."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client of good manners has gone"
        return Noticed(**json.loads(line))

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class _Session:
    def __init__(self, port: int, topic: str, recordBytes: int, password: str | None) -> None:
        self._port = port
        self._password = password
        self._topic = topic
        metadata = requestOf("Metadata", 12, topics=[{"topic_id": None, "name": topic}])
        produce = produceRequest(topic, batchOf(bytes(recordBytes)), acks=_LEADER_ONLY)
        self._requests = [(each, requestFrame(each, 1, CLIENT_ID)) for each in (metadata, produce)]
        self._offset = 0
        self._client: RawClient | None = None

    def ask(self, number: int) -> None:
        """
        Send a request and wait for the response.

        @raise OSError: if there is none.
        @raise AssertionError: if it is an error.
        """
        if self._client is None:
            self._client = RawClient(self._port, host=HOST)
            if self._password is not None:
                assert not self._client.logIn(CLIENT_ID, self._password)
        kind = number % (len(self._requests) + 1)
        if kind < len(self._requests):
            entity, frame = self._requests[kind]
        else:
            entity = fetchRequest(self._topic, self._offset)
            frame = requestFrame(entity, 1, CLIENT_ID)
        try:
            self._client.sendBytes(frame)
            answer: Any = self._client.receive(entity.__api_key__, entity.__version__)
        except OSError:
            self._client.close()
            self._client = None
            raise
        if hasattr(answer, "topics"):
            result = answer.topics[0]
        elif hasattr(answer.responses[0], "partitions"):
            result = answer.responses[0].partitions[0]
            assert result.records, "nothing was fetched"
        else:
            result = answer.responses[0].partition_responses[0]
            self._offset = result.base_offset
        assert not result.error_code, result


def main(port: int, pid: int, topic: str, paceSeconds: float, recordBytes: int, password: str | None = None) -> None:
    """Ask until standard input ends."""
    clock = FairClock("thread-self", f"{pid}/task/{pid}")
    session = _Session(port, topic, recordBytes, password)
    latencies: list[float] = []
    worked: list[float] = []
    failures: list[str] = []
    number = 0
    session.ask(number)
    due = clock.seconds()
    while True:
        due += paceSeconds
        time.sleep(max(due - clock.seconds(), 0))
        number += 1
        cpuBefore = cpuSeconds(pid)
        try:
            session.ask(number)
        except (OSError, AssertionError) as error:
            failures.append(f"{type(error).__name__}: {error}")
        end, cpu = clock.seconds(), cpuSeconds(pid) - cpuBefore
        latencies.append(max(end - due, 0.0))
        while due + paceSeconds < end:
            # Due meanwhile; to send them all now would be an attack of its own.
            due += paceSeconds
            latencies.append(end - due)
        worked += [min(each, cpu) for each in latencies[len(worked) :]]
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps({"latencies": latencies, "worked": worked, "failures": failures}), flush=True)
            latencies, worked, failures = [], [], []


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:])
