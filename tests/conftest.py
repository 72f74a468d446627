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
    config = session.config
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        # It has workers do it, which begin where it is.
        return
    directory = tempfile.TemporaryDirectory(prefix="admission-tests-")
    session.config.add_cleanup(directory.cleanup)
    session.config.add_cleanup(lambda: os.chdir(_HOME))
    os.chdir(directory.name)
