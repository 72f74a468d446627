"""Makes pytest treat the tests as trial does."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest

_HOME = os.getcwd()
_JAVA = ("tests/spark/", "tests/clients/gateway/", "tests/clients/suites/", "tests/system/test_demo_gateway.py")
"""
What works in processes of Java.  One worker runs all of it, so that a session of Spark and a cluster of Kafka are
started once, and share the machine with tests in Python rather than with each other.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """
    With C{--dist loadfile} one worker begins with all that needs Java.  The tests of any other file stay together, too,
    since some share an experiment that takes half a minute.
    """
    from xdist.scheduler import LoadFileScheduling

    class JavaTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "java" if nodeid.startswith(_JAVA) else super()._split_scope(nodeid)

    return JavaTogether(config, log) if config.getoption("dist") == "loadfile" else None


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
