"""How a connection treats a client that quota policies throttle or refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from admission.connection.pauses import Pause
from admission.control import AdmissionControl
from admission.gate.slowbodies import BODY_GRACE_SECONDS
from admission.interfaces import ADMITTED, NOTHING, Decision, QuotaEntity, Request, Traits, Usage
from admission.kafka.broker.produceresponses import throttleTimeMs
from admission.quotas.policy import QuotaPolicy
from tests.kit.brokerfixture import BrokerTestCase, batchOf, fetchFields, produceFields, requestOf

THROTTLING_QUOTA_EXCEEDED = 89


@define(eq=False, slots=False)
class ScriptedPolicy(QuotaPolicy):
    """
    Does what a test says.

    @ivar delays: for each kind of request the delay that recording it brings.
    @ivar budgets: for each kind what may be read.
    @ivar decision: the answer to everybody who asks.
    @ivar recorded: what was recorded.
    """

    isShadow: bool = False
    isOn: bool = True
    delays: dict[str, float] = field(factory=dict)
    budgets: dict[str, int] = field(factory=dict)
    decision: Decision = ADMITTED
    recorded: list[tuple[Request, Usage]] = field(factory=list)
    limitNames: Sequence[str] = ("scripted",)

    def decide(self, request: Request, now: float) -> Decision:
        return self.decision

    def budgetBytes(self, request: Request, now: float) -> int | None:
        return self.budgets.get(request.kind)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        self.recorded.append((request, usage))
        return self.delays.get(request.kind, 0.0)

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        self.isOn = any(limit is not None for limit in limits.values())

    @property
    def isLimiting(self) -> bool:
        return self.isOn


class ThrottlingTestCase(BrokerTestCase):
    """
    A broker with one policy, which does what the test says.

    @ivar policy: the policy.
    """

    def setUp(self) -> None:
        super().setUp()
        self.policy = ScriptedPolicy()
        self.takeControl(AdmissionControl([("scripted", self.policy)], 20.0))

    def recordedFor(self, kind: str) -> list[Usage]:
        """What was recorded of one kind of request."""
        return [usage for request, usage in self.policy.recorded if request.kind == kind]


class ProduceTests(ThrottlingTestCase):
    """A producer over its quota."""

    def test_answeredAtOnceThenMuted(self) -> None:
        """
        The batch is appended and answered at once, with the delay; what the
        client sends meanwhile is read when the delay has passed.
        """
        topic = self.topic()
        self.policy.delays["Produce"] = 2.0
        client = self.connect()
        answer = client.ask("Produce", 9, **produceFields("events", batchOf(b"a")))
        self.assertEqual(answer.throttle_time.total_seconds(), 2.0)
        self.assertEqual(topic.partitions[0].highWatermark, 1)
        self.assertIn(Pause.THROTTLED, client.protocol.pauses.reasons)
        self.policy.delays.clear()
        client.send("Produce", 9, **produceFields("events", batchOf(b"b")))
        self.clock.advance(1.999)
        self.assertEqual((client.waiting(), topic.partitions[0].highWatermark), (0, 1))
        self.clock.advance(0.002)
        self.assertEqual((client.waiting(), topic.partitions[0].highWatermark), (1, 2))
        self.assertEqual(client.receive().throttle_time.total_seconds(), 0.0)
        self.assertEqual(client.protocol.pauses.reasons, {})

    def test_olderVersion(self) -> None:
        """An older client, which would not stay away, gets its response late; its batch has been appended before."""
        topic = self.topic()
        self.policy.delays["Produce"] = 2.0
        client = self.connect()
        client.send("Produce", 5, **produceFields("events", batchOf(b"a")))
        self.assertEqual((client.waiting(), topic.partitions[0].highWatermark), (0, 1))
        self.clock.advance(1.999)
        self.assertEqual(client.waiting(), 0)
        self.clock.advance(0.002)
        answer = client.receive()
        self.assertEqual(answer.responses[0].partition_responses[0].error_code.value, 0)
        self.assertEqual(answer.throttle_time.total_seconds(), 2.0)

    def test_recorded(self) -> None:
        """What counts is the request as it was received, under the client's name."""
        self.topic()
        client = self.connect()
        frame = client.frame(requestOf("Produce", 9, **produceFields("events", batchOf(b"a"))))
        client.sendBytes(frame)
        client.receive()
        [(request, usage)] = [each for each in self.policy.recorded if each[0].kind == "Produce"]
        self.assertEqual(usage.requestBytes, len(frame) - 4)
        traits = Traits(countsSent=False)
        asked = Request("Produce", "ANONYMOUS", "test", "192.0.2.1", len(frame) - 4, request.identities, traits)
        self.assertEqual(request, asked._replace(poolFreeShare=request.poolFreeShare))

    def test_producerIds(self) -> None:
        """The policies see the producer ids; a batch without one has none."""
        self.topic(partitionCount=2)
        client = self.connect()
        client.produce("events", batchOf(b"a", producerId=7, producerEpoch=0, baseSequence=0))
        client.produce("events", batchOf(b"a"), partition=1)
        identities = [list(request.identities) for request, _ in self.policy.recorded if request.kind == "Produce"]
        self.assertEqual(identities, [[7], []])

    def test_noResponse(self) -> None:
        """With C{acks=0} there is nothing to say the delay in; the connection is muted all the same."""
        topic = self.topic()
        self.policy.delays["Produce"] = 2.0
        client = self.connect()
        for value in (b"a", b"b"):
            client.send("Produce", 9, answered=False, **produceFields("events", batchOf(value), acks=0))
        self.assertEqual(topic.partitions[0].highWatermark, 1)
        self.clock.advance(2.001)
        self.assertEqual(topic.partitions[0].highWatermark, 2)

    def test_pipelined(self) -> None:
        """
        Of several requests sent at once the first over the quota stops the
        others, whatever their versions; the order of the answers is kept.
        """
        topic = self.topic()
        self.policy.delays["Produce"] = 1.0
        client = self.connect()
        frames = [
            client.frame(requestOf("Produce", version, **produceFields("events", batchOf(b"x"))))
            for version in (9, 5, 9)
        ]
        client.sendBytes(b"".join(frames))
        self.assertEqual((client.waiting(), topic.partitions[0].highWatermark), (1, 1))
        self.clock.advance(1.001)
        self.assertEqual((client.waiting(), topic.partitions[0].highWatermark), (1, 2))
        # The late answer leaves, and the next request is read.
        self.clock.advance(1.001)
        self.clock.advance(0)
        self.assertEqual((client.waiting(), topic.partitions[0].highWatermark), (3, 3))
        for _ in range(3):
            client.receive()

    def test_refused(self) -> None:
        """A refusal is an error of its own with the delay and the reason, and nothing is appended or recorded."""
        topic = self.topic()
        client = self.connect()
        self.policy.decision = Decision(False, 3.0, "too many producer ids")
        answer = client.ask("Produce", 9, **produceFields("events", batchOf(b"a")))
        [result] = answer.responses[0].partition_responses
        self.assertEqual(result.error_code.value, THROTTLING_QUOTA_EXCEEDED)
        self.assertIn("too many producer ids", result.error_message)
        self.assertEqual(answer.throttle_time.total_seconds(), 3.0)
        self.assertEqual(topic.partitions[0].highWatermark, 0)
        self.assertEqual(self.recordedFor("Produce"), [])
        self.assertIn(Pause.THROTTLED, client.protocol.pauses.reasons)

    def test_refusedWithoutResponse(self) -> None:
        """With C{acks=0} a refusal closes the connection, as any error does."""
        self.topic()
        client = self.connect()
        self.policy.decision = Decision(False, 3.0, "too many producer ids")
        client.send("Produce", 9, answered=False, **produceFields("events", batchOf(b"a"), acks=0))
        self.clock.advance(0)
        self.assertRefused(client, "too many producer ids")


class FetchTests(ThrottlingTestCase):
    """A consumer over its quota."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic()
        self.batchBytes = len(self.store(self.events.partitions[0], b"x" * 100))
        for _ in range(2):
            self.store(self.events.partitions[0], b"x" * 100)

    def test_overQuota(self) -> None:
        """Nothing is read for it: an empty answer with the delay, and the mute. The answer is not held against it."""
        self.policy.delays["Fetch"] = 2.0
        self.policy.budgets["Fetch"] = 0
        client = self.connect()
        answer = client.ask("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=500))
        self.assertEqual(answer.responses, ())
        self.assertEqual((answer.throttle_time.total_seconds(), answer.error_code.value), (2.0, 0))
        self.assertEqual(self.recordedFor("Fetch"), [NOTHING])
        self.assertIn(Pause.THROTTLED, client.protocol.pauses.reasons)

    def test_olderVersion(self) -> None:
        """An older client waits first, and then is served what there is."""
        self.policy.delays["Fetch"] = 2.0
        self.policy.budgets["Fetch"] = 0
        client = self.connect()
        client.send("Fetch", 7, **fetchFields(self.events, 0))
        self.clock.advance(1.9)
        self.assertEqual(client.waiting(), 0)
        del self.policy.budgets["Fetch"]
        self.policy.delays["Fetch"] = 0.0
        self.clock.advance(0.2)
        answer = client.receive()
        self.assertEqual(len(answer.responses[0].partitions[0].records), 3 * self.batchBytes)
        self.assertEqual(answer.throttle_time.total_seconds(), 0.0)

    def test_capped(self) -> None:
        """
        A fetch is capped before it is read, but a first batch is whole, so
        that no quota is too small to make progress.
        """
        client = self.connect()
        for budgetBytes, batches in [(1, 1), (2 * self.batchBytes, 2), (2 * self.batchBytes + 1, 2)]:
            self.policy.budgets["Fetch"] = budgetBytes
            [partition] = client.fetch(self.events, 0)
            self.assertEqual(len(partition.records), batches * self.batchBytes)

    def test_capsTheWait(self) -> None:
        """A fetch does not wait for more than it may get."""
        self.policy.budgets["Fetch"] = self.batchBytes
        [partition] = self.connect().fetch(self.events, 0, minBytes=10 * self.batchBytes, maxWaitMs=60_000)
        self.assertEqual(len(partition.records), self.batchBytes)

    def test_recorded(self) -> None:
        """What counts is the response."""
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(self.events, 0))
        sizeBytes = len(client.transport.received)
        client.receive()
        [usage] = self.recordedFor("Fetch")
        # Without its length, correlation id and tags.
        self.assertEqual(usage.responseBytes, sizeBytes - 9)

    def test_afterwards(self) -> None:
        """What a fetch took beyond the quota is paid after it: records and delay come in one response."""
        self.policy.delays["Fetch"] = 1.5
        client = self.connect()
        answer = client.ask("Fetch", 12, **fetchFields(self.events, 0))
        self.assertEqual(len(answer.responses[0].partitions[0].records), 3 * self.batchBytes)
        self.assertEqual(answer.throttle_time.total_seconds(), 1.5)
        self.assertIn(Pause.THROTTLED, client.protocol.pauses.reasons)

    def test_longPollIsNoThrottle(self) -> None:
        """The time that a fetch waits for records is never reported as delay, nor held against the client as work."""
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(self.events, 3, maxWaitMs=500))
        self.clock.advance(0.6)
        self.assertEqual(client.receive().throttle_time.total_seconds(), 0.0)
        [usage] = self.recordedFor("Fetch")
        self.assertEqual(usage.serviceSeconds, 0.0)

    def test_overQuotaByTheTimeItIsRead(self) -> None:
        """Another connection of the same client may have used the quota up while a fetch waited."""
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(self.events, 3, maxWaitMs=5000))
        self.policy.budgets["Fetch"] = 0
        self.policy.delays["Fetch"] = 1.0
        self.store(self.events.partitions[0], b"y")
        answer = client.receive()
        self.assertEqual((answer.responses, answer.throttle_time.total_seconds()), ((), 1.0))

    def test_refused(self) -> None:
        """A refusal is an error, of the request where its version has room for one and else of each partition."""
        client, olderClient = self.connect(), self.connect()
        self.policy.decision = Decision(False, 1.0, "no")
        answer = client.ask("Fetch", 12, **fetchFields(self.events, 0))
        self.assertEqual(answer.error_code.value, THROTTLING_QUOTA_EXCEEDED)
        self.assertEqual(answer.throttle_time.total_seconds(), 1.0)
        answer = olderClient.ask("Fetch", 6, **fetchFields(self.events, 0))
        [partition] = answer.responses[0].partitions
        self.assertEqual(partition.error_code.value, THROTTLING_QUOTA_EXCEEDED)


class OthersTests(ThrottlingTestCase):
    """Requests of other kinds, and connecting."""

    def test_refused(self) -> None:
        """
        An API that can say no does; a refusal of any other becomes a delay, the larger of the two; and some no policy
        is asked about.
        """
        client = self.connect()
        self.policy.decision = Decision(False, 1.0, "no")
        answer = client.ask("InitProducerId", 4, transactional_id=None)
        self.assertEqual((answer.error_code.value, answer.producer_id), (THROTTLING_QUOTA_EXCEEDED, -1))
        self.clock.advance(1.0)
        for delaySeconds, expectedSeconds in ((0.0, 1.0), (0.25, 1.0), (1.5, 1.5)):
            self.policy.delays["Metadata"] = delaySeconds
            answer = client.ask("Metadata", 9, topics=None)
            self.assertEqual(answer.throttle_time.total_seconds(), expectedSeconds)
            self.assertTrue(client.protocol.driver.isThrottled)
            self.clock.advance(expectedSeconds)
        for name, apiVersion, fields in (
            ("ApiVersions", 3, {}),
            ("LeaveGroup", 4, {"group_id": "g", "members": [{"member_id": "m"}]}),
            ("DescribeClientQuotas", 1, {"components": [], "strict": False}),
        ):
            self.assertEqual(client.ask(name, apiVersion, **fields).throttle_time.total_seconds(), 0.0, name)
        self.assertEqual(len(self.recordedFor("LeaveGroup")), 1)

    def test_refusedMembers(self) -> None:
        """
        Members of groups are delayed by a refusal for a third of their session timeout at most, and by what they have
        taken for as long as it takes.
        """
        client = self.connect()
        times = {"session_timeout": 9_000, "rebalance_timeout": 9_000}
        join = {
            "group_id": "g",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            **times,
        }
        client.send("JoinGroup", 5, **join)
        client.receive()
        [group] = self.broker.groups.all
        [memberId] = group.pending or group.members
        client.send("JoinGroup", 5, member_id=memberId, **join)
        self.clock.advance(4.0)
        joined = client.receive()
        stranger = self.connect()
        self.policy.decision = Decision(False, 10.0, "no")
        heartbeat = {"group_id": "g", "generation_id": joined.generation_id, "member_id": memberId}
        for delaySeconds, expectedSeconds in ((0.0, 3.0), (5.0, 5.0)):
            self.policy.delays["Heartbeat"] = delaySeconds
            answer = client.ask("Heartbeat", 4, **heartbeat)
            self.assertEqual(answer.throttle_time.total_seconds(), expectedSeconds)
            self.clock.advance(expectedSeconds)
        self.assertEqual(client.ask("Metadata", 9, topics=None).throttle_time.total_seconds(), 3.0)
        self.clock.advance(3.0)
        self.assertEqual(stranger.ask("Metadata", 9, topics=None).throttle_time.total_seconds(), 10.0)

    def test_delayAfterDebt(self) -> None:
        """A request that had to wait for its client's debt is charged, too: the next one waits for that."""
        self.topic()
        first, again = self.connect(), self.connect()
        self.policy.delays["Produce"] = 10.0
        first.produce("events", batchOf(b"a"))
        again.send("Produce", 9, **produceFields("events", batchOf(b"b")))
        self.clock.advance(10.0)
        self.assertEqual(again.receive().throttle_time.total_seconds(), 10.0)
        again.send("ApiVersions", 4)
        self.clock.advance(9.9)
        self.assertEqual(again.waiting(), 0)
        self.clock.advance(0.1)
        self.assertEqual(again.waiting(), 1)

    def test_debtGivesWay(self) -> None:
        """If others wait for its memory, its connection is closed."""
        self.topic()
        first, again, other = (self.connect() for _ in range(3))
        self.policy.delays["Produce"] = 10.0
        first.produce("events", batchOf(b"a"))
        again.send("Produce", 9, **produceFields("events", batchOf(bytes(1000))))
        self.exhaustReserve()
        hoard = self.pool.charge(self.pool.availableBytes + 2000, "hoard")
        other.send("ApiVersions", 4)
        self.assertEqual(other.waiting(), 0)
        self.clock.advance(BODY_GRACE_SECONDS)
        self.clock.advance(0)
        self.assertTrue(again.isClosed)
        hoard.release()
        self.clock.advance(0)
        self.assertEqual(other.waiting(), 1)

    def test_throttleTimeMs(self) -> None:
        """Delays are told in whole milliseconds, rounded up, and never negative."""
        self.assertEqual([throttleTimeMs(each) for each in (0.0, -1.0, 0.0001, 2.0, 2.0001)], [0, 0, 1, 2000, 2001])
