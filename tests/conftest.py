"""
Makes pytest treat the tests as trial does.
"""

from __future__ import annotations

import os
import tempfile

import pytest

_HOME = os.getcwd()


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
