"""What requests leave to Python's collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any

from admission.kafka.broker.groups.groupstate import Group
from admission.kafka.broker.groups.member import Participant
from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.wire.codec import Rows
from tests.kit.brokerfixture import BrokerTestCase, Client, framed, requestFrame
from tests.kit.costlyrequests import UNKNOWN, joining

FEW, MANY = 2, 1_000
"""What is answered at once, and what is worked on in slices."""

MAX_TURNS = 1_000


def isOfRequest(thing: Any) -> bool:
    """Whether it is a request or an answer, or a part of one, or what has come of it."""
    ours = KafkaRequest, Rows, Participant, Group
    return isinstance(thing, ours) or type(thing).__module__.startswith("kio.schema.")


class LeftoverTests(BrokerTestCase):
    """A request that is over is gone: what waits for the collector waits for minutes, and nobody is charged for it."""

    def setUp(self) -> None:
        """Collect by hand only, and nothing that other tests have left, maybe in several rounds of finalizers."""
        super().setUp()
        gc.collect()
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        gc.disable()
        self.addCleanup(gc.enable)

    def leftovers(self) -> Counter[str]:
        """What only the collector finds, by type."""
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            return Counter(type(each).__name__ for each in gc.garbage if isOfRequest(each))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    def finish(self, client: Client) -> None:
        """Let turns pass until everything is answered."""
        for _ in range(MAX_TURNS):
            if client.waiting() == client.expecting():
                break
            self.clock.advance(0.1)
        while client.expecting():
            client.receive()

    def names(self, count: int) -> Sequence[str]:
        """As many that nothing has."""
        return [f"u{number}" for number in range(count)]

    def test_answered(self) -> None:
        """Nothing is left of one that was answered, whether at once or in slices."""
        client = self.connect()
        for api, requestFor in UNKNOWN.items():
            for count in (FEW, MANY):
                client.sendBytes(client.frame(requestFor(self.names(count))))
                self.finish(client)
                self.assertEqual((api, count, self.leftovers()), (api, count, Counter()))

    def test_abandoned(self) -> None:
        """Nothing is left of a request whose client has hung up meanwhile."""
        for api, requestFor in UNKNOWN.items():
            client = self.connect()
            client.sendBytes(client.frame(requestFor(self.names(MANY))))
            client.disconnect()
            self.clock.advance(1.0)
            self.assertEqual((api, self.leftovers()), (api, Counter()))

    def test_refused(self) -> None:
        """Nothing is left of a request that ends too early, or that makes no sense in its end."""
        for api, requestFor in UNKNOWN.items():
            for count in (FEW, MANY):
                frame = requestFrame(requestFor(self.names(count)), 1)
                for body in (frame[4:-2], frame[4:-5] + b"\xff" * 5):
                    client = self.connect()
                    client.sendBytes(framed(body))
                    self.clock.pump([0.1] * 3)
                    client.disconnect()
            self.assertEqual((api, self.leftovers()), (api, Counter()))

    def test_members(self) -> None:
        """Nothing is left of members of groups that have left, that were silent for too long, or that never came."""
        client = self.connect()

        def join(memberId: str = "") -> str:
            request = joining("group", 5, ["range"], sessionMs=6_000, rebalanceMs=6_000, memberId=memberId)
            client.sendBytes(client.frame(request))
            self.clock.advance(3.0)
            return str(client.receive().member_id)

        memberId = join(join())
        client.ask("LeaveGroup", 1, group_id="group", member_id=memberId)
        join(join())
        join()
        self.clock.pump([1.0] * 20)
        client.ask("DeleteGroups", 2, groups_names=["group"])
        self.clock.advance(1.0)
        self.assertEqual(self.broker.groups.get("group"), None)
        self.assertEqual(self.leftovers(), Counter())
