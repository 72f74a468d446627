"""A broker in a process of its own that limits new producer ids."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kit.brokerprocess import ObservedBroker, until
from tests.kit.rawclient import RawClient

PASSWORD = "secret"


class LimitingBroker(ObservedBroker):
    """A broker that wants its clients to log in."""

    def __init__(self, limit: str, users: Sequence[str], *options: str) -> None:
        """
        @param limit: the arguments of the policy.
        @param users: who may log in.
        @param options: further options of C{twistd admission}.
        """
        super().__init__(
            *("--auth", f"memory:{':'.join(f'{user}:{PASSWORD}' for user in users)}"),
            *("--quota", f"producer-ids:{limit}"),
            *options,
        )

    def throttledMs(self, user: str) -> float:
        """For how long a user was throttled or refused lately, on average of those requests."""
        values = self.ask("sensors")["families"]["producer-ids.throttle-time"]["values"]
        return next((value or 0.0 for name, value in values if name == user), 0.0)

    def setbacks(self) -> float:
        """How often anybody was refused or throttled."""
        families = self.ask("sensors")["families"]
        return sum(value for name in ("QuotaRefusals", "QuotaThrottles") for _, value in families[name]["values"])

    def waitForToken(self, user: str) -> None:
        """Wait until a user may bring along a new id."""
        until(lambda: not any(each["delaySeconds"] for each in self.ask(f"explain?user={user}")["limits"]))

    def raw(self, user: str) -> RawClient:
        """A connection of a user that is logged in."""
        client = RawClient(self.port)
        assert not client.logIn(user, PASSWORD)
        return client
