"""Makes pytest treat the tests as trial does."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
from twisted.trial import util

_HOME = os.getcwd()
_SHARING = {
    "spark": ("tests/spark/",),
    "kafka": ("tests/clients/gateway/", "tests/system/test_demo_gateway.py"),
    "suites": ("tests/clients/suites/",),
}
"""What shares something that takes long to start: a session of Spark, a cluster of Kafka; or to fetch, clients."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """
    With C{--dist loadfile} what is shared is one worker's.  The tests of any other file stay together, too, since some
    share an experiment that takes half a minute.
    """
    from xdist.scheduler import LoadFileScheduling

    class SharingTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            own: str = super()._split_scope(nodeid)
            return next((shared for shared, places in _SHARING.items() if nodeid.startswith(places)), own)

    return SharingTogether(config, log) if config.getoption("dist") == "loadfile" else None


# Trial's own two minutes pass where a machine is ten times slower than others.
util.DEFAULT_TIMEOUT_DURATION *= 5


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
