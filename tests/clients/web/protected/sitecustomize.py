"""
For other people's tests: Python imports this by itself where its directory is on the path, and every port of its
process and of those that this starts is protected from then on.
"""

from __future__ import annotations

import os
from functools import cache, wraps
from typing import Any

from twisted.internet.posixbase import PosixReactorBase
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.http import HTTPFactory

from admission import Admission
from admission.connection.wrapping import WrappedFactory
from admission.listening.services import protect

PORTS = os.environ["PROTECTED_PORTS"]
"""The file that has a line for each port that was protected."""


@cache
def admission() -> Admission:
    """One for all of them, which limits nobody that behaves."""
    return Admission(pool="bounded:64MiB", quota=["concurrency:limit=1000", "client-bytes:received=1000M:sent=1000M"])


def protected(factory: Any) -> Any:
    """What is to listen in place of it."""
    if isinstance(factory, (WrappedFactory, TLSMemoryBIOFactory)):
        # The second is made by listenSSL, of one that is protected.
        return factory
    isSite = isinstance(factory, HTTPFactory)
    with open(PORTS, "a", encoding="utf-8") as file:
        file.write("site\n" if isSite else "other\n")
    return protect(admission(), factory)


def patch(name: str) -> None:
    """Have a method that listens protect what it listens for."""
    own = getattr(PosixReactorBase, name)

    @wraps(own)
    def listen(self: Any, where: Any, factory: Any, *arguments: Any, **keywords: Any) -> Any:
        return own(self, where, protected(factory), *arguments, **keywords)

    setattr(PosixReactorBase, name, listen)


for each in ("listenTCP", "listenSSL", "listenUNIX"):
    patch(each)
