"""
A line server of the ordinary kind, with a quota for everybody who has a name.

A client that says C{I am NAME} may then send 2000 bytes a second, from however many connections; until then the limit
is for its address.  Everything else is repeated in capitals.  The protocol knows nothing of all that.

Run it:  twistd -n --python=examples/line_server.py
"""

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.protocols.basic import LineReceiver

from admission import wrapFactory


class Shouting(LineReceiver):
    """
    Repeats each line, louder.

    @ivar name: who is there, once they have said so.
    """

    name = None

    def lineReceived(self, line):
        """
        Take a name, or repeat.
        """
        if line.startswith(b"I am "):
            self.name = line.removeprefix(b"I am ").decode("ascii", "replace")
            self.sendLine(b"hello " + line.removeprefix(b"I am "))
        else:
            self.sendLine(line.upper())


def nameOf(protocol):
    """
    The principal and the client id whose limits hold.
    """
    return None if protocol.name is None else (protocol.name, protocol.name)


factory = wrapFactory(
    Factory.forProtocol(Shouting),
    pool="bounded:16MiB",
    quota=["client-bytes:received=2000:algorithm=bucket", "connections:perSecond=20"],
    nameOf=nameOf,
)

application = Application("shouting")
service = StreamServerEndpointService(serverFromString(reactor, "tcp:9097:interface=127.0.0.1"), factory)
service.setServiceParent(application)
