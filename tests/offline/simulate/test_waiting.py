"""What changes while clients wait: the live server, in virtual time, against the replay of its recording."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

from hypothesis import given, settings, strategies as st

from admission.interfaces import DEFAULT, IQuotaPolicyFactory, PolicyContext, QuotaEntity
from admission.kafka.serving.quotalimits import Alteration, QuotaLimits
from admission.offline.simulate.identity import Fidelity
from admission.plugins import buildPolicy
from admission.recording.events import Origin
from tests.kit.admitted import advanceTo
from tests.kit.brokerfixture import batchOf, produceFields, requestOf
from tests.kit.identitygate import assertAsRecorded, gate, readRecording
from tests.kit.recordings import writeRecording
from tests.unit.kafka.broker.test_recording import RecordedTestCase

OBEYS, IGNORES, PIPELINES = "obeys", "ignores", "pipelines"
"""A client waits as long as it is told, or thinks from when it has its answer, or sends whatever is answered."""

Changes = Sequence[tuple[float, str | None, float | None, bool]]
"""After how long, for which client id, how many bytes a second, and whether the file of properties says so."""


class WaitingTests(RecordedTestCase):
    """Each replay of the policies in force says what the server said."""

    def serve(
        self,
        policies: Sequence[str],
        manners: Sequence[str],
        seed: int,
        changes: Changes,
        isDrained: bool = False,
        beginSeconds: float = 0.0,
    ) -> list[Fidelity]:
        """
        Have a server of its own serve clients for twenty seconds, and replay that.

        @param manners: of each client.
        @param isDrained: whether the server drains in the end, and answers those that wait.
        @param beginSeconds: when that is; its fraction decides how moments are rounded.
        """
        # What examples leave behind must not decide about the next.
        self.assertTrue(self.doCleanups())  # type: ignore[func-returns-value]
        self.setUp()
        self.clock.advance(beginSeconds)
        context = PolicyContext(self.clock, self.clock.seconds)
        names = [description.partition(":")[0] for description in policies]
        self.enforce(
            *(
                (name, buildPolicy(IQuotaPolicyFactory, each, context))
                for name, each in zip(names, policies, strict=True)
            )
        )
        self.exporter.events.clear()
        control = self.broker.control
        static = dict(control.limits)
        for entity, values in static.items():
            self.recorder.limitsChanged(entity, values, self.clock.seconds())
        limits = self.broker.limits = QuotaLimits(self.log, control, static, self.clock.seconds)
        limits.onEnforced = lambda entity, changed, by, now: self.recorder.limitsChanged(entity, changed, now, by)
        self.topic()
        random, beginSeconds = Random(seed), self.clock.seconds()
        clients = [self.connect() for _ in manners]
        due: list[tuple[float, int]] = []
        for index, client in enumerate(clients):
            client.clientId = f"client-{index}"
            heappush(due, (beginSeconds + random.uniform(0.01, 0.5), index))
        atSeconds = beginSeconds
        for number, (afterSeconds, *_) in enumerate(changes):
            atSeconds += afterSeconds
            heappush(due, (atSeconds, len(clients) + number))
        while due and due[0][0] < beginSeconds + 20:
            atSeconds, index = heappop(due)
            advanceTo(self.clock, atSeconds)
            if index >= len(clients):
                _, clientId, value, isReload = changes[index - len(clients)]
                entity = QuotaEntity(clientId=clientId)
                if isReload:
                    limits.setStatic({**static, entity: {} if value is None else {"producer_byte_rate": value}}, "file")
                else:
                    limits.alter([Alteration(entity, {"producer_byte_rate": value})], False, "User:admin")
                    self.clock.advance(0)
                continue
            client, thinkSeconds = clients[index], random.uniform(0.05, 0.7)
            if manners[index] == PIPELINES or not client.expecting():
                records = batchOf(bytes(random.randrange(1000, 100_000)))
                client.sendBytes(client.frame(requestOf("Produce", 9, **produceFields("events", records, acks=1))))
            while client.waiting():
                answer = client.receive()
                if manners[index] == OBEYS:
                    thinkSeconds += answer.throttle_time.total_seconds()
            heappush(due, (atSeconds + thinkSeconds, index))
        if isDrained:
            self.factory.closeAll()
            self.clock.advance(0)
        for client in clients:
            client.disconnect()
        # What is let go only because the test ends is not recorded.
        recorded = list(self.exporter.events)
        directory = self.mktemp()
        origin = Origin(
            "0",
            "boot",
            policyNames=names,
            policyDescriptions=policies,
            quotaWindows=context.quotaWindows,
            quotaWindowSeconds=context.quotaWindowSeconds,
            largestDelaySeconds=control.maxDelaySeconds,
        )
        for seq, event in enumerate(recorded, 1):
            event.seq = seq
        writeRecording(directory, recorded, origin)
        return gate(readRecording(directory))

    def test_raised(self) -> None:
        """A client that waits when its limit is raised is released, and what it has sent meanwhile is read then."""
        policies = ["client-bytes:produce=20k"]
        for manner in (OBEYS, IGNORES, PIPELINES):
            judged = self.serve(policies, [manner], 1, [(5.0, "client-0", 60_000.0, False)])
            self.assertGreater(judged[0].throttled, 3)
            assertAsRecorded(self, judged)

    @settings(max_examples=15, deadline=None)
    @given(
        st.sampled_from(
            [
                ["client-bytes:produce=40k"],
                ["client-bytes:produce=40k:algorithm=bucket"],
                ["client-bytes:produce=40k", "request-time:percent=50"],
            ]
        ),
        st.lists(st.sampled_from([OBEYS, IGNORES, PIPELINES]), min_size=1, max_size=3),
        st.integers(0, 1000),
        st.lists(
            st.tuples(
                st.floats(0.5, 6.0),
                st.sampled_from(["client-0", "client-1", DEFAULT]),
                st.sampled_from([None, 10_000.0, 80_000.0, 1e6]),
                st.booleans(),
            ),
            max_size=5,
        ),
        st.booleans(),
        st.floats(0.0, 1000.0),
    )
    def test_anyChange(
        self,
        policies: list[str],
        manners: list[str],
        seed: int,
        changes: Changes,
        isDrained: bool,
        beginSeconds: float,
    ) -> None:
        """So it is for limits that are lowered, raised, removed, or read again, whatever manners clients have."""
        assertAsRecorded(self, self.serve(policies, manners, seed, changes, isDrained, beginSeconds))

    def test_rounded(self) -> None:
        """
        So it is when rounding makes a delay end a microsecond after what was read then, however many requests come at
        that moment: none of them is late, and the last one not behind the end of the recording.
        """
        changes = [
            (4.2058215787361855, DEFAULT, 1e6, True),
            (4.177001008039139, "client-0", 1e4, True),
            (4.418043011977474, "client-0", 8e4, False),
            (5.43977653578494, "client-0", None, False),
        ]
        policies = ["client-bytes:produce=40k", "request-time:percent=50"]
        for beginSeconds in (449.49106478873813, 651.592972722763, 242.73997354306763):
            assertAsRecorded(self, self.serve(policies, [PIPELINES], 451, changes, beginSeconds=beginSeconds))

    def test_otherLimits(self) -> None:
        """Limits that a policy does not know let clients go that it keeps waiting, as any change does."""
        policies = ["client-bytes:produce=40k", "request-time:percent=50"]
        changes = [(2.2, DEFAULT, 1e4, False), (12.0, DEFAULT, None, True)]
        assertAsRecorded(self, self.serve(policies, [IGNORES], 81, changes))
