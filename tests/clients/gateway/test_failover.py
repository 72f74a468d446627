"""Nodes and gateways end under load."""

from __future__ import annotations

import signal
import time

from tests.clients.gateway.gatewaycases import IS_DIRECT, GatewayTestCase
from tests.clients.gateway.gatewayclients import ConfluentLoad, JavaLoad, waitForEach
from tests.kit.attack import sized
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.longform import isLongForm, longForm

PER_SECOND = 200
BEFORE, AFTER = sized(400, 2000), sized(600, 4000)
"""How many records are acknowledged before and after."""

SLACK_SECONDS = 1.0 if isLongForm() else 3.0
"""How much longer than without a gateway a pause may be; less would be chance where clients retry after a second."""

GRACE_SECONDS = 30.0
"""In which a gateway that is asked to end does."""


@longForm
class NodeTests(GatewayTestCase):
    """A node ends while clients produce by the gateway, and one without it beside them."""

    def disturb(self, isKilled: bool) -> None:
        """End the node that leads a partition, and start it again."""
        self.cluster.createTopic(self.topic)
        direct = ConfluentLoad(self.cluster.bootstrap, self.topic, PER_SECOND, "direct")
        loads = [
            ConfluentLoad(self.address, self.topic, PER_SECOND),
            JavaLoad(self.address, self.topic, PER_SECOND),
            direct,
        ]
        try:
            waitForEach(loads, BEFORE)
            victim = self.cluster.leaders(self.topic)[0]
            if isKilled:
                self.cluster.kill(victim)
            else:
                self.cluster.stop(victim)
            waitForEach(loads, AFTER)
            self.cluster.restart(victim)
            waitForEach(loads, AFTER)
        finally:
            for load in loads:
                load.stop()
        confluent, java, _ = pauses = [round(load.longestPauseSeconds, 2) for load in loads]
        self.report(confluentSeconds=confluent, javaSeconds=java, directConfluentSeconds=pauses[-1])
        self.assertStored(*loads)
        self.assertLessEqual(loads[0].longestPauseSeconds, direct.longestPauseSeconds + SLACK_SECONDS)

    def test_killed(self) -> None:
        """
        When a node is killed, nothing is lost, nothing is stored twice, and it does not take longer than without the
        gateway.
        """
        self.disturb(isKilled=True)

    def test_stopped(self) -> None:
        """So it is when a node is asked to end."""
        self.disturb(isKilled=False)


class GatewayEndTests(GatewayTestCase):
    """The gateway ends, and is started again."""

    def makeGateway(self) -> GatewayProcess:
        """One of its own."""
        return GatewayProcess(self.cluster.bootstrap, *self.gatewayOptions).startedFor(self)

    def disturb(self, isKilled: bool) -> None:
        """End it under load, and start it again."""
        gateway = self.gateway
        self.cluster.createTopic(self.topic)
        loads = [ConfluentLoad(self.address, self.topic, PER_SECOND), JavaLoad(self.address, self.topic, PER_SECOND)]
        try:
            waitForEach(loads, BEFORE)
            begin = time.monotonic()
            if isKilled:
                gateway.kill()
            else:
                self.assertEqual(gateway.stop(), -signal.SIGTERM)
            endSeconds = time.monotonic() - begin
            gateway.start()
            waitForEach(loads, AFTER)
        finally:
            for load in loads:
                load.stop()
        confluent, java = (round(load.longestPauseSeconds, 2) for load in loads)
        self.report(endSeconds=round(endSeconds, 2), confluentSeconds=confluent, javaSeconds=java)
        self.assertStored(*loads)
        self.assertLess(endSeconds, GRACE_SECONDS)

    def test_stopped(self) -> None:
        """When it is asked to end, it does so in time, and everything acknowledged is stored, once."""
        self.disturb(isKilled=False)

    def test_killed(self) -> None:
        """When it is killed, everything acknowledged is stored, once."""
        self.disturb(isKilled=True)

    if IS_DIRECT:
        skip = "this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out"
