"""Tests for L{admission.offline.simulate.disagreement}."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import QuotaEntity
from admission.offline.simulate.disagreement import (
    DISAGREEMENTS,
    MAX_CLIENTS,
    MAX_MINUTES,
    Disagreement,
    explain,
    partsWithout,
)
from admission.offline.simulate.identity import Fidelity
from admission.offline.simulate.runs import Gap, LimitChange, Run
from admission.offline.simulate.trials import Trial, planRecorded

SECOND = 1_000_000
BEGIN_US = 1_709_294_400 * SECOND
"""2024-03-01T12:00."""

RUN = Run(
    "1",
    "boot",
    3600 * SECOND,
    ("client-bytes", "request-time"),
    ("client-bytes:produce=1M", "request-time:percent=50"),
    wallOffsetUs=BEGIN_US,
    beginUs=BEGIN_US,
    endUs=BEGIN_US + 3600 * SECOND,
)
"""An hour."""

LIMIT = QuotaEntity(user="team", clientId="job")


Row = dict[str, Any]


def row(first: float, last: float | None = None, clientId: str = "app", decisions: int = 1, **more: Any) -> Row:
    """Disagreements of a client in a minute, by the seconds of the first and the last."""
    beginUs = (BEGIN_US + round(first * SECOND)) // (60 * SECOND) * 60
    return {
        "candidate": "recorded client-bytes",
        "broker_id": "1",
        "boot_id": "boot",
        "principal": "alice",
        "client_id": clientId,
        "begin": datetime.fromtimestamp(beginUs, UTC),
        "decisions": decisions,
        "pipelined": 0,
        "first_us": BEGIN_US + round(first * SECOND),
        "last_us": BEGIN_US + round((first if last is None else last) * SECOND),
        "first_decided_us": round(first * SECOND),
        **more,
    }


def refuted(policy: str = "client-bytes", **more: Any) -> Fidelity:
    """Of a policy that disagrees."""
    return evolve(Fidelity(f"recorded {policy}", "closed", "1", "boot", 1000, 0.9, 1.0, 500, 0, 0, 0), **more)


class ExplainTests(SynchronousTestCase):
    """Where a replay disagrees, and why."""

    def explained(
        self,
        *rows: Row,
        run: Run = RUN,
        fidelities: Sequence[Fidelity] = (refuted(),),
        isCut: bool = False,
        pipeliningShare: float = 0.0,
        isSample: bool = False,
        **trial: Any,
    ) -> list[Disagreement]:
        """
        What is found.

        @param trial: what is otherwise in the trial of C{client-bytes}.
        """
        trials = planRecorded([run])
        key = ("recorded client-bytes", "1", "boot")
        trials[key] = evolve(trials[key], **trial)
        table = pa.Table.from_pylist(list(rows), DISAGREEMENTS)
        place = ("1", "boot")
        return explain(fidelities, table, trials, {place} if isCut else (), {place: pipeliningShare}, isSample)

    def cause(self, *rows: Row, **more: Any) -> str:
        """The likely cause."""
        return self.explained(*rows, **more)[0].cause

    def test_counts(self) -> None:
        """
        Clients and minutes are counted, those with the most disagreements are told, and moments are as C{--from} and
        C{--to} take them: whole seconds that leave no disagreement out.
        """
        count = MAX_CLIENTS + 2
        rows = [row(60 * each + 0.5, 60 * each + 58.5, f"app-{each}", 10 + each) for each in range(count)]
        [found] = self.explained(*rows, row(1.5, clientId="app-1"))
        self.assertEqual((found.policy, found.decisions, found.compared), ("recorded client-bytes", 92, 1000))
        self.assertEqual((found.clientCount, found.minuteCount), (count, count))
        self.assertEqual(found.clients[:2], [("alice", "app-6", 16), ("alice", "app-5", 15)])
        self.assertEqual(len(found.clients), MAX_CLIENTS)
        minutes = [(f"2024-03-01T12:0{place}", 10 + place) for place in range(2, 2 + MAX_MINUTES)]
        self.assertEqual(found.minutes, minutes)
        self.assertEqual((found.first, found.after), ("2024-03-01T12:00:00", "2024-03-01T12:06:59"))

    def test_order(self) -> None:
        """The policy with the most disagreements comes first, and each has its own."""
        other: Row = {"candidate": "recorded request-time", "decisions": 7}
        found = self.explained(row(100), row(100, **other), fidelities=[refuted(), refuted("request-time")])
        self.assertEqual(
            [(each.policy, each.decisions) for each in found],
            [("recorded request-time", 7), ("recorded client-bytes", 1)],
        )

    def test_missing(self) -> None:
        """Where the replay only does not come to decisions there are no clients and minutes, and no cause."""
        [found] = self.explained(fidelities=[refuted(missing=9)])
        self.assertEqual((found.decisions, found.missing, found.clients, found.first), (0, 9, [], ""))
        self.assertEqual((found.after, found.cause, partsWithout([found], [RUN])), ("", "", []))

    def test_unknown(self) -> None:
        """Without anything that speaks for a cause there is none."""
        self.assertEqual(self.cause(row(100, 3000)), "")

    def test_limit(self) -> None:
        """A limit that was changed just before the first disagreement is the likely cause, and others are not."""
        for atSeconds, value, words in (
            (990, 5.0, "limit producer_byte_rate of user team and client id job was set at 2024-03-01T12:16:30, and"),
            (990, None, "was removed at 2024-03-01T12:16:30, and until then all decisions agree"),
            # The request was decided just before that was recorded.
            (1000.5, 5.0, "was set at 2024-03-01T12:16:40"),
            (1002, 5.0, ""),
            (900, 5.0, ""),
            # As soon as the recording begins that does not mean much.
            (2, 5.0, ""),
        ):
            firstSeconds = 8 if atSeconds == 2 else 1000
            change = LimitChange(round(atSeconds * SECOND), LIMIT, "producer_byte_rate", value)
            found = self.cause(row(firstSeconds, 3000), changes=[change])
            self.assertIn(words, found)
            self.assertEqual(bool(words), bool(found), (atSeconds, found))
        atStart = LimitChange(990 * SECOND, LIMIT, "producer_byte_rate", 5.0, isStart=True)
        self.assertEqual(self.cause(row(1000, 3000), changes=[atStart]), "")

    def test_remembering(self) -> None:
        """A policy that remembers for longer may disagree later."""
        change = LimitChange(800 * SECOND, QuotaEntity(), "producer_byte_rate", 5.0)
        self.assertEqual(self.cause(row(1000), changes=[change], horizonSeconds=150.0), "")
        self.assertIn("of everybody was set", self.cause(row(1000), changes=[change], horizonSeconds=250.0))

    def test_gap(self) -> None:
        """Events that are missing just before are the likely cause; the last thing that happened counts."""
        gaps = [Gap(77, 100 * SECOND), Gap(99, 995 * SECOND, 3)]
        words = "3 events are missing before 2024-03-01T12:16:35, and until then all decisions agree"
        self.assertEqual(self.cause(row(1000, 3000), run=evolve(RUN, gaps=gaps)), words)
        change = LimitChange(990 * SECOND, LIMIT, "producer_byte_rate", 5.0)
        self.assertEqual(self.cause(row(1000, 3000), run=evolve(RUN, gaps=gaps), changes=[change]), words)

    def test_cut(self) -> None:
        """Disagreements at the beginning alone are from before it, if the server was at work then."""
        self.assertIn("begins at 2024-03-01T12:00:00, when the server was", self.cause(row(1, 20), isCut=True))
        self.assertEqual(self.cause(row(1, 20)), "")
        self.assertEqual(self.cause(row(100, 120), isCut=True), "")
        self.assertEqual(self.cause(row(1, 3000), isCut=True), "")

    def test_pipelining(self) -> None:
        """If only connections that pipeline disagree, and there are others, that is the likely cause."""
        pipelined = row(100, 3000, decisions=5, pipelined=5)
        words = "send requests before the last one is answered"
        self.assertIn(words, self.cause(pipelined, pipeliningShare=0.3))
        self.assertEqual(self.cause(pipelined, pipeliningShare=1.0), "")
        self.assertEqual(self.cause(pipelined, row(200, clientId="b"), pipeliningShare=0.3), "")

    def test_own(self) -> None:
        """A policy of somebody else that disagrees alone may depend on something that is not recorded."""

        def own(trials: dict[Any, Trial]) -> dict[str, Any]:
            trial = trials["recorded client-bytes", "1", "boot"]
            return {"candidate": evolve(trial.candidate, implementation="acme.policy.build")}

        trial = own(planRecorded([RUN]))
        self.assertIn("not one of admission's, and no other disagrees: it may depend", self.cause(row(100), **trial))
        both = [refuted(), refuted("request-time")]
        rows = [row(100, decisions=2), row(100, candidate="recorded request-time")]
        self.assertEqual(self.cause(*rows, fidelities=both, **trial), "")
        alone = evolve(RUN, policyNames=RUN.policyNames[:1], policyDescriptions=RUN.policyDescriptions[:1])
        self.assertIn("not one of admission's: it may depend", self.cause(row(100), run=alone, **trial))

    def test_others(self) -> None:
        """What is known of the policy or of the question is told: that it follows requests, or that it is a sample."""
        self.assertIn("follows requests", self.cause(row(100), isFollowing=True))
        self.assertIn("only a sample of the clients", self.cause(row(100), isSample=True))


class PartTests(SynchronousTestCase):
    """Which part of a recording has no disagreements."""

    def parts(self, *spans: tuple[str, str]) -> list[tuple[str | None, str | None]]:
        """The parts of an hour."""
        found = Disagreement("recorded a", "1", "boot", 1, 2, 0, [], 0, [], 0, "", "", "")
        return partsWithout([evolve(found, first=first, after=after) for first, after in spans], [RUN])

    def test_parts(self) -> None:
        """The longer of the parts before and after all of them comes first, and short ones do not count."""
        for spans, expected in (
            (
                [("2024-03-01T12:10:00", "2024-03-01T12:20:00")],
                [("2024-03-01T12:20:00", None), (None, "2024-03-01T12:10:00")],
            ),
            (
                [("2024-03-01T12:40:00", "2024-03-01T12:41:00"), ("2024-03-01T12:30:00", "2024-03-01T12:31:00")],
                [(None, "2024-03-01T12:30:00"), ("2024-03-01T12:41:00", None)],
            ),
            ([("2024-03-01T12:05:59", "2024-03-01T12:20:00")], [("2024-03-01T12:20:00", None)]),
            ([("2024-03-01T12:00:00", "2024-03-01T13:00:00")], []),
            # One of two policies only does not come to some decisions.
            ([("", ""), ("2024-03-01T12:00:00", "2024-03-01T12:01:00")], [("2024-03-01T12:01:00", None)]),
        ):
            self.assertEqual(self.parts(*spans), expected)
