# -*- test-case-name: tests.system.test_profile_memory -*-
"""
C{/memory}: where the memory is, for C{admission memory}.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from twisted.web.http import BAD_REQUEST, INTERNAL_SERVER_ERROR, SERVICE_UNAVAILABLE
from twisted.web.server import NOT_DONE_YET

from ..profiling.profiler import Profiler, ProfilerStopped
from .pageresource import BadQuestion, Page, refuse


class MemoryPage(Page):
    """
    A snapshot of memory, which takes the broker a few seconds of little steps.
    However many ask, one is taken at a time, and no more than one in ten
    seconds.
    """

    title = "Where the memory is; taken when asked for, and kept for ten seconds."

    def __init__(self, clock: IReactorTime, profiler: Profiler) -> None:
        super().__init__(clock)
        self._profiler = profiler

    def render(self, request: Any) -> Any:
        """
        Answer when there is something to say.
        """
        try:
            self._question(request)
        except BadQuestion as refusal:
            body = refuse(request, BAD_REQUEST, str(refusal))
            return b"" if request.method == b"HEAD" else body
        request.setHeader(b"Content-Type", self.contentType)
        if request.method == b"HEAD":
            return b""
        asked: Deferred[Any] = self._profiler.ask()
        request.notifyFinish().addErrback(lambda gone: asked.cancel())
        asked.addCallback(self._tell, request).addErrback(self._failed, request)
        return NOT_DONE_YET

    def _tell(self, document: Any, request: Any) -> None:
        request.write(json.dumps(document, allow_nan=False).encode() + b"\n")
        request.finish()

    def _failed(self, failure: Failure, request: Any) -> None:
        if isinstance(failure.value, CancelledError):
            # The client has gone.
            return
        if isinstance(failure.value, ProfilerStopped):
            body = refuse(request, SERVICE_UNAVAILABLE, "the broker is being stopped")
        else:
            self.log.failure("there is no memory snapshot", failure)
            body = refuse(
                request, INTERNAL_SERVER_ERROR, "the snapshot of memory has failed; the broker's log says why"
            )
        request.write(body)
        request.finish()
