"""
A length-prefixed server whose requests may have to wait, with quotas, a page and a recording.

Requests and answers are a 32-bit big-endian length and a body of words:

  * C{set NAME VALUE} is answered C{done},
  * C{get NAME SECONDS} is answered with the value, as soon as there is one, or
    C{none} when the time has passed.

A request that waits holds no memory and no place among those that are worked on, and does not count as in progress; it
waits no longer when its client hangs up.  A client has 64 kB/s, and is told when twenty requests of all are in
progress.

Run it:  twistd -n --python=examples/rpc_server.py
"""

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application, IServiceCollection
from twisted.internet import reactor
from twisted.internet.defer import TimeoutError
from twisted.internet.endpoints import serverFromString

from admission import Admission, AdmittedProtocol
from admission.interfaces import Traits
from admission.operations import waitFor

LONGEST_WAIT_SECONDS = 60.0

values = {}
admission = Admission(pool="bounded:8MiB:max=1MiB", quota=["client-bytes:received=64k", "concurrency:total=20"])


class RPCProtocol(AdmittedProtocol):
    """
    One client.
    """

    def identify(self, request):
        """
        The policies want to know what it is.
        """
        if bytes(request.frame).startswith(b"get "):
            request.kind, request.traits = "get", Traits(waitsForOthers=True)
        else:
            request.kind = "set"

    async def requestReceived(self, request):
        """
        The body is whole, and its memory ours until we wait.
        """
        match bytes(request.frame).split(b" ", 2):
            case [b"set", name, value]:
                values[name] = value
                admission.purgatory.checkAndComplete(name)
                return b"done"
            case [b"get", name, seconds] if seconds.isdigit():
                waitSeconds = min(float(seconds), LONGEST_WAIT_SECONDS)
                try:
                    await waitFor(admission.purgatory, [name], lambda: name in values, waitSeconds)
                except TimeoutError:
                    return b"none"
                return values[name]
        return b"say set NAME VALUE or get NAME SECONDS"

    def requestRefused(self, request, decision):
        """
        Too many requests are in progress.
        """
        return b"later: " + decision.reason.encode()


application = Application("rpc")
for description, factory in (
    ("tcp:9096:interface=127.0.0.1", admission.frames(RPCProtocol)),
    ("tcp:9097:interface=127.0.0.1", admission.statusSite()),
):
    service = StreamServerEndpointService(serverFromString(reactor, description), factory)
    service.setServiceParent(IServiceCollection(application))
