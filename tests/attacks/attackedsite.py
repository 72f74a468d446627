"""
A site of twisted.web that is attacked, protected or as it is.

C{python -m tests.attacks.attackedsite HOW POOL [QUOTA ...]}, where HOW is C{protected} or C{plain}, prints the ports
where it speaks HTTP, HTTP/2 by TLS, and of its page, and ends with its standard input.  It logs to its standard error.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor, stdio
from twisted.internet.protocol import Protocol
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.web.resource import Resource
from twisted.web.server import Site

from admission import Admission
from admission.web import protectSite
from tests.kit.certificates import Authority

LARGE_BYTES = 16 << 20
MIDDLE_BYTES = 8 << 20
MAX_BODY_BYTES = 64 << 20


class _Pages(Resource):
    isLeaf = True

    def render(self, request: Any) -> bytes:
        """Answer with as much as the path asks for, or with how much came."""
        if request.path == b"/large":
            return b"x" * LARGE_BYTES
        if request.path == b"/middle":
            return b"x" * MIDDLE_BYTES
        request.content.seek(0, 2)
        return b"%d" % request.content.tell()


class _UntilTheEnd(Protocol):
    def connectionLost(self, reason: object = None) -> None:
        if reactor.running:
            reactor.stop()


def main(how: str, poolBytes: int, *quota: str) -> None:
    """Serve."""
    warnings = LogLevelFilterPredicate(LogLevel.warn)
    observer = FilteringLogObserver(textFileLogObserver(sys.stderr), [warnings])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    factory: Any = Site(_Pages())
    admission = Admission(pool=f"bounded:{poolBytes}", quota=quota)
    if how == "protected":
        factory = protectSite(admission, factory, maxBodyBytes=MAX_BODY_BYTES)
    listen = {"interface": "127.0.0.1", "backlog": 1024}
    ports = [
        reactor.listenTCP(0, factory, **listen),
        reactor.listenSSL(0, factory, Authority().server().options(), **listen),
        reactor.listenTCP(0, admission.statusSite(), **listen),
    ]
    print(*(port.getHost().port for port in ports), flush=True)
    stdio.StandardIO(_UntilTheEnd())
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
