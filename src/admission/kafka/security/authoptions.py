# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
The option C{--auth}: L{twisted.cred.strcred}, with readable error messages.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from twisted.cred.strcred import (
    AuthOptionMixin,
    InvalidAuthType,
    UnsupportedInterfaces,
    makeChecker,
)
from twisted.python.usage import Options, UsageError

from .checkers import SUPPORTED, makePortal, repaired


class AuthOptions(AuthOptionMixin, Options):
    """
    Options that say who may log in; C{credCheckers} is a key once a checker is named.

    The rest of a description, after its first colon, may be a password, so no
    message repeats it.
    """

    supportedInterfaces = SUPPORTED

    @property
    def authOutput(self) -> TextIO:  # type: ignore[override]
        """
        Where help goes; Twisted would keep the stream that it saw when first imported.
        """
        return sys.stdout

    def opt_auth(self, description: str) -> None:
        """Who may log in, as TYPE[:ARGUMENTS]; see --help-auth.  May be given several times.  [default: everybody]"""
        authType = description.partition(":")[0]
        try:
            self.addChecker(repaired(makeChecker(description)))  # type: ignore[no-untyped-call]
            makePortal(self["credCheckers"])
        except InvalidAuthType as error:
            installed = sorted({each.authType for each in self._checkerFactoriesForOptHelpAuth()})  # type: ignore[no-untyped-call]
            raise UsageError(f"--auth: no checker is called {authType!r}; installed: {', '.join(installed)}") from error
        except UnsupportedInterfaces as error:
            raise UsageError(
                f"--auth {authType}: it checks what clients of the broker cannot present; they have passwords and SCRAM"
            ) from error
        except Exception as error:
            # Each checker has its own way to refuse its arguments.
            raise UsageError(f"--auth {authType}: {error}") from error

    def checkers(self) -> list[Any]:
        """
        The checkers that were named; empty if no login is needed.
        """
        return list(self.get("credCheckers", ()))
