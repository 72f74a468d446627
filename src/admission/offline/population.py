# -*- test-case-name: tests.offline.test_syntheticserver -*-
"""
Synthetic clients: their sizes, requests and think times, all from a seed.

The figures of real ones come from the statistics that Twitter has published of 54 of its caches
(https://github.com/twitter/cache-trace, stat/2020Mar.md, CC-BY-4.0), each of which stands for a client here: the sizes
of their values, the shares of write operations, and the exponents of Zipf's law that fit their popularity.  They do not
cover batches, links, service times and think times; these numbers are ours, and round.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from random import Random
from typing import NamedTuple

from attrs import field, frozen

from .simulator import MICROSECONDS

RECORD_BYTES = 224
"""The median of the mean value sizes of Twitter's caches."""

RECORD_SPREAD = 2.1
"""The standard deviation of their logarithms."""

ZIPF_EXPONENT = 1.21
"""The median of the exponents."""

WRITE_SHARE = 0.29
"""The mean share of write operations; most caches are near zero, and some near one."""

LARGEST_BYTES = 1 << 20
"""The default limit of Kafka's producers and consumers."""

_WRITE_CONCENTRATION = 0.4
_BATCH_RECORDS = 20.0
_BATCH_SPREAD = 1.0
_HEAD_BYTES = 100
_FETCH_BYTES = 120
_LINK_BYTES_PER_SECOND = 5e6
_LINK_SPREAD = 1.0
_SERVICE_US = 200.0
_SERVICE_SPREAD = 0.7
_COMMIT_US = 500.0
_OPENING_SECONDS = 1.0
_MIN_THINKING = 0.1
_NEW_PRODUCER_SHARE = 0.001
_ROGUE_EVERY = 25
_ROGUE_NEW_PRODUCER_SHARE = 0.25
_ROGUE_WRITE_SHARE = 0.5
_PRODUCERS_OF_CONNECTION = 1_000_000
_PRINCIPALS = 100
_HOSTS = 500
_MAX_CLIENTS = 2000
_MAX_CONNECTIONS = 100_000
_MAX_REQUESTS = 1_000_000_000


@frozen
class Member:
    """
    One client.

    @ivar principal: its identity, with C{clientId} and C{peer}.  There are at most 100 principals and 500 addresses.
    @ivar requestShare: its share of all requests.
    @ivar recordBytes: the size of its records.
    @ivar writeShare: the share of Produce in its requests; the others are Fetch.
    @ivar thinkUs: the mean think time of its connections.
    @ivar newProducerShare: the share of its Produce requests with a new producer id.
    """

    principal: str
    clientId: str
    peer: str
    requestShare: float
    recordBytes: float
    writeShare: float
    thinkUs: float
    newProducerShare: float


class Draft(NamedTuple):
    """
    A request as its client intends it, whatever the server decides.

    @ivar isProduce: or else a Fetch.
    @ivar responseBytes: the size of a Fetch's response; 0 for a Produce.
    @ivar producerId: of the records; -1 for a Fetch.
    @ivar receiveUs: how long it takes to arrive, once memory is allocated for it.
    @ivar serviceUs: its service time.
    @ivar commitUs: how long its answer then waits for the disk; 0 for a Fetch.
    @ivar thinkUs: how long the client thinks before it sends it.
    """

    isProduce: bool
    requestBytes: int
    responseBytes: int
    producerId: int
    receiveUs: int
    serviceUs: int
    commitUs: int
    thinkUs: int


class Stream:
    """
    All requests of one connection.  They depend on the seed, the population's numbers and the connection, never on the
    answers: so the same connections can be replayed with different policies.

    @ivar member: the connection's client.
    @ivar openedUs: when it is opened.
    """

    __slots__ = ("_largestBytes", "_linkBytesPerUs", "_logService", "_nextProducerId", "_random", "member", "openedUs")

    def __init__(self, population: Population, member: Member, number: int) -> None:
        """
        @param number: the index of the connection in the population.
        """
        self.member = member
        self._random = random = Random(f"{population.seed} connection {number}")
        self.openedUs = int(random.random() * min(_OPENING_SECONDS, population.seconds / 2) * MICROSECONDS)
        self._linkBytesPerUs = _LINK_BYTES_PER_SECOND / MICROSECONDS * exp(random.gauss(0.0, _LINK_SPREAD))
        self._nextProducerId = number * _PRODUCERS_OF_CONNECTION
        self._largestBytes = population.largestBytes
        self._logService = log(_SERVICE_US)

    def next(self) -> Draft:
        member, random = self.member, self._random
        # Always the same number of draws, so that no draw depends on the result of another.
        isProduce = random.random() < member.writeShare
        isNewProducer = random.random() < member.newProducerShare
        batchBytes = _HEAD_BYTES + int(member.recordBytes * _BATCH_RECORDS * exp(random.gauss(0.0, _BATCH_SPREAD)))
        serviceUs = 1 + int(exp(random.gauss(self._logService, _SERVICE_SPREAD)))
        commitUs = 1 + int(random.expovariate(1.0) * _COMMIT_US)
        thinkUs = 1 + int(random.expovariate(1.0) * member.thinkUs)
        batchBytes = min(batchBytes, self._largestBytes)
        if not isProduce:
            receiveUs = 1 + int(_FETCH_BYTES / self._linkBytesPerUs)
            return Draft(False, _FETCH_BYTES, batchBytes, -1, receiveUs, serviceUs, 0, thinkUs)
        self._nextProducerId += isNewProducer
        receiveUs = 1 + int(batchBytes / self._linkBytesPerUs)
        return Draft(True, batchBytes, 0, self._nextProducerId, receiveUs, serviceUs, commitUs, thinkUs)


@frozen
class Population:
    """
    Clients that each have some connections, on which they send one request at a time: they think, send, wait for the
    answer, and think again.

    Their shares of the requests follow Zipf's law.  The sizes of requests are log-normal, around a size of each
    client's own, and think times are exponential.  Each 25th client writes a lot, and keeps introducing new producer
    ids.

    @ivar seed: determines everything else.
    @ivar clients: how many there are.
    @ivar connections: how many each has.
    @ivar seconds: for how long they run.
    @ivar requests: about how many they would send in that time if none were throttled; one per second and connection by
        default. Clients that cannot work as fast send fewer.
    @ivar hotShare: the first client's share of the requests; from Zipf's law by default.
    @ivar largestBytes: the largest request and answer.
    """

    seed: int = 7
    clients: int = 200
    connections: int = 4
    seconds: float = 600.0
    requests: int | None = None
    hotShare: float | None = None
    largestBytes: int = LARGEST_BYTES
    members: Sequence[Member] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        for name, least in (("clients", 1), ("connections", 1), ("requests", 1), ("largestBytes", 1024)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be {least} or more, not {value}")
        if self.clients > _MAX_CLIENTS:
            raise ValueError(
                f"clients must be {_MAX_CLIENTS} or fewer: a recording does not tell many more names apart"
            )
        if self.clients * self.connections > _MAX_CONNECTIONS:
            raise ValueError(f"connections must be {_MAX_CONNECTIONS // self.clients} or fewer for so many clients")
        if not 0.001 <= self.seconds <= 10 * 366 * 86400:
            raise ValueError(f"seconds must be from a thousandth to ten years, not {self.seconds:g}")
        if self.offeredRequests > _MAX_REQUESTS:
            raise ValueError(
                f"requests must be {_MAX_REQUESTS} or fewer, not {self.offeredRequests:.4g}; "
                "unless given, they follow from clients, connections and seconds"
            )
        if self.hotShare is not None and not (0 < self.hotShare < 1 and self.clients > 1):
            raise ValueError(f"hotShare must be between 0 and 1, with two clients or more, not {self.hotShare:g}")
        object.__setattr__(self, "members", self._makeMembers())

    @property
    def offeredRequests(self) -> float:
        """
        About how many requests there would be if no client were throttled.
        """
        return self.requests or self.clients * self.connections * self.seconds

    def streams(self) -> Sequence[Stream]:
        """
        A new stream for each connection.
        """
        numbers = range(1, self.clients * self.connections + 1)
        return [Stream(self, self.members[(number - 1) // self.connections], number) for number in numbers]

    def _makeMembers(self) -> Sequence[Member]:
        weights = [rank**-ZIPF_EXPONENT for rank in range(1, self.clients + 1)]
        if self.hotShare is not None:
            weights[0] = sum(weights[1:]) * self.hotShare / (1 - self.hotShare)
        total = sum(weights)
        return [self._makeMember(index, weight / total) for index, weight in enumerate(weights)]

    def _makeMember(self, index: int, requestShare: float) -> Member:
        random = Random(f"{self.seed} client {index}")
        recordBytes = RECORD_BYTES * exp(random.gauss(0.0, RECORD_SPREAD))
        writeShare = random.betavariate(_WRITE_CONCENTRATION, _WRITE_CONCENTRATION * (1 / WRITE_SHARE - 1))
        isRogue = (index + 1) % _ROGUE_EVERY == 0
        if isRogue:
            writeShare = max(writeShare, _ROGUE_WRITE_SHARE)
        cycleUs = self.seconds * self.connections / (self.offeredRequests * requestShare) * MICROSECONDS
        meanBytes = min(recordBytes * _BATCH_RECORDS * exp(_BATCH_SPREAD**2 / 2), self.largestBytes)
        receiveUs = meanBytes / _LINK_BYTES_PER_SECOND * MICROSECONDS * exp(_LINK_SPREAD**2 / 2)
        busyUs = _SERVICE_US * exp(_SERVICE_SPREAD**2 / 2) + writeShare * (receiveUs + _COMMIT_US)
        return Member(
            principal=f"user-{index % _PRINCIPALS}",
            clientId=f"client-{index}",
            peer=f"10.0.{index % _HOSTS // 100}.{index % 100 + 1}",
            requestShare=requestShare,
            recordBytes=recordBytes,
            writeShare=writeShare,
            thinkUs=max(cycleUs - busyUs, cycleUs * _MIN_THINKING),
            newProducerShare=_ROGUE_NEW_PRODUCER_SHARE if isRogue else _NEW_PRODUCER_SHARE,
        )
