# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
The option C{--auth}: L{twisted.cred.strcred}, with readable error messages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Any, TextIO

from twisted.cred.strcred import (
    AuthOptionMixin,
    InvalidAuthType,
    UnsupportedInterfaces,
    makeChecker,
)
from twisted.python.usage import Options, UsageError

from .checkers import SUPPORTED, makePortal, repaired

_DESCRIPTION = re.compile(r"(?:(?P<port>[0-9]+)=)?(?P<checker>(?P<type>[^:]*).*)", re.DOTALL)


class AuthOptions(AuthOptionMixin, Options):
    """
    Options that say who may log in; C{credCheckers} is a key once a checker is named.

    The rest of a description, after its first colon, may be a password, so no
    message repeats it.
    """

    supportedInterfaces = SUPPORTED

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checkers: dict[str, Any] = {}
        self._checkersByPort: dict[str | None, list[Any]] = {}

    @property
    def authOutput(self) -> TextIO:  # type: ignore[override]
        """
        Where help goes; Twisted would keep the stream that it saw when first imported.
        """
        return sys.stdout

    def opt_auth(self, description: str) -> None:
        """How clients log in, as [PORT=]TYPE[:ARGUMENTS]; see --help-auth.  May be given several times: those for a
        PORT are in place of those without one there.  [default: everybody]"""
        match = _DESCRIPTION.fullmatch(description)
        assert match is not None
        port, wanted, authType = match["port"], match["checker"], match["type"]
        try:
            checker = self._checkers.get(wanted)
            if checker is None:
                checker = self._checkers[wanted] = repaired(makeChecker(wanted))  # type: ignore[no-untyped-call]
                self.addChecker(checker)  # type: ignore[no-untyped-call]
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
        here = self._checkersByPort.setdefault(port, [])
        if checker not in here:
            here.append(checker)

    def checkersAt(self, port: str | None) -> list[Any]:
        """
        The checkers for clients that connect to C{port}; empty if no login is needed there.
        """
        return self._checkersByPort.get(port) or self._checkersByPort.get(None, [])

    def checkPorts(self, ports: Collection[str | None]) -> None:
        """
        @param ports: where the server listens.
        @raise UsageError: if C{--auth} names another port.
        """
        there = {port for port in ports if port is not None}
        for port in self._checkersByPort:
            if port is not None and port not in there:
                raise UsageError(
                    f"--auth {port}=...: nothing listens on port {port} (--listen); the ports are "
                    + (", ".join(sorted(there, key=int)) or "without numbers")
                )
