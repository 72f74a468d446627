"""
Run the tests under trial and compare each verdict with the report of pytest.

    python .ci/parity.py build/fast.xml build/pytest.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

from twisted.trial.reporter import TreeReporter
from twisted.trial.runner import TestLoader, TrialRunner

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
        # With a group of tests, its name comes after the test's.
        name = str(case.get("name")).partition("@")[0]
        verdicts[f"{case.get('classname')}.{name}"] = verdict
    return verdicts


def trialVerdicts(names: list[str]) -> dict[str, str]:
    """
    Run the tests under trial.
    """
    runner = TrialRunner(VerdictReporter)
    result: Any = runner.run(TestLoader().loadByNames(names, recurse=True))
    return dict(result.verdicts)


def main(paths: Sequence[str]) -> int:
    """
    Compare, and print every difference.

    @return: the exit status: 1 if they differ or trial failed.
    """
    expected = {name: verdict for path in paths for name, verdict in pytestVerdicts(path).items()}
    # Not the attacks and the faults, which are no part of what pytest has reported.
    parts = ("contracts", "fuzz", "unit", "sockets", "clients", "simulation", "offline", "spark", "system")
    actual = trialVerdicts([f"tests.{part}" for part in parts])
    different = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
    for name in different:
        print(f"{name}: pytest {expected.get(name, 'did not run it')}, trial {actual.get(name, 'did not run it')}")
    failed = sorted(name for name, verdict in actual.items() if verdict == "failed")
    print(f"pytest ran {len(expected)} tests, trial {len(actual)}: {len(different)} differ, {len(failed)} failed")
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
