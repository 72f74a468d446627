"""
A site as people have them, of Klein, static files and WSGI, plain or protected: for clients that are tested with it.

Its port is said, and that of TLS, where HTTP/2 is spoken as well; so is whatever goes wrong.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from klein import Klein
from twisted.internet import reactor as installedReactor
from twisted.internet.defer import Deferred
from twisted.internet.ssl import PrivateCertificate
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from twisted.web.static import File
from twisted.web.wsgi import WSGIResource

from admission import Admission, QuotaEntity
from admission.interfaces import Refusal
from admission.web import byHeader, byRoutes, digestOf, protectSite
from tests.kit.certificates import Identity
from tests.kit.lines import say

reactor: Any = installedReactor

KEY = "X-Api-Key"
PATIENT = "X-Patient"
"""A client that sends this header waits instead of being refused."""

MAX_BODY_BYTES = 32 << 20
MOST_AT_ONCE = 20
"""How many requests of one key are worked on at a time, if the site is protected."""


def _told(body: IO[bytes]) -> str:
    digest, sizeBytes = sha256(), 0
    while data := body.read(1 << 16):
        digest.update(data)
        sizeBytes += len(data)
    return f"{sizeBytes} {digest.hexdigest()}"


class Application:
    """What is served under C{/app}."""

    app = Klein()

    def __init__(self) -> None:
        self._polls: list[Any] = []
        self._lostCount = 0

    @app.route("/hello/<name>")
    def hello(self, request: Any, name: str) -> str:
        """A short answer, with a cookie."""
        request.addCookie(b"visited", b"yes")
        return f"{request.method.decode()} hello {name}, {request.getHeader('user') or 'nobody'}"

    @app.route("/form", methods=["POST"])
    def form(self, request: Any) -> str:
        """What twisted.web has made of a form."""
        return repr(sorted((name, [each[:50] for each in values]) for name, values in request.args.items()))

    @app.route("/upload", methods=["PUT", "POST"])
    def upload(self, request: Any) -> str:
        """How long the body was, and its digest."""
        return _told(request.content)

    @app.route("/pieces")
    async def pieces(self, request: Any) -> str:
        """An answer of unknown length."""
        for number in range(20):
            request.write(b"piece %d\n" % number * 100)
            await deferLater(reactor, 0)
        return "end"

    @app.route("/fails")
    def fails(self, request: Any) -> str:
        """What does not work."""
        request.setResponseCode(500)
        return "it fails"

    @app.route("/poll")
    def poll(self, request: Any) -> Any:
        """Answered when somebody publishes something."""
        answer: Deferred[bytes] = Deferred()
        self._polls.append(answer)
        request.notifyFinish().addErrback(self._lost, answer)
        return answer

    @app.route("/publish", methods=["POST"])
    def publish(self, request: Any) -> str:
        """Answer them all."""
        polls, self._polls = self._polls, []
        data = request.content.read()
        for each in polls:
            each.callback(data)
        return f"{len(polls)} were told"

    @app.route("/state")
    def state(self, request: Any) -> str:
        """How many poll, and how many have left while they did."""
        return json.dumps([len(self._polls), self._lostCount])

    def _lost(self, _: Any, answer: Deferred[bytes]) -> None:
        self._polls.remove(answer)
        self._lostCount += 1


def wsgi(environ: dict[str, Any], start: Any) -> list[bytes]:
    """What is served under C{/wsgi}."""
    start("201 Created", [("Content-Type", "text/plain"), ("X-Script", environ["SCRIPT_NAME"])])
    told = _told(environ["wsgi.input"])
    return [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {environ['QUERY_STRING']} ".encode(), told.encode()]


class Produced(Resource):
    """Writes what a client asks for as fast as it is taken."""

    isLeaf = True

    def render_GET(self, request: Any) -> Any:
        """C{/produced/BYTES}."""
        left = int(request.postpath[0])
        request.setHeader(b"Content-Length", b"%d" % left)

        class Producer:
            def resumeProducing(self) -> None:
                nonlocal left
                data = bytes(min(left, 1 << 16))
                left -= len(data)
                request.write(data)
                if not left:
                    request.unregisterProducer()
                    request.finish()

            def stopProducing(self) -> None:
                pass

        request.registerProducer(Producer(), False)
        return NOT_DONE_YET


def site(files: str) -> Site:
    """All of it."""
    root = Resource()
    root.putChild(b"app", Application().app.resource())
    root.putChild(b"static", File(files))
    root.putChild(b"wsgi", WSGIResource(reactor, reactor.getThreadPool(), wsgi))
    root.putChild(b"produced", Produced())
    return Site(root)


class Limits(Resource):
    """What operators do: C{GET /limits/KEY} says until when a client has to wait, and C{POST} sets a limit of it."""

    isLeaf = True

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        self._admission = admission

    def render_GET(self, request: Any) -> bytes:
        """In seconds of our clock; 0 if it does not wait."""
        now = self._admission.clock.seconds()
        owedSeconds = self._admission.debts.heldSeconds("", digestOf(request.postpath[0]), now)
        return json.dumps(now + owedSeconds if owedSeconds > 0 else 0.0).encode()

    def render_POST(self, request: Any) -> bytes:
        """A name and a number, or none to remove the limit."""
        name, value = json.loads(request.content.read())
        self._admission.setLimits(QuotaEntity(clientId=digestOf(request.postpath[0])), {name: value})
        return b""


def protected(plain: Site, pool: str = "bounded:64MiB", quota: Any = None, export: Any = (), **settings: Any) -> Any:
    """The same, protected."""
    admission = Admission(pool=pool, quota=quota or f"concurrency:limit={MOST_AT_ONCE}", export=export)
    plain.resource.putChild(b"limits", Limits(admission))
    own = {
        "kindOf": byRoutes("/app/upload", "/app/...", "/..."),
        "nameOf": byHeader(KEY),
        "refusalOf": lambda web: Refusal.DELAY if web.getHeader(PATIENT) else Refusal.ERROR,
    }
    return protectSite(admission, plain, **{**own, "maxBodyBytes": MAX_BODY_BYTES, **settings})


def _observe(event: LogEvent) -> None:
    if event["log_level"] >= LogLevel.error:
        failure = event.get("log_failure")
        say("trouble", formatEvent(event) + (failure.getTraceback() if failure else ""))


def main() -> None:
    """Serve what the argument says, until standard input ends."""
    asked = json.loads(sys.argv[1])
    globalLogBeginner.beginLoggingTo([_observe], redirectStandardIO=False)
    factory: Any = site(asked["files"])
    if asked["settings"] is not None:
        factory = protected(factory, **asked["settings"])
    identity = Identity(Path(asked["certificate"]).read_bytes(), Path(asked["key"]).read_bytes())
    own = PrivateCertificate.loadPEM(identity.key + identity.certificate)
    ports = [reactor.listenTCP(0, factory, interface="127.0.0.1")]
    ports.append(reactor.listenSSL(0, factory, own.options(), interface="127.0.0.1"))
    reactor.callWhenRunning(say, "serving", *(each.getHost().port for each in ports))
    reactor.run()


if __name__ == "__main__":
    main()
