"""
A length-prefixed server that never holds more than it was told to.

Each request is a 32-bit big-endian length and a body; the answer is the
body's CRC-32, framed likewise.  However many clients send however much, the
requests in memory stay within 8 MiB and one request more.

Run it:  twistd -n --python=examples/checksum_server.py
"""

import zlib

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString

from admission import (
    AdmittedFactory,
    AdmittedProtocol,
    HangUpWatch,
    IMemoryPoolFactory,
    MonotonicClock,
    PolicyContext,
    ServerRequest,
    buildGate,
    buildPolicy,
    wallSeconds,
)


class ChecksumProtocol(AdmittedProtocol):
    """
    Answers each request with its checksum.
    """

    def requestReceived(self, request: ServerRequest) -> bytes:
        """
        The body is whole, and its memory ours until we answer.
        """
        return zlib.crc32(request.frame).to_bytes(4, "big")


clock = MonotonicClock(reactor)
context = PolicyContext(clock, wallSeconds)
pool = buildPolicy(IMemoryPoolFactory, "bounded:8MiB:max=1MiB", context)
factory = AdmittedFactory(ChecksumProtocol, buildGate(pool, context), clock, HangUpWatch(reactor))
factory.start()

application = Application("checksum")
service = StreamServerEndpointService(serverFromString(reactor, "tcp:9099:interface=127.0.0.1"), factory)
service.setServiceParent(application)
