# -*- test-case-name: tests.unit.web.test_site -*-
"""
What a client is told whose request is not served.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from math import ceil
from random import Random
from typing import Any

from twisted.web.http import RESPONSES, datetimeToString

TOO_LARGE = 413
TOO_MANY = 429
UNAVAILABLE = 503

REFUSED = frozenset((TOO_LARGE, TOO_MANY, UNAVAILABLE))

_TITLES = {TOO_LARGE: b"Content Too Large", TOO_MANY: b"Too Many Requests", UNAVAILABLE: RESPONSES[UNAVAILABLE]}

SPREAD = 0.5
"""C{Retry-After} is longer by up to this part of itself, or by a second, so that not all come back at once."""

_EXPOSED = b"Retry-After, RateLimit"


def _problem(status: int, **more: str) -> bytes:
    return json.dumps({"title": _TITLES[status].decode(), "status": status, **more}).encode()


_PROBLEMS = {status: _problem(status) for status in _TITLES}
"""Made once, since most refusals say no more, and should cost less than what they refuse."""


class Refusals:
    """
    Writes refusals: a status, when to come again, and why, as a problem in JSON (RFC 9457).
    """

    def __init__(self, random: Random, namesPolicies: bool = False, corsOrigins: Collection[str] = ()) -> None:
        """
        @param random: what spreads those that come again.
        @param namesPolicies: whether a client is told which policy refuses it, and why.
        @param corsOrigins: the origins whose scripts may read refusals; C{"*"} for all.
        """
        self._random = random
        self._namesPolicies = namesPolicies
        self._corsOrigins = frozenset(each.encode("ascii") for each in corsOrigins)

    def write(self, request: Any, status: int, delaySeconds: float, policy: str, reason: str) -> None:
        """
        Write a whole answer to C{request}, but do not finish it.

        @param request: a request of twisted.web whose headers are known, and to which nothing has been written.
        @param delaySeconds: when it makes sense to ask again; zero where it never does.
        @param policy: the name of the policy that refuses it, if one does.
        @param reason: why it is refused.
        """
        title = _TITLES[status]
        request.setResponseCode(status, title)
        set = request.responseHeaders.setRawHeaders
        # Which the site sets only when it is asked.
        set(b"Date", [datetimeToString()])  # type: ignore[no-untyped-call]
        more = {}
        if status == TOO_LARGE or self._namesPolicies:
            more["detail"] = reason
        if self._namesPolicies and policy:
            more["policy"] = policy
        if status != TOO_LARGE:
            seconds = self._retrySeconds(delaySeconds)
            set(b"Retry-After", [b"%d" % seconds])
            if status == TOO_MANY:
                # draft-ietf-httpapi-ratelimit-headers: nothing remains, and in how many seconds something will.
                name = policy if self._namesPolicies and policy else "default"
                set(b"RateLimit", [f'"{name}";r=0;t={seconds}'.encode("ascii", "replace")])
        self._shareWithScripts(request)
        body = _problem(status, **more) if more else _PROBLEMS[status]
        set(b"Content-Type", [b"application/problem+json"])
        set(b"Content-Length", [b"%d" % len(body)])
        set(b"Cache-Control", [b"no-store"])
        request.write(body)

    def _retrySeconds(self, delaySeconds: float) -> int:
        spreadSeconds = max(delaySeconds * SPREAD, 1.0)
        return max(ceil(delaySeconds + self._random.random() * spreadSeconds), 1)

    def _shareWithScripts(self, request: Any) -> None:
        origin = request.requestHeaders.getRawHeaders(b"Origin", [None])[0]
        if origin is None or not self._corsOrigins:
            return
        if origin not in self._corsOrigins and b"*" not in self._corsOrigins:
            return
        set = request.responseHeaders.setRawHeaders
        isAny = b"*" in self._corsOrigins
        set(b"Access-Control-Allow-Origin", [b"*" if isAny else origin])
        set(b"Access-Control-Expose-Headers", [_EXPOSED])
        if not isAny:
            set(b"Access-Control-Allow-Credentials", [b"true"])
            set(b"Vary", [b"Origin"])
