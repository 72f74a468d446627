"""
A protected site that shows everything that a site can show; C{twistd --python} runs it.

The environment says where: C{SITE_PORT} and C{STATUS_PORT}.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application, IServiceCollection
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from admission import Admission
from admission.web import byHeader, byRoutes, protectSite
from tests.kit.brokerprocess import endpoint

clock: Any = reactor


class Pages(Resource):
    """C{/slow} and C{/late} take half a second, C{/fail} fails, and everything else is well."""

    isLeaf = True

    def render(self, request: Any) -> Any:
        if request.path in (b"/slow", b"/late"):
            left = request.notifyFinish()
            later = clock.callLater(0.5, request.finish)
            left.addErrback(lambda _: later.cancel())
            return NOT_DONE_YET
        if request.path == b"/fail":
            request.setResponseCode(500)
        return b"well\n"


admission = Admission(
    pool="bounded:16MiB",
    quota=["client-bytes:received=10k:sent=10k", "concurrency:total=1:kinds=GET /slow"],
    export="spark:recorded",
)
site = protectSite(
    admission,
    Site(Pages()),
    kindOf=byRoutes("/slow", "/fail", "/"),
    nameOf=byHeader("X-Client", isSecret=False),
    maxBodyBytes=50_000,
)

application: Any = Application("site")
for port, factory in (("SITE_PORT", site), ("STATUS_PORT", admission.statusSite())):
    service = StreamServerEndpointService(
        serverFromString(reactor, endpoint(int(os.environ[port]))),  # type: ignore[no-untyped-call]
        factory,
    )
    service.setServiceParent(IServiceCollection(application))  # type: ignore[no-untyped-call]
