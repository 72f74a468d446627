"""Tests that take too long for every run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar
from unittest import skipUnless

_Test = TypeVar("_Test", bound=Callable[..., object])

LONG = "ADMISSION_LONG"


def isLongForm() -> bool:
    """Whether the long form is asked for."""
    return bool(os.environ.get(LONG))


def longForm(test: _Test) -> _Test:
    """Run a test, or all those of a class, only when the long form is asked for, as C{make test-long} does."""
    return skipUnless(isLongForm(), "takes long: make test-long runs it")(test)
