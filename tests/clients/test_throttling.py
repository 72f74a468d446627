"""
Real clients under quotas that are set, raised and removed while they run.

All that is told here happens in one experiment, in which all clients share a broker and half a minute.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from io import StringIO
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from attrs import define, field, frozen
from twisted.trial.unittest import SynchronousTestCase

from admission.commands.explaincommand import ExplainOptions, run
from admission.kafka.wire.batches import Record, RecordBatch, decodeRecords, encodeBatch
from admission.offline.simulate.identity import Fidelity
from tests.clients import throttledclients
from tests.clients.throttledclients import (
    BATCH_BYTES,
    LOAD_RECORDS,
    REST_SECONDS,
    SESSION_MS,
    VALUE_BYTES,
    Receiver,
    Sender,
    valueOf,
)
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, until
from tests.kit.identitygate import gate, readRecording
from tests.kit.libraries import LIBRARIES, MEMBERS, Settings
from tests.kit.lineprocess import Event, LineProcess, moduleCommand
from tests.kit.rawclient import RawClient, produceRequest
from tests.system.test_admission_command import ObservedBroker

QUOTA = 50_000.0
RAISED_QUOTA = 2 * QUOTA
SILENCING_QUOTA = 1000.0
"""So little that one fetch silences a connection for longer than a group waits for a member."""

BURST_SECONDS = 0.3
"""A client that has no processor for as long as this makes up for it; little, beside the time of a measurement."""

SETTLING_SECONDS = 1.0
MEASURED_SECONDS = 10.0
RAISED_SECONDS = 3.0

SOURCE = "source"
SOURCE_RECORDS = 5000
SOURCE_BATCH_RECORDS = 8
BYSTANDER = "bystander"

PRODUCERS = [f"{library} producer" for library in LIBRARIES]
CONSUMERS = [f"{library} consumer" for library in LIBRARIES]
CLIENTS = [*PRODUCERS, *CONSUMERS]
SILENCED = [f"{library} consumer, silenced" for library in MEMBERS]


def idOf(name: str) -> str:
    """The client id of a client; its group's as well."""
    return name.replace(",", "").replace(" ", "-")


def topicOf(name: str) -> str:
    """Where it produces to, or consumes from."""
    return idOf(name) if name in PRODUCERS else SOURCE


def limitNameOf(name: str) -> str:
    """The limit that it gets to know."""
    return "producer_byte_rate" if name in PRODUCERS else "consumer_byte_rate"


@frozen
class Phase:
    """
    Some seconds under one limit.

    @ivar begin: on the clock that all processes share.
    """

    begin: float
    end: float


@define
class Findings:
    """
    What the experiment has found; all that has a key has the names of clients for it.

    @ivar loads: seconds for L{LOAD_RECORDS} before there is any limit.
    @ivar freedLoads: the same after all have been removed.
    @ivar limited: the time under L{QUOTA}.
    @ivar raised: the time under L{RAISED_QUOTA}.
    @ivar runs: what the clients report of the time under limits.
    @ivar ends: what they report at the end.
    @ivar logs: for producers all batches in their topics; for L{SOURCE}, too.
    @ivar explained: what C{admission explain} says of the time under L{QUOTA}, L{RAISED_QUOTA}, and none.
    @ivar sensors: the families of sensors at the end of the time under limits.
    @ivar groups: the state of each group, and how many members it has.
    @ivar bystander: the delays that the bystander was told of, and what went wrong for it.
    @ivar bystanderCount: how many records it has sent and received.
    @ivar complaints: what the broker's log complains about.
    @ivar replays: how far replays of its recording agree with it.
    """

    loads: dict[str, float] = field(factory=dict)
    freedLoads: dict[str, float] = field(factory=dict)
    limited: Phase = Phase(0, 0)
    raised: Phase = Phase(0, 0)
    runs: dict[str, Any] = field(factory=dict)
    ends: dict[str, Any] = field(factory=dict)
    logs: dict[str, list[tuple[RecordBatch, bytes]]] = field(factory=dict)
    explained: dict[str, list[dict[str, Any]]] = field(factory=dict)
    sensors: dict[str, Any] = field(factory=dict)
    groups: dict[str, tuple[str, int]] = field(factory=dict)
    bystander: list[object] = field(factory=list)
    bystanderCount: tuple[int, int] = (0, 0)
    complaints: list[str] = field(factory=list)
    replays: list[Fidelity] = field(factory=list)


class ClientProcess(LineProcess):
    """A client of L{throttledclients}."""

    def __init__(self, name: str, address: str, clientId: str, topic: str) -> None:
        library, role = name.split()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        settings = Settings(library, address, clientId=clientId)
        super().__init__(moduleCommand(throttledclients.__name__, role, settings.asText(), topic), self._answers.put)

    def hear(self) -> Any:
        """Wait for the answer to a command, or to being started."""
        [answer] = Event(*self._answers.get(timeout=PATIENCE_SECONDS)).values
        return answer

    def ask(self, command: str) -> Any:
        """Give a command and wait for the answer."""
        self.tell(command)
        return self.hear()


class Bystander:
    """A producer and a consumer with a client id of their own and a limit that they are far from."""

    def __init__(self, address: str) -> None:
        settings = Settings("confluent", address, clientId=BYSTANDER)
        self._sender = Sender(settings, BYSTANDER)
        self._receiver = Receiver(settings, BYSTANDER)

    def passSeconds(self, seconds: float) -> None:
        """Let time pass, sending and receiving a little all the while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._sender.send()
            self._sender.client.poll(REST_SECONDS)
            self._receiver.receive()

    def finish(self, findings: Findings) -> None:
        """Wait for all that was sent, and tell."""

        def hasAll() -> bool:
            self._sender.client.poll(REST_SECONDS)
            self._receiver.receive()
            return self._sender.progress.nextOffset == self._receiver.progress.nextOffset == self._sender.sentCount

        until(hasAll)
        findings.bystanderCount = self._sender.progress.nextOffset, self._receiver.progress.nextOffset
        for each in (self._sender, self._receiver):
            findings.bystander += [*(each.client.throttles() or ()), *each.progress.mistakes]


class Experiment:
    """A broker, the clients, and somebody who changes their limits."""

    def __init__(self) -> None:
        self.findings = Findings()

    def conduct(self) -> Findings:
        """Everything."""
        with ExitStack() as stack:
            recording = stack.enter_context(TemporaryDirectory())
            self._broker = ObservedBroker(
                *("--export", f"spark:{recording}"),
                *("--quota", f"client-bytes:algorithm=bucket:burst={BURST_SECONDS * 1000:.0f}ms"),
                *("--set", f"group.min.session.timeout.ms={SESSION_MS}"),
                *("--set", "group.initial.rebalance.delay.ms=0"),
            )
            stack.callback(self._broker.remove)
            self._broker.start()
            self._raw = stack.enter_context(RawClient(self._broker.port))
            for topic in (SOURCE, BYSTANDER, *map(topicOf, PRODUCERS)):
                self._raw.createTopic(topic)
            self._fillSource()
            self._clients = {}
            for name in [*PRODUCERS, *CONSUMERS, *SILENCED]:
                client = ClientProcess(name.partition(",")[0], self._broker.address, idOf(name), topicOf(name))
                # A farewell would take the time of its last delay.
                stack.callback(client.kill)
                self._clients[name] = client
            self._bystander = Bystander(self._broker.address)
            for client in self._clients.values():
                client.hear()
            self._measure()
            for topic in [*map(topicOf, PRODUCERS), SOURCE]:
                self.findings.logs[topic] = self._raw.batches(topic)
            self.findings.complaints = self._broker.complaints()
            self._broker.stop()
            self.findings.replays = gate(readRecording(recording))
        return self.findings

    def _measure(self) -> None:
        findings, clients = self.findings, self._clients
        findings.loads = self._loads()
        self._limit({**dict.fromkeys(CLIENTS, QUOTA), **dict.fromkeys(SILENCED, SILENCING_QUOTA), BYSTANDER: 1e9})
        for client in clients.values():
            client.tell("run")
        findings.limited = self._pass(MEASURED_SECONDS)
        self._explain(isLimited=True)
        self._limit(dict.fromkeys(CLIENTS, RAISED_QUOTA))
        findings.raised = self._pass(RAISED_SECONDS)
        self._explain(isLimited=True)
        findings.sensors = self._sensors()
        findings.groups = self._groups([*CONSUMERS, *SILENCED])
        self._bystander.finish(findings)
        self._limit(dict.fromkeys([*CLIENTS, *SILENCED], None))
        self._explain(isLimited=False)
        for name, client in clients.items():
            findings.runs[name] = client.ask("stop")
        findings.freedLoads = self._loads()
        for name, client in clients.items():
            findings.ends[name] = client.ask("tell")

    def _fillSource(self) -> None:
        timestampMs = int(time.time() * 1000)
        for first in range(0, SOURCE_RECORDS, SOURCE_BATCH_RECORDS):
            batch = encodeBatch(
                [
                    Record(value=valueOf(number), timestampMs=timestampMs)
                    for number in range(first, first + SOURCE_BATCH_RECORDS)
                ]
            )
            self._raw.ask(produceRequest(SOURCE, batch, acks=1))

    def _loads(self) -> dict[str, float]:
        """One after the other, since they are to be compared with what each gets under a limit."""
        return {name: self._clients[name].ask("load")["seconds"] for name in CLIENTS}

    def _pass(self, seconds: float) -> Phase:
        self._bystander.passSeconds(SETTLING_SECONDS)
        begin = time.monotonic()
        self._bystander.passSeconds(seconds)
        return Phase(begin, time.monotonic())

    def _limit(self, limits: Mapping[str, float | None]) -> None:
        entries = [
            {
                "entity": [{"entity_type": "client-id", "entity_name": idOf(name)}],
                "ops": [
                    {"key": key, "value": limit or 0.0, "remove": limit is None}
                    for key in ("producer_byte_rate", "consumer_byte_rate")
                ],
            }
            for name, limit in limits.items()
        ]
        answer = self._raw.ask(requestOf("AlterClientQuotas", 1, entries=entries, validate_only=False))
        refused = [entry.error_message for entry in answer.entries if entry.error_code]
        assert not refused, refused

    def _explain(self, isLimited: bool) -> None:
        """Ask, and ask again if we are told of no delay in the moment between two."""
        for name in CLIENTS:
            limits: dict[str, Any] = {}

            def isExplained(name: str = name, limits: dict[str, Any] = limits) -> bool:
                options = ExplainOptions()
                options.parseOptions(["--client-id", idOf(name), "--status", self._broker.status, "--json"])
                output = StringIO()
                run(options, StringIO(), output)
                limits.update((each["limitName"], each) for each in json.loads(output.getvalue())["limits"])
                return not isLimited or limits[limitNameOf(name)]["delaySeconds"] > 0

            until(isExplained)
            self.findings.explained.setdefault(name, []).append(limits)

    def _sensors(self) -> dict[str, Any]:
        with urlopen(f"{self._broker.status}/sensors", timeout=PATIENCE_SECONDS) as response:
            families: dict[str, Any] = json.load(response)["families"]
        return families

    def _groups(self, names: Collection[str]) -> dict[str, tuple[str, int]]:
        described = self._raw.ask(requestOf("DescribeGroups", 4, groups=[*map(idOf, names)]))
        return {name: (each.group_state, len(each.members)) for name, each in zip(names, described.groups, strict=True)}


@cache
def findings() -> Future[Findings]:
    """What comes of the experiment, which is conducted once, be it in vain."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(Experiment().conduct)


class ThrottledClientsTests(SynchronousTestCase):
    """What a quota does to real clients."""

    def setUp(self) -> None:
        self.findings = findings().result()

    def rateOf(self, name: str, phase: Phase) -> float:
        """The bytes of batches that a client had acknowledged, or received, in a second."""

        def reachedBy(seconds: float) -> tuple[float, int]:
            return next((at, offset) for at, offset in reversed(progress) if at <= seconds)

        progress = self.findings.runs[name]["progress"]
        (begin, first), (end, last) = reachedBy(phase.begin), reachedBy(phase.end)
        self.assertLess(begin, end, f"{name} had nothing left to do")
        sizeBytes = sum(
            batch.sizeBytes * max(min(batch.lastOffset + 1, last) - max(batch.baseOffset, first), 0) / batch.count
            for batch, _ in self.findings.logs[topicOf(name)]
        )
        return sizeBytes / (end - begin)

    def test_unlimited(self) -> None:
        """
        Without a limit every client does at least twice what it will be allowed, and does so again when the limit has
        been removed.
        """
        for loads in (self.findings.loads, self.findings.freedLoads):
            ratios = {name: LOAD_RECORDS * VALUE_BYTES / seconds / QUOTA for name, seconds in loads.items()}
            self.assertEqual(set(ratios), set(CLIENTS))
            self.assertGreater(min(ratios.values()), 2, ratios)

    def test_limited(self) -> None:
        """
        Over ten seconds each client gets what it is allowed, to within five percent, whether it heeds
        C{throttle_time_ms} or not.
        """
        shares = {name: self.rateOf(name, self.findings.limited) / QUOTA for name in CLIENTS}
        self.assertGreaterEqual(min(shares.values()), 0.95, shares)
        self.assertLessEqual(max(shares.values()), 1.05, shares)

    def test_raised(self) -> None:
        """A limit that is raised while a client runs is what it gets from then on."""
        shares = {name: self.rateOf(name, self.findings.raised) / RAISED_QUOTA for name in CLIENTS}
        self.assertGreaterEqual(min(shares.values()), 0.85, shares)
        self.assertLessEqual(max(shares.values()), 1.15, shares)

    def test_explained(self) -> None:
        """
        C{admission explain} tells of each client the limit of the moment, whose it is, and a delay no longer than the
        last request is worth; and of none when there is none.
        """
        for name, (limited, raised, freed) in self.findings.explained.items():
            for limits, value in ((limited, QUOTA), (raised, RAISED_QUOTA)):
                limit = limits[limitNameOf(name)]
                self.assertEqual(
                    (limit["policy"], limit["limit"], limit["entity"]),
                    ("client-bytes", value, {"user": None, "clientId": idOf(name), "ip": None}),
                )
                self.assertGreaterEqual(limit["usedFraction"], 1.0)
                self.assertLessEqual(limit["delaySeconds"], BATCH_BYTES / value)
            self.assertEqual(freed, {})

    def test_nothingIsLost(self) -> None:
        """Each record that was sent is stored once and in order, and those that are read are read so."""
        for name, end in self.findings.ends.items():
            self.assertEqual(end["mistakes"], [], name)
        for name in PRODUCERS:
            values = [record.value for _, batch in self.findings.logs[topicOf(name)] for record in decodeRecords(batch)]
            _, acknowledgedCount = self.findings.runs[name]["progress"][-1]
            self.assertEqual(values, [*map(valueOf, range(acknowledgedCount + LOAD_RECORDS))], name)
        self.assertEqual(self.findings.complaints, [])

    def test_replayed(self) -> None:
        """The recording of all of this, limits that were raised and removed while clients waited, replays exactly."""
        self.assertEqual({each.mode for each in self.findings.replays}, {"open", "closed"})
        for each in self.findings.replays:
            self.assertGreater(each.throttled, 100)
            self.assertEqual((each.matchShare, each.missing), (1.0, 0), each.inWords())

    def test_delaysAreTold(self) -> None:
        """The libraries that tell of delays tell of ours, and so do the broker's sensors."""
        for name in CLIENTS:
            told = self.findings.runs[name]["throttles"]
            if told is not None:
                self.assertLess(0, min(told, default=0), name)
                self.assertLess(max(told), BATCH_BYTES / QUOTA)
            kind = "Produce" if name in PRODUCERS else "Fetch"
            values = self.findings.sensors[f"client-bytes.{kind}.throttle-time"]["values"]
            (delayMs,) = (value for _, clientId, value in values if clientId == idOf(name))
            self.assertTrue(0 < delayMs < BATCH_BYTES / QUOTA * 1000, f"{name}: {delayMs}")

    def test_bystander(self) -> None:
        """A client that keeps far below its limit gets everything through without ever being throttled."""
        self.assertEqual(self.findings.bystander, [])
        sentCount, receivedCount = self.findings.bystanderCount
        self.assertGreater(sentCount, 0)
        self.assertEqual(sentCount, receivedCount)
        for kind in ("Produce", "Fetch"):
            values = self.findings.sensors[f"client-bytes.{kind}.throttle-time"]["values"]
            # A client that has used nothing lately has been forgotten.
            self.assertIn([value for _, clientId, value in values if clientId == BYSTANDER], ([], [None]))

    def test_members(self) -> None:
        """
        Consumers under a limit stay in their groups, also when a fetch silences their connection for longer than
        the group waits for them.
        """
        for name in [*CONSUMERS, *SILENCED]:
            self.assertEqual(self.findings.groups[name], ("Stable", 1), name)
            self.assertEqual(self.findings.ends[name]["assignments"], ["given 1"], name)
        for name in SILENCED:
            told = self.findings.runs[name]["throttles"]
            if told is not None:
                self.assertGreater(max(told, default=0) * 1000, SESSION_MS, name)
