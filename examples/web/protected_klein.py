"""
A small shop on Klein that stays up though its visitors ask for too much.

  * C{GET /items} answers at once.
  * C{GET /reports/NAME} takes half a second.  Two reports are made at a time, and ten requests may wait for their turn;
    others are told to come again.
  * C{PUT /pictures/NAME} takes up to 32 MiB, of which no more than one is in memory; no other request may have a body
    of more than 64 KiB.
  * C{GET /health} is always answered.

A client is known by its header C{X-Api-Key}, or else by its address.  It has four requests in progress, and a megabyte
of bodies and answers a second.  The page on port 9094 shows who is refused.

    $ curl -i -H 'X-Api-Key: alice' http://127.0.0.1:9095/reports/sales

Run it:  twistd -n --python=examples/web/protected_klein.py
"""

from hashlib import sha256

from klein import Klein
from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application, IServiceCollection
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import deferLater
from twisted.web.server import Site

from admission import Admission
from admission.interfaces import Refusal
from admission.web import byHeader, byKleinRoutes, protectSite

app = Klein()


@app.route("/items", methods=["GET"])
def items(request):
    """
    What there is.
    """
    return "apples\npears\n"


@app.route("/reports/<name>", methods=["GET"])
async def report(request, name):
    """
    What a database takes long for.
    """
    await deferLater(reactor, 0.5)
    return f"{name}: all is well\n"


@app.route("/pictures/<name>", methods=["PUT"])
def picture(request, name):
    """
    The body is a file, wherever it is kept.
    """
    digest = sha256()
    while data := request.content.read(1 << 16):
        digest.update(data)
    return f"{name} {digest.hexdigest()}\n"


@app.route("/health", methods=["GET"])
def health(request):
    """
    For a load balancer.
    """
    return "well\n"


admission = Admission(
    pool="bounded:64MiB",
    quota=[
        "client-bytes:received=1M:sent=1M",
        "concurrency:limit=4",
        "concurrency:total=2:queue=10:wait=2s:kinds=GET /reports/<name>",
    ],
)
site = protectSite(
    admission,
    Site(app.resource()),
    kindOf=byKleinRoutes(app),
    nameOf=byHeader("X-Api-Key"),
    refusalOf=lambda request: Refusal.NEVER if request.path == b"/health" else Refusal.ERROR,
    maxBodyBytes={"PUT /pictures/<name>": 32 << 20, "other": 64 << 10},
)

application = Application("shop")
for description, factory in (
    ("tcp:9095:interface=127.0.0.1", site),
    ("tcp:9094:interface=127.0.0.1", admission.statusSite()),
):
    service = StreamServerEndpointService(serverFromString(reactor, description), factory)
    service.setServiceParent(IServiceCollection(application))
