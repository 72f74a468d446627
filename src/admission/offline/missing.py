# -*- test-case-name: tests.offline.test_missing -*-
"""
How much of a recording is missing, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from .report.words import count, plural, share, shown

MAX_MISSING_SHARE = 0.01
"""If a larger share of the events is missing, no answer is trusted."""

MAX_PROBLEMS = 100
"""How many unreadable files C{evaluation.json} lists."""

MAX_NAMED = 5
"""How many of them a sentence names."""


@frozen
class Missing:
    """
    What is missing, of the time and the runs that were selected.

    @ivar unreadableFiles: how many files cannot be read.
    @ivar problems: the path of each and its problem, of the first L{MAX_PROBLEMS}.
    @ivar unreadableShare: about which share of the events is in these files, judged by their size.
    @ivar events: how many events could be read; L{None} if they were not counted.
    @ivar missingEvents: how many events are missing by their numbers, which do not tell of the beginning and the end.
    @ivar droppedEvents: how many events the server dropped by its own count; L{None} if it did not record that.
    """

    unreadableFiles: int = 0
    problems: Sequence[tuple[str, str]] = ()
    unreadableShare: float = 0.0
    events: int | None = None
    missingEvents: int = 0
    droppedEvents: int | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Missing:
        """
        What C{evaluation.json} says.

        @param facts: its content, of which anything may be absent.
        """
        listed = [each for each in facts.get("problems") or () if isinstance(each, dict)]
        problems = [(str(each.get("path")), str(each.get("problem"))) for each in listed]
        return cls(
            max(facts.get("unreadableFiles") or 0, len(problems)),
            problems,
            facts.get("unreadableShare") or 0.0,
            facts.get("recordedEvents"),
            facts.get("missingEvents") or 0,
            facts.get("droppedEvents"),
        )

    @property
    def share(self) -> float:
        """
        Which share of the events is missing, at least.
        """
        numbered = self.missingEvents / (self.missingEvents + self.events) if self.events else 0.0
        return max(numbered, self.unreadableShare)

    @property
    def isTooMuch(self) -> bool:
        """
        Whether so much is missing that no answer can be trusted.
        """
        return self.share > MAX_MISSING_SHARE

    def inWords(self) -> str:
        """
        How much is missing, as a part of a sentence; empty if it is nothing.
        """
        if not self.share:
            return ""
        about = "about " if self.unreadableFiles else ""
        return f"{about}{share(self.share)} of the recorded events are missing"

    def causes(self) -> Iterator[str]:
        """
        Why, in sentences.
        """
        if self.unreadableFiles:
            listed = [f"{shown(path, 200)} ({shown(problem, 200)})" for path, problem in self.problems[:MAX_NAMED]]
            more = self.unreadableFiles - len(listed)
            rest = f"; and {count(more)} more" if more else ""
            yield f"{plural(self.unreadableFiles, 'file')} cannot be read: {'; '.join(listed)}{rest}."
        dropped = min(self.droppedEvents or 0, self.missingEvents)
        if dropped:
            yield f"The server dropped {plural(dropped, 'event')}, because it had no room to record them."
        others = self.missingEvents - dropped
        if others and not self.unreadableFiles:
            also = "" if self.droppedEvents is not None else ", or the server dropped them, which it did not record"
            yield f"{plural(others, 'event')} are in none of the files: some may have been removed{also}."
