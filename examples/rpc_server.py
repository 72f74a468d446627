"""
A length-prefixed server whose requests may have to wait.

Requests and answers are a 32-bit big-endian length and a body of words:

  * C{set NAME VALUE} is answered C{done},
  * C{get NAME SECONDS} is answered with the value, as soon as there is one, or
    C{none} when the time has passed.

Who waits holds no memory of the request and no place among those that are
worked on, and a client that hangs up waits no longer.

Run it:  twistd -n --python=examples/rpc_server.py
"""

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, TimeoutError
from twisted.internet.endpoints import serverFromString

from admission import (
    AdmittedFactory,
    AdmittedProtocol,
    HangUpWatch,
    IMemoryPoolFactory,
    IPurgatoryFactory,
    MonotonicClock,
    PolicyContext,
    buildGate,
    buildPolicy,
    waitFor,
    wallSeconds,
)

LONGEST_WAIT_SECONDS = 60.0

values = {}
clock = MonotonicClock(reactor)
context = PolicyContext(clock, wallSeconds)
purgatory = buildPolicy(IPurgatoryFactory, "wheel", context)


class RPCProtocol(AdmittedProtocol):
    """
    One client.
    """

    waiting = None

    def requestReceived(self, request):
        """
        The body is whole, and its memory ours until we answer or park.
        """
        match bytes(request.frame).split(b" ", 2):
            case [b"set", name, value]:
                values[name] = value
                self.answer(b"done")
                purgatory.checkAndComplete(name)
            case [b"get", name, seconds] if seconds.isdigit():
                self.park()
                self.wait(name, min(float(seconds), LONGEST_WAIT_SECONDS))
            case _:
                self.answer(b"say set NAME VALUE or get NAME SECONDS")

    def wait(self, name, seconds):
        """
        Answer when there is a value of that name.
        """
        self.waiting = waitFor(purgatory, [name], lambda: name in values, seconds)
        self.waiting.addCallbacks(lambda _: self.answer(values[name]), self.gaveUp)

    def gaveUp(self, failure):
        """
        There was none in time; or nobody wants to know, and the next request
        is next.
        """
        if failure.trap(TimeoutError, CancelledError) is TimeoutError:
            self.answer(b"none")
        else:
            self.finish()

    def answer(self, body):
        """
        Send an answer, and go on to the next request.
        """
        self.respond([len(body).to_bytes(4, "big"), body])

    def peerGone(self):
        """
        Nobody waits for the answer any more.
        """
        if self.waiting is not None:
            self.waiting.cancel()

    def connectionLost(self, reason):
        """
        The same.
        """
        super().connectionLost(reason)
        self.peerGone()


pool = buildPolicy(IMemoryPoolFactory, "bounded:8MiB:max=1MiB", context)
factory = AdmittedFactory(RPCProtocol, buildGate(pool, context), clock, HangUpWatch(reactor))
factory.start()

application = Application("rpc")
service = StreamServerEndpointService(serverFromString(reactor, "tcp:9096:interface=127.0.0.1"), factory)
service.setServiceParent(application)
