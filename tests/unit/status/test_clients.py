"""L{admission.status.clients}."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from attrs import define, field
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl, Explanation
from admission.interfaces import DEFAULT, QuotaEntity, QuotaStatus
from admission.status.clients import Client


@define
class Explaining:
    """An L{AdmissionControl} that explains as it is told to."""

    explanations: list[Explanation] = field(factory=list)

    def explain(self, request: object, now: float) -> Iterable[Explanation]:
        """What it is told."""
        return self.explanations


class FieldsTests(SynchronousTestCase):
    """What is shown of a client."""

    def setUp(self) -> None:
        self.control = Explaining()

    def uses(self, policy: str, limitName: str, used: float, isShadow: bool = False) -> None:
        """Have a limit of 100 used."""
        status = QuotaStatus(limitName, 100.0, QuotaEntity(clientId=DEFAULT), used, 0.0)
        self.control.explanations.append(Explanation(policy, isShadow, status))

    def shown(self, policy: str | None) -> tuple[Any, Any]:
        """The policy and the limit that are shown of a client that a policy has delayed."""
        client = Client("alice", "app", "192.0.2.1", untilSeconds=5.0, policy=policy)
        fields = client.fields(cast(AdmissionControl, self.control), 1.0)
        self.assertEqual(fields["delaySeconds"], 4.0)
        return fields["policy"], fields["limitName"]

    def test_policy(self) -> None:
        """A client is shown with a limit of the policy that delayed it, and not with one that is merely used more."""
        self.uses("request-time", "request_percentage", 99.0)
        self.uses("client-bytes", "producer_byte_rate", 10.0)
        self.uses("client-bytes", "consumer_byte_rate", 20.0)
        self.assertEqual(self.shown("client-bytes"), ("client-bytes", "consumer_byte_rate"))
        self.assertEqual(self.shown("request-time"), ("request-time", "request_percentage"))

    def test_unknownPolicy(self) -> None:
        """If it is not known who delayed it, the limit is shown that is used most, and none of a policy in shadow."""
        self.uses("client-bytes", "producer_byte_rate", 10.0)
        self.uses("request-time", "request_percentage", 20.0)
        self.uses("trial", "producer_byte_rate", 99.0, isShadow=True)
        self.assertEqual(self.shown(None), ("request-time", "request_percentage"))

    def test_forgotten(self) -> None:
        """A delay may be longer than what it is for is counted: no limit is named if it could be several."""
        self.uses("client-bytes", "producer_byte_rate", 0.0)
        self.assertEqual(self.shown("client-bytes"), ("client-bytes", "producer_byte_rate"))
        self.uses("client-bytes", "consumer_byte_rate", 0.0)
        self.assertEqual(self.shown("client-bytes"), ("client-bytes", None))

    def test_noLimit(self) -> None:
        """The policy is named even if it has no limit any more."""
        self.assertEqual(self.shown("client-bytes"), ("client-bytes", None))
        self.assertEqual(self.shown(None), (None, None))
