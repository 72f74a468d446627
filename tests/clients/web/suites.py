"""
The tests that Twisted, Klein and treq bring of their own, plain and with every port protected::

    python -m tests.clients.web.suites

What Twisted's tests need besides is installed for them, into a directory that is removed.  Those of treq ask a server
that C{httpbin} is, and fail both times where that is not installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from tests.kit.checkout import ROOT

SUITES = ("twisted.web.test", "klein.test", "treq.test")

NEEDED = ("PyHamcrest", "httpx")
"""Without these, Twisted's C{test_http} and C{test_http2} cannot be imported."""

PATIENCE_SECONDS = 300.0

_PROTECTED = Path(__file__).parent / "protected"

_OUTCOME = re.compile(r"\[(FAIL|ERROR|SKIPPED|TODO)\]$")
_TEST = re.compile(r"[a-z]\w*(\.\w+){2,}$")
_COUNT = re.compile(r"Ran (\d+) tests")


@frozen
class Run:
    """
    @ivar tests: how many there were.
    @ivar others: by test that did not pass, what became of it.
    @ivar ports: how many were protected, by what they were of.
    """

    tests: int
    others: Mapping[str, str]
    ports: Mapping[str, int]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(Counter(self.others.values()).items()))
        ports = ", ".join(f"{count} ports of {name}s" for name, count in sorted(self.ports.items()))
        return f"{self.tests} tests; {counts or 'all passed'}; {ports or 'no port protected'}"


@contextmanager
def installed() -> Iterator[Path]:
    """
    What the tests need besides, as long as this lasts.

    @return: the directory where it is.
    @raise subprocess.CalledProcessError: if it cannot be had.
    """
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, f"--target={directory}", *NEEDED], check=True)
        yield Path(directory)


def run(suite: str, isProtected: bool, packages: Path, python: str | Path = sys.executable) -> Run:
    """
    Run the tests of a package.

    @param packages: see L{installed}.
    @param python: that of the environment where the package is.
    @raise AssertionError: if they do not come to an end.
    """
    with tempfile.TemporaryDirectory() as directory:
        ports = Path(directory, "ports")
        ports.touch()
        paths = [str(_PROTECTED)] * isProtected + [str(ROOT), os.environ.get("PYTHONPATH", ""), str(packages)]
        ended = subprocess.run(
            [python, "-m", "twisted.trial", f"--temp-directory={directory}/trial", suite],
            env={
                **os.environ,
                # Where they find the commands of its environment.
                "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "PROTECTED_PORTS": str(ports),
            },
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        count = _COUNT.search(ended.stdout)
        assert count is not None, ended.stdout
        return Run(int(count[1]), dict(_others(ended.stdout)), Counter(ports.read_text("utf-8").split()))


def differences(plain: Run, protected: Run) -> list[str]:
    """The tests of which something else became, in words."""
    tests = sorted({*plain.others, *protected.others})
    found = [(each, plain.others.get(each, "passed"), protected.others.get(each, "passed")) for each in tests]
    return [f"{test}: {before}, protected: {after}" for test, before, after in found if before != after]


def _others(output: str) -> Iterator[tuple[str, str]]:
    """The tests that the end of trial's output names, below what became of them."""
    outcome = None
    for line in output.partition("\n=====")[2].splitlines():
        isOutcome = _OUTCOME.match(line)
        if isOutcome is not None:
            outcome = isOutcome[1].lower()
        elif outcome is not None and _TEST.match(line):
            yield line, outcome


if __name__ == "__main__":
    with installed() as packages:
        for name in SUITES:
            runs = run(name, False, packages), run(name, True, packages)
            print(f"{name}\n  plain: {runs[0]}\n  protected: {runs[1]}")
            for difference in differences(*runs):
                print(f"  {difference}")
