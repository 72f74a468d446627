"""Servers that enforce a limit together, on virtual time: what clients get, and what becomes of messages."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity, Request, Taken, Usage
from admission.shares.limitsharing import LOST_SECONDS
from admission.shares.usagemessages import NotUnderstood, SetLimits, UsageMessage
from admission.testing.scriptedexchange import ScriptedLine
from tests.kit.sharedservers import INTERVAL_SECONDS, RATE, REQUEST_BYTES, SharedServer, Together, beyond

BURST = 1.0
TRIP_SECONDS = 0.04
AFTER = 4
"""After so many seconds the burst is spent."""


def excess(servers: int, connections: int, lostSeconds: float = 0.0) -> float:
    """
    By how much clients may be beyond the limit at any time, in seconds of it; see L{admission.shares.limitsharing}, and
    what is in progress: of each connection one request, which may be let through before it is counted.
    """
    others = (servers - 1) * (INTERVAL_SECONDS + TRIP_SECONDS + lostSeconds)
    return BURST + others + INTERVAL_SECONDS / 2 + connections * REQUEST_BYTES / RATE + 0.02


class LineWithoutDelay(ScriptedLine):
    """Delivers a message while it is sent."""

    def send(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        """All hear it at once."""
        for end in [] if self.isCut else list(self.ends):
            end.hear(message, False)


class TogetherTests(SynchronousTestCase):
    """What clients get of a limit."""

    def test_shares(self) -> None:
        """All of it, however it is spread over the servers, and no more."""
        for count in (1, 2, 4, 8):
            for rates in ([float("inf")] * count, [float("inf")], [1.8 * RATE, 0.2 * RATE][:count]):
                together = Together(count)
                together.pass_(1)
                for server, rate in zip(together.servers, rates, strict=False):
                    server.connect(rate)
                seconds = together.pass_(20)
                mean = sum(seconds[AFTER:]) / (20 - AFTER)
                self.assertTrue(0.97 <= mean <= 1.03, (count, rates, seconds))
                self.assertLess(beyond(seconds), excess(count, len(rates)))

    def test_explained(self) -> None:
        """What is used at each server is told to be used there, and elsewhere by all others."""
        together = Together(2)
        together.pass_(1)
        for server, rate in zip(together.servers, (0.9 * RATE, 0.3 * RATE), strict=True):
            server.connect(rate)
        together.pass_(10)
        request = Request("Produce", "", "alice", "192.0.2.1", 0)
        parts = []
        for server in together.servers:
            [(_, _, status)] = server.control.explain(request, together.clock.seconds())
            self.assertTrue(status.used > 0 and status.fraction == 1.0 and status.usedElsewhere is not None, status)
            parts.append(status.usedHere / status.used)
        self.assertTrue(0.65 <= parts[0] <= 0.85 and 0.15 <= parts[1] <= 0.4, parts)

    def test_dies(self) -> None:
        """One that dies is missed by nobody: the others take what is left."""
        together = Together(3)
        together.pass_(1)
        for server in together.servers:
            server.connect()
        together.pass_(6)
        together.servers[0].kill()
        seconds = together.pass_(10)
        self.assertTrue(0.97 <= sum(seconds[2:]) / 8 <= 1.03, seconds)
        self.assertLess(beyond(together.seconds), excess(3, 3))
        together.pass_(16)
        self.assertEqual([each.sharing.count for each in together.servers[1:]], [2, 2])

    def test_lost(self) -> None:
        """Where nothing comes back each server enforces its part, and says so; afterwards nothing is told of before."""
        together = Together(2)
        together.pass_(1)
        for server in together.servers:
            server.connect()
        together.pass_(6)
        together.line.isCut = True
        seconds = together.pass_(8)
        self.assertTrue(all(0.95 <= each <= 1.05 for each in seconds[4:]), seconds)
        sharing = together.servers[0].sharing
        now = together.clock.seconds()
        self.assertEqual((sharing.isLive, sharing.count, sharing.fraction), (False, 2, 0.5))
        (words,) = sharing.troubles(now)
        self.assertRegex(
            words, r"limits are not shared: nothing has come back for \d+ s \(the line is cut\); each of 2 ser"
        )
        together.line.isCut = False
        seconds = together.pass_(6)
        self.assertTrue(all(0.8 <= each <= 1.2 for each in seconds[1:]), seconds)
        self.assertEqual((sharing.fraction, list(sharing.troubles(now))), (1.0, []))
        self.assertLess(beyond(together.seconds), excess(2, 2, LOST_SECONDS + INTERVAL_SECONDS + TRIP_SECONDS))

    def test_starts(self) -> None:
        """One that starts while it hears nobody enforces no more than its part of what is known."""
        for settings_, expected in (({}, 1.0), ({"atLeast": 4}, 0.25), ({"remembered": 3}, 1 / 3)):
            together = Together(0)
            together.line.isCut = True
            server = SharedServer(together.line, **settings_)  # type: ignore[arg-type]
            self.assertEqual(server.sharing.fraction, expected)
            together.pass_(5)
            self.assertEqual((server.sharing.fraction, server.sharing.isLive), (expected, False))
            self.assertTrue(list(server.sharing.troubles(together.clock.seconds())))

    def test_remembers(self) -> None:
        """How many there are is stored while that is known, and only then."""
        stored: list[int] = []
        together = Together(1, remember=stored.append)
        together.pass_(1)
        other = SharedServer(together.line)
        together.pass_(1)
        together.line.isCut = True
        together.pass_(20)
        self.assertEqual(stored, [2])
        together.line.isCut = False
        together.pass_(1)
        other.kill()
        together.pass_(17)
        self.assertEqual(stored, [2, 1])

    @settings(max_examples=40, deadline=None)
    @given(
        seed=st.integers(0, 2**32),
        count=st.integers(1, 5),
        delaySeconds=st.sampled_from([0.0, 0.1, 1.0]),
        doubled=st.sampled_from([0.0, 0.3]),
        lost=st.sampled_from([0.0, 0.05]),
        cuts=st.lists(st.sampled_from([True, False]), min_size=6, max_size=6),
    )
    def test_bound(
        self, seed: int, count: int, delaySeconds: float, doubled: float, lost: float, cuts: list[bool]
    ) -> None:
        """
        Whatever becomes of messages, clients are never further beyond the limit than where nothing is told for as long
        as that is not noticed; what is lost adds to it, once each.
        """
        random = Random(seed)
        together = Together(count, seed)
        line = together.line
        line.tripSeconds = lambda: random.uniform(0.01, 0.04 + delaySeconds)
        losses = 0

        def copies() -> int:
            nonlocal losses
            if random.random() < lost:
                losses += 1
                return 0
            return 2 if random.random() < doubled else 1

        line.copies = copies
        together.pass_(1)
        for server in together.servers:
            server.connect()
        cutsBegun = 0
        for isCut in cuts:
            cutsBegun += isCut and not line.isCut
            line.isCut = isCut
            together.pass_(2)
        line.isCut = False
        together.pass_(2)
        # Of each cut, and of each message that nobody hears, as much is not counted as could be taken meanwhile.
        unheardSeconds = cutsBegun * (LOST_SECONDS + INTERVAL_SECONDS + TRIP_SECONDS + delaySeconds) + delaySeconds
        allowed = excess(count, count, unheardSeconds) + losses * 10 * INTERVAL_SECONDS
        self.assertLess(beyond(together.seconds), allowed)


class MessagesTests(SynchronousTestCase):
    """What is told."""

    def test_littleIsNotTold(self) -> None:
        """What is too little to matter is told once it does."""
        together = Together(2)
        together.pass_(1)
        server, other = together.servers
        server.control.charge(Request("Produce", "", "alice", "", 0), Usage(1000), together.clock.seconds())
        together.pass_(1)
        self.assertEqual(other.sharing.heardRows, 0)
        least = int(RATE * INTERVAL_SECONDS / 4)
        server.control.charge(Request("Produce", "", "alice", "", 0), Usage(least), together.clock.seconds())
        together.pass_(1)
        self.assertEqual(other.sharing.heardRows, 1)

    def test_many(self) -> None:
        """
        A message has a bounded number of rows, by turns; a client of which others could not be told for two seconds
        gets its part alone until they are.
        """
        together = Together(2)
        together.pass_(1)
        server, other = together.servers
        clients = [Request("Produce", "", f"c{number}", "", 0) for number in range(3_000)]

        def charge(client: Request) -> float:
            return server.control.charge(client, Usage(int(RATE)), together.clock.seconds()).delaySeconds

        for client in clients:
            charge(client)
        together.pass_(1)
        self.assertTrue(800 <= other.sharing.heardRows <= 1000)
        for client in clients:
            charge(client)
            charge(client)
        together.clock.pump([0.05] * 12)
        # Of three: those that were told have two left, and others all.
        delays = [charge(client) for client in clients]
        self.assertLess(min(delays), max(delays) / 1.9)
        together.pass_(6)
        self.assertGreater(other.sharing.heardRows, 3000)
        self.assertEqual(server.sharing.fraction, 1.0)

    def test_keptComesBack(self) -> None:
        """That identities come back does not mean that amounts do."""
        together = Together(1)
        together.pass_(1)
        (server,) = together.servers

        def publish(message: bytes, isKept: bool, key: str | None = None) -> None:
            if isKept:
                together.line.send(message, isKept)

        server.exchange.publish = publish  # type: ignore[method-assign]
        for number in range(60):
            identity = Taken("new_identity_rate", QuotaEntity(user="alice"), 1.0, (number,))
            self.patch(server.control, "untold", lambda *_, told=identity: [told])
            together.clock.pump([0.05] * 2)
        self.assertFalse(server.sharing.isLive)

    def test_failingExchange(self) -> None:
        """An exchange that raises is as good as none: each server enforces its part, and says so."""
        together = Together(2)
        together.pass_(1)
        server = together.servers[0]

        def fail(*_: object) -> None:
            raise OSError("no such thing")

        server.exchange.publish = server.exchange.trouble = fail  # type: ignore[method-assign, assignment]
        together.pass_(10)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual((server.sharing.isLive, server.sharing.fraction), (False, 0.5))
        self.assertIn("cannot say why", next(server.sharing.troubles(together.clock.seconds())))

    def test_atOnce(self) -> None:
        """A message may come back from within what sends it."""
        clock = Clock()
        server = SharedServer(LineWithoutDelay(clock))
        for _ in range(2):
            self.assertTrue(server.sharing.isLive)
            self.assertAlmostEqual(server.sharing.tripSeconds, 0.0, places=6)
            clock.pump([0.05] * 60)

    def test_nonsense(self) -> None:
        """What makes no sense is ignored, and counted."""
        together = Together(1)
        together.pass_(1)
        sharing = together.servers[0].sharing
        taken = Taken("received_byte_rate", QuotaEntity(clientId="alice"), 10.0)
        for wrong in (
            b"",
            b"[]",
            b"{",
            b"[" * 100_000,
            b"\xff",
            b'{"version":2}',
            b'{"version":1,"server":"x","number":1,"taken":[["received_byte_rate","a",null,null,NaN]]}',
            b'{"version":1,"server":"x","number":1,"taken":[["received_byte_rate","a",null,null,-1]]}',
            b'{"version":1,"server":"x","number":1,"taken":[[1,"a",null,null,1]]}',
            b'{"version":1,"server":1,"number":1,"taken":[]}',
            b'{"version":1,"server":"x","number":1,"taken":[["received_byte_rate","a",null,null,1%s]]}' % (b"0" * 400),
            b'{"version":1,"server":"x","number":1,"taken":[["received_byte_rate","a",null,null,1,[1%s]]]}'
            % (b"0" * 400),
            UsageMessage("x", 1, [taken._replace(identities=(1 << 63,))]).encoded(),
            UsageMessage("x", 1, [taken._replace(identities=(-1,))]).encoded(),
            UsageMessage("y" * 2000, 1, [taken]).encoded(),
            UsageMessage("x", 1, [taken]).encoded() + b" " * (300 << 10),
        ):
            before = sharing.misunderstood
            sharing.deliver(wrong, False)
            self.assertEqual((sharing.misunderstood, sharing.heardRows), (before + 1, 0), wrong[:80])
        unknown = taken._replace(limitName="other_rate")
        sharing.deliver(UsageMessage("x", 1, [unknown, taken]).encoded(), False)
        self.assertEqual(sharing.heardRows, 2)
        sharing.deliver(UsageMessage("x", 1, [taken]).encoded(), False)
        self.assertEqual(sharing.heardRows, 2)


class LimitsTests(SynchronousTestCase):
    """Limits that are set while servers run."""

    def setUp(self) -> None:
        self.together = Together(2)
        self.together.pass_(1)
        self.found: list[list[SetLimits]] = [self.listen(each) for each in self.together.servers]

    def listen(self, server: SharedServer) -> list[SetLimits]:
        """What a server is told from now on."""
        found: list[SetLimits] = []
        server.sharing.whenLimits = found.append
        return found

    def limits(self, value: float, user: str = "alice") -> SetLimits:
        """A limit, or none any more."""
        return SetLimits(QuotaEntity(user), {"received_byte_rate": value} if value else {}, "User:root")

    def test_told(self) -> None:
        """All are told, in the same order, and one that starts later of the last of each entity."""
        first, second = (each.sharing for each in self.together.servers)
        sent = [self.limits(1.0), self.limits(2.0, "bob"), self.limits(3.0), self.limits(0.0, "bob")]
        for each, sharing in zip(sent, (first, second, second, first), strict=True):
            sharing.setLimits(each)
            self.together.pass_(1)
        self.assertEqual(self.found, [sent, sent])
        found: list[SetLimits] = []
        third = SharedServer(self.together.line, isStarted=False)
        third.sharing.whenLimits = found.append
        third.sharing.start()
        self.assertEqual(found, sent[2:])

    def test_atOnce(self) -> None:
        """Where two are set at the same time, all end with the same."""
        first, second = (each.sharing for each in self.together.servers)
        for number in range(1, 6):
            first.setLimits(self.limits(number))
            second.setLimits(self.limits(number + 0.5))
        self.together.pass_(1)
        self.assertEqual(self.found[0][-1], self.found[1][-1])
        # What was set again since is not put in force for a moment.
        self.assertEqual([each.limits["received_byte_rate"] for each in self.found[0] if each == self.limits(1.0)], [])

    def test_cut(self) -> None:
        """What nobody hears is told until they do, the last of each entity."""
        first, _ = (each.sharing for each in self.together.servers)
        self.together.line.isCut = True
        for number in range(1, 4):
            first.setLimits(self.limits(number))
            self.together.pass_(1)
        self.together.pass_(10)
        self.assertEqual(self.found, [[], []])
        self.together.line.isCut = False
        self.together.pass_(3)
        self.assertEqual({each for found in self.found for each in map(str, found)}, {str(self.limits(3.0))})
        told = [len(each) for each in self.found]
        self.together.pass_(10)
        self.assertEqual([len(each) for each in self.found], told)

    def test_message(self) -> None:
        """There and back; what is no limit is refused."""
        for limits in (self.limits(1.5), self.limits(0.0)):
            message = UsageMessage("x", 1, (), limits)
            self.assertEqual(UsageMessage.of(message.encoded()), UsageMessage("x", 1, [], limits))
        for wrong in (
            [],
            5,
            ["alice", None, None, {}, 5],
            [None, None, None, {}, "me"],
            ["alice", None, None, {"rate": 0}, "me"],
            ["alice", None, None, {"rate": "1"}, "me"],
            ["alice", None, None, [1], "me"],
        ):
            told = {"version": 1, "server": "x", "number": 1, "taken": [], "limits": wrong}
            self.assertRaises(NotUnderstood, UsageMessage.of, json.dumps(told).encode())


class ProducerIdsTests(SynchronousTestCase):
    """Identities that one server has let in."""

    def ask(self, server: SharedServer, identity: int) -> bool:
        """Whether it lets a producer in."""
        request = Request("Produce", "alice", "", "", 100, (identity,))
        now = server.clock.seconds()
        decision = server.control.admit(request, now)
        if decision.admitted:
            server.control.charge(request, Usage(100), now)
        return decision.admitted

    def test_known(self) -> None:
        """They are known to all, have taken their tokens everywhere, and a server that starts knows them, too."""
        together = Together(2, description="producer-ids:rate=8:window=1h:shared=yes")
        together.pass_(1)
        first, second = together.servers
        self.assertTrue(all(self.ask(first, each) for each in range(4)))
        self.assertTrue(all(self.ask(second, each) for each in range(4, 8)))
        together.pass_(1)
        self.assertTrue(all(self.ask(first, each) and self.ask(second, each) for each in range(8)))
        self.assertFalse(self.ask(first, 8) or self.ask(second, 9))
        third = SharedServer(together.line, "producer-ids:rate=8:window=1h:shared=yes")
        self.assertTrue(all(self.ask(third, each) for each in range(8)))

    def test_many(self) -> None:
        """All are told, in as many messages as that takes, also before a server hears itself."""
        line = ScriptedLine(Clock(), lambda: 0.35)
        description = "producer-ids:rate=8:window=1h:shared=yes"
        first, second = (SharedServer(line, description) for _ in range(2))
        for user in range(2500):
            first.control.charge(Request("Produce", f"u{user}", "", "", 100, (1,)), Usage(100), 0.0)
        line.clock.advance(0.1)  # type: ignore[attr-defined]
        self.assertFalse(first.sharing.isLive)
        line.clock.advance(0.4)  # type: ignore[attr-defined]
        self.assertEqual(second.sharing.heardRows, 2500)

    def test_refreshed(self) -> None:
        """One that is used at one server only is forgotten by none."""
        together = Together(2, description="producer-ids:rate=2:window=60s:shared=yes")
        together.pass_(1)
        first, second = together.servers
        for _ in range(150):
            self.assertTrue(self.ask(first, 1))
            together.clock.pump([0.25] * 4)
        self.assertTrue(all(self.ask(second, each) for each in (2, 3)))
        self.assertTrue(self.ask(second, 1))

    def test_share(self) -> None:
        """While nothing comes back, new ones come as slowly as a part of the limit allows."""
        together = Together(2, description="producer-ids:rate=8:window=80s:shared=yes")
        together.pass_(1)
        together.line.isCut = True
        together.pass_(8)
        first, _ = together.servers
        admitted = sum(self.ask(first, each) for each in range(20))
        self.assertEqual(admitted, 4)
        first.control.configure(QuotaEntity(user=DEFAULT), {"new_identity_rate": 16.0}, together.clock.seconds())
        together.pass_(16)
        self.assertEqual(sum(self.ask(first, each) for each in range(100, 120)), 1)
