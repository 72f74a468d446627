"""
Check that trial and pytest agree: on the verdict of each test that needs nothing, elsewhere on which tests there are.

    python .ci/parity.py build/pytest.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any
from unittest import TestSuite

from twisted.trial.reporter import TreeReporter
from twisted.trial.runner import TestLoader, TrialRunner

RUN = ("contracts", "unit")
"""Folders of which trial runs the tests; they need nothing, so that what differs would be the runner."""

COLLECTED = ("clients", "fuzz", "installation", "offline", "simulation", "sockets", "spark", "system")
"""Folders of which trial only collects the tests."""

# What trial calls a test, in pytest's words.
_VERDICTS = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "failed",
    "addSkip": "skipped",
    "addExpectedFailure": "skipped",
    "addUnexpectedSuccess": "failed",
}


class VerdictReporter(TreeReporter):
    """
    Shows what trial shows and remembers the verdicts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verdicts: dict[str, str] = {}


def _remembering(name: str, verdict: str) -> Any:
    def add(self: VerdictReporter, test: Any, *args: Any, **kwargs: Any) -> None:
        # A test that fails may go on to report an error of its clean-up, but never a success.
        self.verdicts[test.id()] = verdict
        getattr(TreeReporter, name)(self, test, *args, **kwargs)

    return add


for _name, _verdict in _VERDICTS.items():
    setattr(VerdictReporter, _name, _remembering(_name, _verdict))


def pytestVerdicts(path: str) -> dict[str, str]:
    """
    Read the verdicts from a report in JUnit's format.
    """
    verdicts = {}
    for case in ElementTree.parse(path).iter("testcase"):
        outcomes = {child.tag for child in case}
        verdict = "failed" if outcomes & {"failure", "error"} else "skipped" if "skipped" in outcomes else "passed"
        verdicts[f"{case.get('classname')}.{case.get('name')}"] = verdict
    return verdicts


def load(folders: tuple[str, ...]) -> Any:
    """
    The tests of some folders, as trial finds them.
    """
    return TestLoader().loadByNames([f"tests.{folder}" for folder in folders], recurse=True)


def names(suite: Any) -> Iterator[str]:
    """
    The names of the tests in a suite.
    """
    for each in suite:
        if isinstance(each, TestSuite):
            yield from names(each)
        else:
            yield each.id()


def main(path: str) -> int:
    """
    Compare, and print every difference.

    @return: the exit status: 1 if they differ or trial failed.
    """
    expected = pytestVerdicts(path)
    result: Any = TrialRunner(VerdictReporter).run(load(RUN))
    actual = dict(result.verdicts)
    collected = set(names(load(COLLECTED)))
    different = sorted(
        [
            f"{name}: pytest {expected.get(name, 'did not run it')}, trial {actual.get(name, 'did not run it')}"
            for name in expected.keys() | actual.keys()
            if name not in collected and expected.get(name) != actual.get(name)
        ]
        + [f"{name}: trial finds it and pytest does not" for name in collected - expected.keys()]
    )
    for line in different:
        print(line)
    failed = sum(verdict == "failed" for verdict in actual.values())
    print(f"trial ran {len(actual)} tests and found {len(collected)} others: {len(different)} differ, {failed} failed")
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
