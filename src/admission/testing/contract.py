# -*- test-case-name: tests.contracts.test_contract -*-
"""
The base of the contracts of policies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase as _TestCase
else:
    _TestCase = object


class Contract(_TestCase):
    """
    Tests of a contract.  A test case inherits them before
    L{twisted.trial.unittest.SynchronousTestCase}, and supplies the object to test.

    The docstring of each test is a rule, which is printed when the rule is broken,
    whatever runs the tests: a failure has it in its message, and any other
    exception in a note.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and test.__doc__:
                setattr(cls, name, _tellingItsRule(test))


def _tellingItsRule(test: Callable[[Any], None]) -> Callable[[Any], None]:
    rule = f"{test.__qualname__}: {' '.join(str(test.__doc__).split())}"

    @wraps(test)
    def tell(self: Any) -> None:
        try:
            test(self)
        except AssertionError as error:
            error.args = (f"{error}\n{rule}",)
            raise
        except Exception as error:
            error.add_note(rule)
            raise

    return tell
