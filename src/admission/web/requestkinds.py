# -*- test-case-name: tests.unit.web.test_requestkinds -*-
"""
What a request is, and who sends it, for policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from attrs import frozen

METHODS = frozenset(
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"CONNECT", b"TRACE", b"PROPFIND"]
)

OTHER = "other"
"""What stands for methods and paths that are none of those that are known."""


def methodOf(request: Any) -> str:
    """
    The kind of a request by its method alone.
    """
    method: bytes = request.method
    return method.decode() if method in METHODS else OTHER


def byRoutes(*patterns: str) -> Callable[[Any], str]:
    """
    Kinds by method and path: C{byRoutes("/users/<name>", "/files/...")} makes C{"GET /users/<name>"} of a request for
    C{/users/alice}.  A part in angle brackets stands for any one part of a path, three dots for all that follow; the
    first pattern that matches counts.  There are as many kinds as patterns and methods, whatever clients ask for.

    @return: what C{kindOf} takes.
    @raise ValueError: for a pattern that does not begin with a slash.
    """
    for each in patterns:
        if not each.startswith("/"):
            raise ValueError(f"{each!r}: a route begins with a slash, as in '/users/<name>'")
    return _Routes([(pattern, _parts(pattern)) for pattern in patterns])


def byKleinRoutes(app: Any) -> Callable[[Any], str]:
    """
    Kinds by method and the route of a Klein application: C{"GET /users/<name>"}, as it is written in the application.

    @param app: a C{klein.Klein}.
    @return: what C{kindOf} takes.
    @raise TypeError: if it is none.
    """
    if not hasattr(app, "url_map"):
        raise TypeError(f"app={app!r}: give a Klein application; byRoutes() takes the paths of any other site")
    return _KleinRoutes(app.url_map)


@frozen
class _Routes:
    _routes: Sequence[tuple[str, list[bytes | None]]]

    def __call__(self, request: Any) -> str:
        parts = request.path.split(b"/")[1:]
        route = next((pattern for pattern, wanted in self._routes if _matches(wanted, parts)), OTHER)
        return f"{methodOf(request)} {route}"

    def patterns(self) -> list[str]:
        return [pattern for pattern, _ in self._routes]


class _KleinRoutes:
    def __init__(self, urlMap: Any) -> None:
        from werkzeug.exceptions import HTTPException

        self._urlMap = urlMap
        self._match = urlMap.bind("", "/").match
        self._noMatch = HTTPException

    def __call__(self, request: Any) -> str:
        method = methodOf(request)
        try:
            rule, _ = self._match(
                request.path.decode("utf-8", "replace"), method=request.method.decode("latin-1"), return_rule=True
            )
        except self._noMatch:
            return f"{method} {OTHER}"
        return f"{method} {rule.rule}"

    def patterns(self) -> list[str]:
        return [rule.rule for rule in self._urlMap.iter_rules()]


def whyNone(kind: str, kindOf: Callable[[Any], str]) -> str:
    """
    Say why no request can be of a kind, as far as that can be told of C{kindOf}.

    @return: a sentence; empty if one can.
    """
    methods = {OTHER, *(each.decode() for each in METHODS)}
    method, _, route = kind.partition(" ")
    if kindOf is methodOf:
        if kind not in methods:
            return "no request is of that kind, which is its method, unless kindOf says otherwise"
    elif isinstance(kindOf, _Routes | _KleinRoutes) and kind != OTHER:
        routes = [*kindOf.patterns(), OTHER]
        if method not in methods or route not in routes:
            return f"no request is of that kind, which is its method and one of these routes: {', '.join(routes)}"
    return ""


def byHeader(name: str, isSecret: bool = True) -> Callable[[Any], tuple[str, str] | None]:
    """
    The client by a header, such as the one with its key.  Nobody has verified that, so it is a client id; where it is
    missing the client is known by its address.

    @param isSecret: whether page, logs and recordings are to have a digest in place of what the header says.
    @return: what C{nameOf} takes.
    """
    key = name.encode("ascii")

    def nameOf(request: Any) -> tuple[str, str] | None:
        value: bytes = request.requestHeaders.getRawHeaders(key, [b""])[0]
        if not value:
            return None
        return "", digestOf(value) if isSecret else value.decode("latin-1")

    return nameOf


def digestOf(key: bytes) -> str:
    """
    What L{byHeader} makes of a secret, for limits that are set for its client.
    """
    return blake2b(key, digest_size=8).hexdigest()


def _parts(pattern: str) -> list[bytes | None]:
    return [None if each.startswith("<") and each.endswith(">") else each.encode() for each in pattern.split("/")[1:]]


def _matches(wanted: Iterable[bytes | None], parts: list[bytes]) -> bool:
    index = 0
    for index, each in enumerate(wanted, 1):
        if each == b"...":
            return True
        if index > len(parts) or (each is not None and each != parts[index - 1]):
            return False
    return index == len(parts)
