"""Imitates who asks about, or wants removed, as many things that do not exist as a request may name."""

from __future__ import annotations

from tests.kit.attack import AttackTestCase, largest, sized
from tests.kit.costlyrequests import UNKNOWN

CONNECTIONS = sized(1, 8)


class UnknownNamesTests(AttackTestCase):
    """Large requests about nothing."""

    def test_unknown(self) -> None:
        """Each is answered in turns, and its answer is charged, or it is refused."""
        names = [f"u{number:08d}" for number in range(100_000)]
        for api, requestFor in UNKNOWN.items():
            clients = [self.connect() for _ in range(CONNECTIONS)]
            self.assertNotEqual(self.exchange(clients[:1], requestFor(names[:1])), [None], api)
            count, request = largest(requestFor, names)
            with self.attack(f"{CONNECTIONS} {api} of {count} unknown names"):
                answers = self.exchange(clients, request)
            self.require(None not in answers, f"{api} of {count} names closes the connection")
            for client in clients:
                client.close()
        self.assertAffordable()
