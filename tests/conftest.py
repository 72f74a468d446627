"""Makes pytest treat the tests as trial does."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

_HOME = os.getcwd()
_TESTS = Path(__file__).parent

_TOGETHER = ("clients/gateway", "spark")
"""Folders whose tests share what takes seconds to start: a cluster, a Spark session."""


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have one worker run the tests of a folder, where several work and C{--dist loadgroup} is given."""
    for item in items:
        for folder in _TOGETHER:
            if item.path.is_relative_to(_TESTS / folder):
                item.add_marker(pytest.mark.xdist_group(folder.replace("/", "-")))
