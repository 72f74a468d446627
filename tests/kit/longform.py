"""
Tests that take too long for every run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar
from unittest import skipUnless

_Test = TypeVar("_Test", bound=Callable[..., object])

LONG = "ADMISSION_LONG"


def longForm(test: _Test) -> _Test:
    """
    Run a test, or all those of a class, only when the long form is asked for, as C{make test-long} does.
    """
    return skipUnless(os.environ.get(LONG), "takes long: make test-long runs it")(test)
