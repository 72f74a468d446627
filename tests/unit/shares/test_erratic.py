"""L{admission.shares.limitsharing}, among policies that fail and messages that make no sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.control import AdmissionControl
from admission.interfaces import IShared, QuotaEntity, Taken
from admission.shares.limitsharing import LimitSharing
from admission.shares.usagemessages import UsageMessage
from admission.testing.scriptedexchange import ScriptedExchange, ScriptedLine
from admission.testing.scriptedquota import ScriptedQuota
from tests.unit.shares.test_limitsharing import LineWithoutDelay

LIMIT = "scripted_rate"
ALICE = QuotaEntity("alice")
METHODS = ("taken", "takenElsewhere", "share")


@implementer(IShared)
class Erratic(ScriptedQuota):
    """
    Says what it is told to, or fails.

    @ivar says: what it says that clients have taken.
    @ivar asked: how often it was asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.says: list[Any] = []
        self.asked = 0

    def taken(self, leastSeconds: float, now: float) -> Iterator[Taken]:
        self.asked += 1
        yield from self.says
        self._fail("taken")

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        self._fail("takenElsewhere")

    def share(self, fraction: float, count: int, now: float) -> None:
        self._fail("share")


class Stopping(ScriptedExchange):
    """
    Stops what it delivers to.

    @ivar leftMessages: how many messages it delivers before that.
    """

    sharing: LimitSharing
    leftMessages = float("inf")

    def hear(self, message: bytes, isOld: bool) -> None:
        super().hear(message, isOld)
        self.leftMessages -= 1
        if self.leftMessages <= 0:
            self.sharing.stop()


taken = st.builds(
    Taken,
    st.sampled_from([LIMIT, "other_rate"]),
    st.builds(QuotaEntity, st.none() | st.text(max_size=5), st.none() | st.text(max_size=5)),
    st.floats(0, 2.0**63),
    st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
)
wrongTaken = st.sampled_from(
    [
        None,
        (LIMIT, ALICE, 1.0),
        Taken(LIMIT, None, 1.0),  # type: ignore[arg-type]
        Taken(5, ALICE, 1.0),  # type: ignore[arg-type]
        Taken(LIMIT, QuotaEntity(7), 1.0),  # type: ignore[arg-type]
        Taken(LIMIT, ALICE, "much"),  # type: ignore[arg-type]
        *(Taken(LIMIT, ALICE, amount) for amount in (-1.0, float("nan"), float("inf"), 10**400)),
        Taken(LIMIT, ALICE, 1.0, ("id",)),  # type: ignore[arg-type]
        Taken(LIMIT, ALICE, 1.0, (-1, 1 << 63)),
        Taken(LIMIT, ALICE, 1.0, 3),  # type: ignore[arg-type]
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda each: st.lists(each, max_size=6) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=8,
)
servers = st.sampled_from(["me", "x", "y", ""])
numbers = st.sampled_from([0, 1.5, True, -1, None, "1", float("nan"), float("inf"), 10**400])
rows = st.tuples(st.just(LIMIT), st.just("alice"), st.none(), st.none(), numbers) | st.tuples(
    st.just(LIMIT), st.just("alice"), st.none(), st.none(), st.just(1), st.lists(numbers, max_size=2) | numbers
)
messages = st.one_of(
    st.binary(max_size=30) | values.map(lambda each: json.dumps(each).encode()),
    st.fixed_dictionaries(
        {
            "version": st.just(1),
            "server": servers,
            "number": st.integers(),
            "taken": st.lists(rows, min_size=1) | values,
        }
    ).map(lambda each: json.dumps(each).encode()),
    st.builds(UsageMessage, servers, st.integers(-1, 10), st.lists(taken, max_size=3)).map(UsageMessage.encoded),
)
steps = st.one_of(
    st.tuples(st.just("fails"), st.frozensets(st.sampled_from(METHODS))),
    st.tuples(st.just("says"), st.lists(taken | wrongTaken, max_size=3)),
    st.tuples(st.just("hears"), st.tuples(messages, st.booleans())),
    st.tuples(st.just("passes"), st.sampled_from([1, 5, 30])),
    st.tuples(st.just("isCut"), st.booleans()),
)


class ErraticTests(SynchronousTestCase):
    """It goes on."""

    def tearDown(self) -> None:
        self.flushLoggedErrors()

    @settings(max_examples=400, deadline=None)
    @given(message=messages, isOld=st.booleans())
    def test_hears(self, message: bytes, isOld: bool) -> None:
        """Whatever is heard, nothing is raised, and it says how it stands."""
        clock = Clock()
        sharing = LimitSharing(ScriptedExchange(ScriptedLine(clock)), AdmissionControl([]), clock, "me")
        sharing.start()
        sharing.deliver(message, isOld)
        json.dumps(sharing.fields(0.0))
        self.successResultOf(sharing.stop())

    @settings(max_examples=150, deadline=None)
    @given(
        lineType=st.sampled_from([ScriptedLine, LineWithoutDelay]),
        story=st.lists(steps, max_size=12),
        leftMessages=st.sampled_from([float("inf")] * 3 + [1, 2, 7]),
    )
    def test_goesOn(self, lineType: type[ScriptedLine], story: list[tuple[str, Any]], leftMessages: float) -> None:
        """
        Whatever policies do, and whatever is heard, nothing escapes, policies are asked at every turn until it is
        stopped, it always says how it stands, and works again once all is well.
        """
        clock = Clock()
        line = lineType(clock)
        policies = Erratic(), Erratic()
        control = AdmissionControl([("first", policies[0]), ("second", policies[1])])
        exchange = Stopping(line)
        exchange.leftMessages = leftMessages
        exchange.sharing = sharing = LimitSharing(exchange, control, clock, "me")
        sharing.start()
        for what, value in [*story, ("fails", frozenset()), ("says", []), ("isCut", False), ("passes", 150)]:
            match what:
                case "fails":
                    policies[0].failing = value
                case "says":
                    policies[0].says = value
                case "hears":
                    exchange.hear(*value)
                case "isCut":
                    line.isCut = value
                case _:
                    before = [each.asked for each in policies]
                    clock.pump([exchange.intervalSeconds] * value)
                    if exchange.leftMessages > 0:
                        for each, asked in zip(policies, before, strict=True):
                            self.assertTrue(value - 1 <= each.asked - asked <= value + 1, (each.asked, asked, value))
            now = clock.seconds()
            json.dumps(sharing.fields(now))
            self.assertTrue(all(isinstance(each, str) for each in sharing.troubles(now)))
        if exchange.leftMessages > 0:
            self.assertEqual((sharing.isLive, sharing.fraction), (True, 1.0))
        self.successResultOf(sharing.stop())
        self.flushLoggedErrors()
