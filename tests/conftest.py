"""Makes pytest treat the tests as trial does."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

_HOME = os.getcwd()
_TESTS = Path(__file__).parent

_JAVA = ("spark", "clients/gateway", "clients/suites", "system/test_demo_gateway.py")
"""
What works in processes of Java.  One worker runs all of it, so that a session of Spark and a cluster of Kafka are
started once, and share the machine with tests in Python rather than with each other.
"""


def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Run in a directory of its own: C{TestCase.mktemp} makes its paths relative
    to it, and would leave them in the checkout.
    """
    if session.config.getoption("numprocesses", None):
        # The workers do that, each for itself.
        return
    directory = tempfile.TemporaryDirectory(prefix="admission-tests-")
    session.config.add_cleanup(directory.cleanup)
    session.config.add_cleanup(lambda: os.chdir(_HOME))
    os.chdir(directory.name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With C{--dist loadgroup} one worker runs what needs Java, which begins first since it takes longest."""
    inJava = [item for item in items if any(item.path.is_relative_to(_TESTS / place) for place in _JAVA)]
    for item in inJava:
        item.add_marker(pytest.mark.xdist_group("java"))
    # tryfirst: the plug-in that distributes them reads the marks in this same hook.
    first = set(inJava)
    items.sort(key=lambda item: item not in first)
