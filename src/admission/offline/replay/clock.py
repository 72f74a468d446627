# -*- test-case-name: tests.test_replay_candidates -*-
"""
The time of a trace.
"""

from __future__ import annotations

from twisted.internet.task import Clock


class VirtualClock(Clock):
    """
    A clock that is set to a moment, and runs what is due on the way there: in
    order, each at its own time, what is set by a timer included.

    Whoever knows that nothing is due may set C{rightNow} instead.
    """

    def moveTo(self, seconds: float) -> None:
        """
        Go to C{seconds}; never back.
        """
        calls = self.calls
        while calls:
            call = min(calls, key=lambda each: each.getTime())
            if call.getTime() > seconds:
                break
            calls.remove(call)
            self.rightNow = max(self.rightNow, call.getTime())
            call.called = 1
            call.func(*call.args, **call.kw)
        self.rightNow = max(self.rightNow, seconds)
