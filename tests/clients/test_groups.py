"""
Real clients of every kind in one group: whatever happens to them, each partition has one owner and no record is missed.

All that is told here happens in two experiments, see L{tests.clients.groupexperiments}.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise, permutations
from typing import TYPE_CHECKING, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.groupexperiments import (
    COMPLETE,
    DOOMED,
    EMPTY,
    FAST,
    SLACK_SECONDS,
    SLOW_BATCHES,
    SLOW_SECONDS,
    STABLE,
    ChangingExperiment,
    Experiment,
    SlowExperiment,
    findingsOf,
    spansOf,
)
from tests.kit.libraries import MEMBERS
from tests.kit.longform import longForm

# Only a mixin at run time, or the tests of this class would be run without an experiment.
if TYPE_CHECKING:
    _Base = SynchronousTestCase
else:
    _Base = object


class GroupCases(_Base):
    """What holds whatever happens to the members."""

    experiment: ClassVar[Callable[[], Experiment]]

    def setUp(self) -> None:
        self.findings = findingsOf(type(self).experiment).result()

    def test_owners(self) -> None:
        """
        Whenever the group is stable, no partition has two owners; when all members have found each
        other, each has one.
        """
        for sample in self.findings.samples:
            if sample.state == STABLE:
                owned = Counter(chain(*sample.owners.values()))
                self.assertEqual(set(owned.values()) - {1}, set(), sample)
        for sample in self.findings.settled:
            self.assertEqual(set(chain(*sample.owners.values())), COMPLETE)

    def test_offsetsNeverGoBack(self) -> None:
        """
        What is committed for a partition never becomes less: neither as the broker tells it, nor by any commit that it
        accepts after it has answered another.
        """
        for earlier, later in pairwise(self.findings.samples):
            for partition, offset in earlier.offsets.items():
                self.assertGreaterEqual(later.offsets.get(partition, -1), offset)
        commits = [
            (event.values[0], event.at, int(partition), offset)
            for member in self.findings.members
            for event in member.said("committed")
            for partition, offset in event.values[1].items()
        ]
        self.assertEqual({partition for _, _, partition, _ in commits}, set(self.findings.produced))
        for (_, end, partition, offset), (begin, _, otherPartition, otherOffset) in permutations(commits, 2):
            if partition == otherPartition and end < begin:
                self.assertGreaterEqual(otherOffset, offset)

    def test_nothingIsLost(self) -> None:
        """Every record reaches a member at least once."""
        received = {tuple(event.values) for member in self.findings.members for event in member.said("record")}
        produced = {(partition, offset) for partition, end in self.findings.produced.items() for offset in range(end)}
        self.assertEqual(received, produced)

    def test_onlyItsOwn(self) -> None:
        """A member gets records only of the partitions that it was given last."""
        for member in self.findings.members:
            owned: set[int] = set()
            for event in member.events:
                if event.word == "assigned":
                    owned = set(event.values[0])
                elif event.word == "revoked":
                    owned -= set(event.values[0])
                elif event.word == "record":
                    self.assertIn(event.values[0], owned, member.name)

    def test_complaints(self) -> None:
        """None of it is anything that the broker would complain about."""
        self.assertEqual(self.findings.complaints, [])


class ChangingGroupTests(GroupCases, SynchronousTestCase):
    """Clients of all kinds join a group, are killed, and leave; their broker is killed."""

    experiment = ChangingExperiment

    def test_joined(self) -> None:
        """Clients of all kinds share the partitions evenly."""
        first = self.findings.settled[0]
        self.assertEqual(sorted(map(len, first.owners.values())), [2, 2, 3, 3])

    def test_oneAtATime(self) -> None:
        """A member is told that it has a partition only when the one that had it has given it up, or is dead."""
        spans = sorted(chain(*map(spansOf, self.findings.members)), key=lambda span: (span.partition, span.begin))
        self.assertEqual({span.partition for span in spans}, COMPLETE)
        for earlier, later in pairwise(spans):
            if earlier.partition == later.partition:
                self.assertLess(earlier.end, later.begin, (earlier, later))

    def test_killed(self) -> None:
        """When one was killed, the others have its partitions within its session timeout and one heartbeat interval."""
        self.assertEqual(set(self.findings.replaced), set(MEMBERS))
        limitSeconds = (DOOMED.sessionMs + DOOMED.heartbeatMs) / 1000
        self.assertLess(max(self.findings.replaced.values()), limitSeconds + SLACK_SECONDS, self.findings.replaced)
        silent = re.findall(r"generation \d+: '?(\S+)-[0-9a-f-]{36}'? was silent for 2 s", self.findings.log)
        self.assertEqual(silent, [f"{kind}-killed" for kind in MEMBERS])

    def test_left(self) -> None:
        """Every member says so when it leaves, whatever its kind; the group keeps its offsets and ends up empty."""
        left = re.findall(r"generation \d+: '?(\S+)-[0-9a-f-]{36}'? has left", self.findings.log)
        self.assertEqual(left, [*MEMBERS])
        self.assertEqual((self.findings.left.state, self.findings.left.owners), (EMPTY, {}))
        self.assertEqual(self.findings.left.offsets, self.findings.produced)

    def test_restarted(self) -> None:
        """
        A stable group gets over a broker that was killed: the same members go on with the same partitions where they
        were, and no client notices more than a lost connection.
        """
        before, after = self.findings.restarted
        self.assertEqual((after.memberIds, after.owners), (before.memberIds, before.owners))
        for partition, offset in before.offsets.items():
            self.assertGreaterEqual(after.offsets[partition], offset)
        self.assertEqual(self.findings.disturbed, [])
        self.assertNotIn("rebalances", self.findings.restartLog)


@longForm
class SlowGroupTests(GroupCases, SynchronousTestCase):
    """Clients of all kinds in a group take their time."""

    experiment = SlowExperiment

    def test_unhurried(self) -> None:
        """A consumer that works on each batch for three times its session timeout keeps its partitions."""
        before, after = self.findings.unhurried
        self.assertEqual((after.memberIds, after.owners), (before.memberIds, before.owners))
        self.assertEqual(set(self.findings.worked), set(MEMBERS))
        for name, worked in self.findings.worked.items():
            self.assertEqual(len(worked), SLOW_BATCHES, name)
            self.assertGreaterEqual(min(worked), SLOW_SECONDS)
        self.assertNotIn("rebalances", self.findings.unhurriedLog)

    def test_stuck(self) -> None:
        """
        Consumers that work for longer than C{max.poll.interval.ms} lose their partitions, and another one does what
        they were stuck in; at their next poll they get partitions again.
        """
        _, before = self.findings.unhurried
        self.assertEqual(self.findings.stuck.owners, {FAST: COMPLETE})
        (fast,) = (member for member in self.findings.members if member.name == FAST)
        done = [tuple(event.values) for event in fast.said("record")]
        for name in MEMBERS:
            self.assertIn((min(before.owners[name]), SLOW_BATCHES), done)
        returned = self.findings.returned
        self.assertEqual(sorted(map(len, returned.owners.values())), [2] * len(before.owners))
        self.assertEqual(returned.memberIds & before.memberIds, self.findings.stuck.memberIds)
