"""
A site that stays up though some of its visitors do not mean well.

A client that asks for the large page and does not read it is cut off after 20 seconds, and what was meant for it is
held against a pool of 16 MiB meanwhile.  A client that floods the site with requests has a hundred kilobytes of them a
second read, and no more.  Nobody has more than 20 connections.

Run it:  twistd -n --python=examples/protected_site.py
"""

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

from admission import ConnectionLimits, wrapFactory
from admission.clock import MonotonicClock
from admission.metrics import SensorRegistry

clock = MonotonicClock(reactor)
sensors = SensorRegistry(clock.seconds)


class Numbers(Resource):
    """
    How the site is, in numbers.
    """

    isLeaf = True

    def render_GET(self, request):
        """
        One sensor on each line.
        """
        request.setHeader(b"content-type", b"text/plain; charset=utf-8")
        return "".join(f"{name} {value:g}\n" for name, value in sensors).encode()


root = Resource()
root.putChild(b"", Data(b"<p>Good day.</p>", "text/html"))
root.putChild(b"large", Data(bytes(8_000_000), "application/octet-stream"))
root.putChild(b"numbers", Numbers())

factory = wrapFactory(
    Site(root),
    pool="bounded:16MiB",
    quota="client-bytes:received=100k:algorithm=bucket",
    limits=ConnectionLimits(maxConnectionsPerAddress=20, sendSeconds=20),
    clock=clock,
)
factory.addSensors(sensors)

application = Application("site")
service = StreamServerEndpointService(serverFromString(reactor, "tcp:9098:interface=127.0.0.1"), factory)
service.setServiceParent(application)
