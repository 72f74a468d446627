# -*- test-case-name: tests.unit.test_cli -*-
"""
The command C{admission explain}: how a client stands with its limits, as the
status port of a broker tells it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from http.client import HTTPException
from typing import Any, TextIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

from twisted.python.usage import Options, UsageError

from ..interfaces import QuotaEntity
from ..plaintext import printable, table
from ..units import roundedAmount, roundedSeconds
from .console import CommandFailed, parseTimeout
from .limitsyntax import asArguments, formatAmount

MAX_BYTES = 1 << 20
"""The longest answer that is read."""

_EXAMPLES = """
Examples:
  admission explain --client-id reports
  admission explain --client-id reports --user alice --ip 192.0.2.1
  admission explain --client-id reports --status http://127.0.0.1:9191 --json
"""

Fetch = Callable[[str, float], bytes]
"""Given a URL and seconds to wait, returns what is there; raises L{CommandFailed}."""


class ExplainOptions(Options):
    """
    C{explain}.

    After parsing, C{url} and C{timeoutSeconds} are keys as well.
    """

    synopsis = "[options]"
    longdesc = (
        "Tells which limits hold for a client, whom they were set for, how much of each is used, and for how long the "
        "client is throttled, as a broker knows it that runs with --status.  Shadow policies (shadow=yes) are "
        "marked: they throttle nobody."
    )
    optParameters = [
        ["client-id", "c", None, "The name that the client gives itself."],
        ["user", "u", None, "The name of its login; without, nobody in particular."],
        ["ip", None, None, "The address that it connects from."],
        ["status", None, "http://127.0.0.1:9090", "The status port of the broker."],
        ["timeout", None, "10s", "How long to wait for an answer."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text, with examples that keep their lines.
        """
        usage: str = super().getUsage(width)
        return usage + _EXAMPLES

    def postOptions(self) -> None:
        """
        Find what is wrong while it needs no broker.
        """
        question = {"clientId": self["client-id"], "user": self["user"], "ip": self["ip"]}
        given = {name: value for name, value in question.items() if value is not None}
        if not given:
            raise UsageError("say which client: --client-id, --user, --ip, or some of the three")
        self["url"] = f"{parseStatus(self['status'])}/explain?{urlencode(given)}"
        self["timeoutSeconds"] = parseTimeout(self["timeout"])


def parseStatus(url: str) -> str:
    """
    Read C{--status}.

    @return: the URL, to which the name of a page can be added after a slash.
    @raise UsageError: if it is none.
    """
    try:
        parts = urlsplit(url)
        isUsable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        isUsable = False
    if not isUsable:
        raise UsageError(f"--status {url}: write a URL, as in http://127.0.0.1:9090")
    return url.rstrip("/")


def fetch(url: str, timeoutSeconds: float) -> bytes:
    """
    Get what is at C{url}, which blocks; proxies are not for this.

    @raise CommandFailed: if that is nothing.
    """
    # This process has nothing else to do, so it need not be Twisted's agent.
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
            f"{place.scheme}://{place.netloc} does not answer ({getattr(reason, 'strerror', None) or reason}); does "
            "the broker run with --status tcp:9090:interface=127.0.0.1? --status names another URL"
        ) from error
    if len(whole) > MAX_BYTES:
        raise CommandFailed(f"{place.netloc} answers more than {MAX_BYTES} bytes; is it the status port of a broker?")
    return whole


def run(options: ExplainOptions, stdin: TextIO, stdout: TextIO, fetch: Fetch = fetch) -> None:
    """
    Do what C{options} say.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """
    try:
        explained = json.loads(fetch(options["url"], options["timeoutSeconds"]))
        described = _described(explained)
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise CommandFailed(f"{options['status']} does not answer as the status port of a broker does") from error
    stdout.write(json.dumps(explained, indent=2) + "\n" if options["json"] else described)


def _described(explained: Mapping[str, Any]) -> str:
    user, clientId, ip = explained["user"], explained["clientId"], explained["ip"]
    where = f" from {ip}" if ip else ""
    whose = printable(f"client id {clientId!r} of user {user!r}{where}")
    limits = explained["limits"]
    if not limits:
        return f"no limit holds for {whose}\n"
    rows = [
        (
            f"{each['policy']}{' (shadow)' if each['isShadow'] else ''}",
            f"{each['limitName']}={formatAmount(each['limitName'], each['limit'])}",
            asArguments(QuotaEntity(**each["entity"])),
            "?" if each["used"] is None else roundedAmount(each["used"]),
            "?" if each["usedFraction"] is None else f"{each['usedFraction']:.0%}",
            _delay(each),
        )
        for each in limits
    ]
    # Ties go to the first.
    worst = max((each for each in limits if not each["isShadow"]), key=lambda each: each["delaySeconds"], default=None)
    verdict = "is not throttled"
    if worst is not None and worst["delaySeconds"] > 0:
        verdict = f"is throttled by {worst['policy']} ({worst['limitName']}), for {_delay(worst)}"
    title = ("Policy", "Limit", "Set for", "Used", "Of it", "Throttled")
    return f"{whose} {printable(verdict)}\n\n{table([title, *rows])}"


def _delay(limit: Mapping[str, Any]) -> str:
    endsAtSeconds = limit["delayEndsAtSeconds"]
    if endsAtSeconds is None:
        return "no"
    ends = datetime.fromtimestamp(endsAtSeconds).astimezone()
    return f"{roundedSeconds(limit['delaySeconds'])}, until {ends:%Y-%m-%d %H:%M:%S}"


def _reason(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["error"]))
    except (ValueError, LookupError, TypeError):
        return "it is not the status port of a broker"
