"""L{admission.offline.progress}"""

from __future__ import annotations

import re
from io import StringIO

from twisted.trial.unittest import SynchronousTestCase

from admission.offline.outputtables import AGGREGATE, REPLAY
from admission.offline.progress import Plan, StepBar


class PlanTests(SynchronousTestCase):
    """L{Plan}"""

    def test_costs(self) -> None:
        """More policies, pools and modes cost more; a step that is not planned costs nothing."""
        few, many = Plan.of([REPLAY], 1, 1, 1), Plan.of([REPLAY], 3, 2, 2)
        for line in ("replaying 2 policies in runs, closed loop", "replaying pools: 2 tasks"):
            self.assertGreater(many.costOf(line), few.costOf(line))
        self.assertEqual(few.costOf("client_minute"), 0.0)
        self.assertGreater(Plan.of([AGGREGATE]).costOf("client_minute"), 0.0)
        self.assertEqual(Plan.of([REPLAY], 0, 0).costOf("replaying pools: 2 tasks"), 0.0)


class BarTests(SynchronousTestCase):
    """L{StepBar}"""

    def setUp(self) -> None:
        self.written = StringIO()
        self.bar = StepBar(Plan({"one": 30.0, "two": 60.0, "replaying policies": 10.0}), self.written)
        self.addCleanup(self.bar.close)

    def percent(self) -> int:
        """What is shown last."""
        return int(re.findall(r"([0-9]+)%", self.written.getvalue())[-1])

    def test_steps(self) -> None:
        """A step counts when the next one begins; what was not planned makes it all longer."""
        self.bar.begin("starting Spark")
        self.bar.begin("one")
        self.assertEqual(self.percent(), 0)
        self.bar.begin("two")
        self.assertEqual(self.percent(), 30)
        self.bar.begin("replaying 3 policies in runs, closed loop")
        self.assertEqual(self.percent(), 90)
        self.bar.begin("trying --from 2026-03-01")
        self.assertEqual(self.percent(), 91)
        self.bar.begin("replay_summary")
        self.assertEqual(self.percent(), 100)
        self.assertIn("left", self.written.getvalue())

    def test_tasks(self) -> None:
        """Within a step tasks count, never backwards, and those of a stage that is gone are done."""
        self.bar.begin("one")
        self.bar.begin("two")
        for tasks, percent in (
            ({1: (0, 4)}, 30),
            ({1: (2, 4)}, 60),
            ({2: (0, 4)}, 60),
            ({2: (4, 4)}, 90),
            ({3: (0, 100)}, 90),
        ):
            self.bar.look(tasks, running=1)
            self.assertEqual(self.percent(), percent, tasks)

    def test_nobody(self) -> None:
        """Where a cluster gives no cores to run a task, that is said; with the first task it is not any more."""
        self.bar.begin("one")
        for _ in range(60):
            self.bar.look({1: (0, 4)}, running=0)
        self.assertIn("one: waiting, Spark has nobody to do it", self.written.getvalue())
        self.written.truncate(0)
        self.bar.look({1: (0, 4)}, running=1)
        self.assertNotIn("waiting", self.written.getvalue())
