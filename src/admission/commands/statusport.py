# -*- test-case-name: tests.unit.commands.test_explaincommand -*-
"""
What commands that ask a server's status port have in common.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from twisted.python.usage import UsageError

from ..plaintext import printable
from .console import CommandFailed, CommandOptions, chosen, parseTimeout

MAX_BYTES = 1 << 20
"""The longest answer that is read."""

Fetch = Callable[[str, float], bytes]
"""Given a URL and seconds to wait, returns its contents; raises L{CommandFailed}."""

_Answer = TypeVar("_Answer")


class StatusOptions(CommandOptions):
    """
    The URL of the status port.

    After parsing, C{url}, without a slash at its end, and C{timeoutSeconds} are
    keys as well.
    """

    optParameters = [
        [
            "status",
            None,
            None,
            "The status port of the server.  [default: what ADMISSION_STATUS says, or http://127.0.0.1:9090]",
        ],
        ["timeout", None, "10s", "How long to wait for an answer."],
    ]

    def postOptions(self) -> None:
        """
        @raise UsageError: if an option is invalid; no server is asked.
        """
        source, self["status"] = chosen(self, "status", "ADMISSION_STATUS", "http://127.0.0.1:9090")
        self["url"] = parseStatus(self["status"], source)
        self["timeoutSeconds"] = parseTimeout(self["timeout"])


def parseStatus(url: str, source: str = "--status") -> str:
    """
    Read C{--status}.

    @param source: what it was given by, for messages.
    @return: the URL, to which a slash and the name of a page can be added.
    @raise UsageError: if it is not a URL.
    """
    try:
        parts = urlsplit(url)
        isUsable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        isUsable = False
    if not isUsable:
        raise UsageError(f"{source} {url}: write a URL, as in http://127.0.0.1:9090")
    return url.rstrip("/")


def fetch(url: str, timeoutSeconds: float) -> bytes:
    """
    Get the contents of C{url}, without proxies.  It blocks: the process has nothing else to do.

    @raise CommandFailed: if there is no answer, an error, or more than L{MAX_BYTES}.
    """
    opener = build_opener(ProxyHandler({}))
    place = urlsplit(url)
    try:
        with opener.open(url, timeout=timeoutSeconds) as response:
            whole: bytes = response.read(MAX_BYTES + 1)
    except HTTPError as error:
        raise CommandFailed(f"{place.netloc} answers {error.code}: {_reason(error.read(MAX_BYTES))}") from error
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CommandFailed(
            f"{place.scheme}://{place.netloc} does not answer ({getattr(reason, 'strerror', None) or reason}): "
            "start a broker or gateway with --status tcp:9090:interface=127.0.0.1, have another server listen with "
            "admission.statusSite(), or name another URL by --status"
        ) from error
    if len(whole) > MAX_BYTES:
        raise CommandFailed(f"{place.netloc} answers more than {MAX_BYTES} bytes; is it a status port?")
    return whole


def askStatus(options: CommandOptions, page: str, read: Callable[[Any], _Answer], fetch: Fetch) -> _Answer:
    """
    Get a page and read it.

    @param options: with the keys of L{StatusOptions}.
    @param page: its path, without the first slash.
    @param read: converts the JSON of the page to the result; fails as Python
        does where keys are missing or types are wrong.
    @return: the result of C{read}.
    @raise CommandFailed: if there is no answer, or C{read} fails.
    """
    try:
        return read(json.loads(fetch(f"{options['url']}/{page}", options["timeoutSeconds"])))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CommandFailed(f"{options['status']} does not answer as a status port does") from error


def enforcedShare(page: Mapping[str, Any]) -> float:
    """
    How much of each limit the server enforces, as a page of its status port says.

    @raise ValueError: if that is no part.
    """
    share = float(page.get("limitShare", 1.0))
    if not 0 < share <= 1:
        raise ValueError(f"{share} is no part of a limit")
    return share


def _reason(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["error"]))
    except (ValueError, LookupError, TypeError):
        return "it is not a status port"
