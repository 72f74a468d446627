"""L{admission.web.requestkinds}: what a request is, in few words, whatever clients ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from klein import Klein
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from admission.web import byHeader, byKleinRoutes, byRoutes, digestOf, methodOf


def asked(method: bytes, path: bytes, **headers: str) -> Any:
    """A request whose headers have come."""
    return SimpleNamespace(
        method=method, path=path, requestHeaders=Headers({name: [value] for name, value in headers.items()})
    )


class KindTests(SynchronousTestCase):
    """There are as many kinds as the owner has named."""

    def test_method(self) -> None:
        """Methods that a client invents are one kind."""
        self.assertEqual(
            [methodOf(asked(each, b"/")) for each in (b"GET", b"get", b"X" * 99)], ["GET", "other", "other"]
        )

    def test_routes(self) -> None:
        """The first pattern that matches counts."""
        kindOf = byRoutes("/", "/users/<name>", "/users/<name>/files/...", "/users/me")
        for path, route in (
            (b"/", "/"),
            (b"/users/alice", "/users/<name>"),
            (b"/users/me", "/users/<name>"),
            (b"/users/alice/files/a/b", "/users/<name>/files/..."),
            (b"/users/alice/files/", "/users/<name>/files/..."),
            (b"/users", "other"),
            (b"/users/alice/other", "other"),
            (b"*", "other"),
        ):
            self.assertEqual(kindOf(asked(b"GET", path)), f"GET {route}", path)
        self.assertIn("begins with a slash", str(self.assertRaises(ValueError, byRoutes, "users")))

    def test_klein(self) -> None:
        """The routes of a Klein application, as they are written there."""
        app = Klein()
        app.route("/items/<int:number>", methods=["GET"])(lambda request, number: b"")
        kindOf = byKleinRoutes(app)
        self.assertEqual(kindOf(asked(b"GET", b"/items/7")), "GET /items/<int:number>")
        for method, path in ((b"POST", b"/items/7"), (b"GET", b"/items/x"), (b"GET", b"/\xff"), (b"GET", b"*")):
            self.assertEqual(kindOf(asked(method, path)), f"{method.decode()} other")
        self.assertRaises(TypeError, byKleinRoutes, object())

    def test_header(self) -> None:
        """A client has its header's value as its name, or a digest of it; without it, nobody knows."""
        self.assertEqual(byHeader("X-User", isSecret=False)(asked(b"GET", b"/", **{"x-user": "a"})), ("", "a"))
        self.assertEqual(byHeader("X-Key")(asked(b"GET", b"/", **{"x-key": "a"})), ("", digestOf(b"a")))
        self.assertIsNone(byHeader("X-Key")(asked(b"GET", b"/")))
