# -*- test-case-name: tests.installation.test_light_installation -*-
"""
Our commands of C{twistd}.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import ServiceMaker
from twisted.python.usage import UsageError

from ..extras import explaining


class TwistdCommand(ServiceMaker):
    """
    A command whose modules are imported when it is used, and that then says which extra is missing.
    """

    @property
    def options(self) -> Any:
        with explaining(self.tapname, UsageError):
            return super().options
