# -*- test-case-name: tests.clients.test_broker_for_tests -*-
"""
The broker in a process of its own, for the tests of its clients.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from admission.extras import EXTRAS, lacking

from .serverprocess import AnsweringProcess

# kio imports hypothesis where that is installed, which takes longer than the rest of kio and makes a directory.
_PROGRAM = (
    "import sys; sys.modules['hypothesis'] = None; "
    "from admission.kafka.testing.testedbroker import main; main(sys.argv[1], sys.argv[2:])"
)

_ANY_PORT = re.compile(r"--listen=(tcp|ssl):0((?::.*)?)")


class BrokerProcess(AnsweringProcess):
    """
    A broker on 127.0.0.1 with a temporary directory for its data::

        with BrokerProcess() as broker:
            producer = KafkaProducer(bootstrap_servers=broker.address)

    It ends with the process that has made it, and those forked from that, also if these are killed; then nothing of it
    is left.

    It is what C{twistd admission} runs, with other defaults: the first member of a group does not wait for more
    (C{group.initial.rebalance.delay.ms}), C{acks=all} does not wait for the disk (C{write.caching}), and a client that
    exceeds a limit is throttled once it has taken what a second allows (C{client-bytes:algorithm=bucket}).

    @ivar port: where it listens; the same after a restart.
    @ivar addresses: where clients may connect: first L{address}, then where each option C{--listen} with the port 0 has
        it listen, such as C{ssl:0:privateKey=key.pem:certKey=cert.pem}.  It listens at a free port of 127.0.0.1 then,
        which is the same after a restart, too.
    """

    def __init__(self, *options: str) -> None:
        """
        @param options: further options of C{twistd admission}, such as C{"--set", "message.max.bytes=1MiB"}; relative
            paths in them are relative to the working directory of this process.
        @raise ImportError: if the extra C{kafka} is not installed.
        """
        missing = lacking("a broker", *EXTRAS["kafka"])
        if missing:
            raise ImportError(missing)
        super().__init__("broker")
        self._reservations: list[socket.socket] = []
        self.port = self._reserve()
        self.addresses = [self.address]
        self._options = [self._placed(*each) for each in zip(("", *options), options, strict=False)]
        # By client id, user and name: what the broker was last told, None where a limit was removed.
        self._limits: dict[tuple[str | None, str | None, str], float | None] = {}

    def _reserve(self) -> int:
        # A socket that does not listen keeps the port from others, but not from the broker, while that is down, too.
        reservation = socket.socket()
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        self._reservations.append(reservation)
        port: int = reservation.getsockname()[1]
        return port

    def _placed(self, before: str, option: str) -> str:
        found = _ANY_PORT.fullmatch(f"{before}={option}" if before == "--listen" else option)
        if found is None:
            return option
        port = self._reserve()
        self.addresses.append(f"127.0.0.1:{port}")
        kind, rest = found.groups()
        interface = "" if ":interface=" in rest else ":interface=127.0.0.1"
        return f"{'' if before == '--listen' else '--listen='}{kind}:{port}{interface}{rest}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def address(self) -> str:
        """
        What clients take for C{bootstrap.servers}.
        """
        return f"127.0.0.1:{self.port}"

    def remove(self) -> None:
        super().remove()
        for each in self._reservations:
            each.close()

    @contextmanager
    def throttled(self, clientId: str | None = None, user: str | None = None, **limits: float) -> Iterator[None]:
        """
        Limit a client until the block ends; a block within another one gives back what the outer one had set.  The
        broker tells a client that exceeds its limit how long to wait, and does not read from it for that long, or until
        the block ends.  A client that waits by itself, such as kafka-python, goes on waiting then.

        @param clientId: whose limits these are; of a client id of one user if C{user} is given, too, and of each client
            id that has no limits of its own if neither is.
        @param user: a name that clients log in by.
        @param limits: by their names in Kafka, such as C{producer_byte_rate} and C{consumer_byte_rate} in bytes a
            second, or C{request_percentage}.
        @raise TypeError: if one is no number.
        @raise ValueError: if the broker refuses them.
        """
        if not limits:
            raise ValueError("say which limits, such as producer_byte_rate=20_000")
        for name, limit in limits.items():
            if not isinstance(limit, int | float):
                raise TypeError(f"{name}={limit!r}: write a number, such as 20_000")
        before = {name: self._limits.get((clientId, user, name)) for name in limits}
        self._limit(clientId, user, limits)
        try:
            yield
        finally:
            if self.isRunning():
                self._limit(clientId, user, before)

    def _limit(self, clientId: str | None, user: str | None, limits: Mapping[str, float | None]) -> None:
        self._order("limit", clientId, user, limits)
        self._limits.update({(clientId, user, name): limit for name, limit in limits.items()})

    @contextmanager
    def fullPool(self) -> Iterator[None]:
        """
        Take all memory for requests until the block ends: also what is kept for small requests, and what others
        release meanwhile.  No request is read until then; those that the broker has are answered.

        @raise ValueError: if the pool has no bound.
        """
        self._order("fill")
        try:
            yield
        finally:
            if self.isRunning():
                self._order("empty")

    @contextmanager
    def down(self) -> Iterator[None]:
        """
        Kill the broker, and start it again when the block ends: at the same port, with the same data.
        """
        self.kill()
        try:
            yield
        finally:
            if not self.isRunning():
                self.start()

    def sensors(self) -> Mapping[str, float]:
        """
        What the broker measures, such as C{ConnectionsWaitingForMemory}; as in C{/sensors} of its status port.
        """
        sensors: Mapping[str, float] = self._order("sensors")
        return sensors

    def _order(self, *words: Any) -> Any:
        if self.isDown:
            raise self.failure("the broker is down: start it first")
        answer = self._asked(json.dumps(words))
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["result"]

    def _command(self) -> Sequence[str]:
        listen = ("--listen", f"tcp:{self.port}:interface=127.0.0.1", "--data", os.path.join(self._directory, "data"))
        # Nothing in the working directory may hide a module.
        return [sys.executable, "-P", "-c", _PROGRAM, self._directory, *listen, *self._options]

    def _waitUntilServing(self, begin: int) -> None:
        self._answer()
