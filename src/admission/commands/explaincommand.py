# -*- test-case-name: tests.unit.commands.test_explaincommand -*-
"""
The command C{admission explain}: the limits that hold for a client, and how
much of each it uses, as a broker's status port reports it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO
from urllib.parse import urlencode

from twisted.python.usage import UsageError

from ..interfaces import QuotaEntity
from ..plaintext import printable, table
from ..units import formatShare, roundedAmount, roundedSeconds
from .limitsyntax import asArguments, limitColumns, limitTitles
from .statusport import Fetch, StatusOptions, askStatus, enforcedShare, fetch


class ExplainOptions(StatusOptions):
    """
    After parsing, C{page} is a key as well: the page to get from the status port.
    """

    synopsis = "[options]"
    longdesc = (
        "Tells which limits hold for a client, whom they were set for, how much of each is used, and for how long the "
        "client is throttled, as a broker knows it that runs with --status.  Where gateways share limits, it tells how "
        "much is used elsewhere.  Shadow policies (shadow=yes) are marked: they throttle nobody."
    )
    optParameters = [
        ["client-id", "c", None, "The name that the client gives itself; '' is one that gives none."],
        ["user", "u", None, "The name of its login; without, any."],
        ["ip", None, None, "The address that it connects from."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]
    examples = (
        "explain --client-id reports",
        "explain --client-id reports --user alice --ip 192.0.2.1",
        "explain --client-id reports --status http://127.0.0.1:9191 --json",
    )

    def postOptions(self) -> None:
        """
        @raise UsageError: also if no client is named.
        """
        super().postOptions()
        question = {"clientId": self["client-id"], "user": self["user"], "ip": self["ip"]}
        given = {name: value for name, value in question.items() if value is not None}
        if not given:
            raise UsageError("say which client: --client-id, --user, --ip, or some of the three")
        for name in ("user", "ip"):
            if given.get(name) == "":
                raise UsageError(f"--{name} is empty: leave it out to mean any")
        self["page"] = f"explain?{urlencode(given)}"


def run(options: ExplainOptions, stdin: TextIO, stdout: TextIO, fetch: Fetch = fetch) -> None:
    explained, described = askStatus(options, options["page"], lambda answer: (answer, _described(answer)), fetch)
    stdout.write(json.dumps(explained, indent=2) + "\n" if options["json"] else described)


def _described(explained: Mapping[str, Any]) -> str:
    share = enforcedShare(explained)
    if explained["clientCount"] > 1:
        return _several(explained, share)
    user, clientId, ip = explained["user"], explained["clientId"], explained["ip"]
    where = f" from {ip}" if ip else ""
    named = f"client id {clientId!r}" if clientId else "the client without a client id"
    ofUser = f" of user {user!r}" if user else ""
    whose = printable(f"{named}{ofUser}{where}")
    limits, delaySeconds = explained["limits"], explained["delaySeconds"]
    isKnown = explained["clientCount"] > 0 or any(each["used"] for each in limits)
    # In a tie the first one is shown.
    worst = max((each for each in limits if not each["isShadow"]), key=lambda each: each["delaySeconds"], default=None)
    verdict = "is not throttled"
    if not isKnown:
        verdict = "is not known: it has no connection, and has used none of its limits lately"
    elif delaySeconds > 0:
        # How long it was told to wait; what follows is what it would be told now.
        (client,) = explained["clients"]
        by = "" if client["policy"] is None else f" by {client['policy']}"
        if client["limitName"] is not None:
            by += f" ({client['limitName']})"
        verdict = f"is throttled{by}, for {_delay(explained)}"
    elif explained["clients"] and explained["clients"][0]["refused"]:
        (client,) = explained["clients"]
        count = roundedAmount(client["refused"])
        verdict = f"had {count} of its requests refused lately by the policy {client['policy']}"
    elif worst is not None and worst["delaySeconds"] > 0:
        verdict = f"is throttled by {worst['policy']} ({worst['limitName']}) with its next request, for {_delay(worst)}"
    if not limits:
        return f"{whose} {printable(verdict)}\nno limit holds for it\n"
    sharing = explained.get("sharing")
    isPartial = any(each.get("fraction", 1.0) < 1 for each in limits)
    rows = [
        (
            f"{each['policy']}{' (shadow)' if each['isShadow'] else ''}",
            *limitColumns({each["limitName"]: each["limit"]}, share),
            *([formatShare(each["fraction"]) if each["fraction"] < 1 else "all"] if isPartial else []),
            asArguments(QuotaEntity(**each["entity"])) or "all clients together",
            *_usedOf(each, isShared=sharing is not None),
            _delay(each),
        )
        for each in limits
    ]
    title = (
        "Policy",
        *limitTitles("Limit", share),
        *(["Enforced here"] if isPartial else []),
        "Set for",
        "Used",
        *([] if sharing is None else ["Here", "Elsewhere"]),
        "Of it",
        "Next request throttled",
    )
    shared = "" if sharing is None else f"{printable(_shared(sharing))}\n"
    return f"{whose} {printable(verdict)}\n{shared}\n{table([title, *rows])}"


def _shared(sharing: Mapping[str, Any]) -> str:
    servers, heardSeconds = sharing["servers"], sharing["heardSeconds"]
    if sharing["trouble"] is not None:
        return str(sharing["trouble"])
    if sharing["fraction"] < 1:
        return (
            f"limits are not shared yet; each of {servers} servers enforces {formatShare(sharing['fraction'])} of them"
        )
    if heardSeconds is None:
        return "limits are shared, and no other server has been heard"
    return f"limits are shared by {servers} servers; another was heard {roundedSeconds(heardSeconds)} ago"


def _several(explained: Mapping[str, Any], share: float) -> str:
    clients, count = explained["clients"], explained["clientCount"]
    limitTitle = limitTitles("Limit", share)
    rows = [
        (
            printable(each["clientId"] or "(no client id)"),
            printable(each["user"] or "(nobody)"),
            str(each["connections"]),
            *(
                (each["policy"] or "none", *[""] * (len(limitTitle) - 1))
                if each["limitName"] is None
                else limitColumns({each["limitName"]: each["limit"]}, share)
            ),
            *_usedOf(each),
            roundedSeconds(each["delaySeconds"]) if each["delaySeconds"] else "no",
            roundedAmount(each["refused"]) if each["refused"] else "no",
        )
        for each in clients
    ]
    title = ("Client", "User", "Connections", *limitTitle, "Used", "Of it", "Throttled", "Refused")
    which = "the slowest first" if len(clients) == count else f"the {len(clients)} slowest are"
    return f"{count} clients match; {which}:\n\n{table([title, *rows])}"


def _usedOf(limit: Mapping[str, Any], isShared: bool = False) -> tuple[str, ...]:
    """
    @param isShared: whether to tell here and elsewhere apart.
    """
    fraction = limit["usedFraction"]
    amounts = [limit["used"]]
    if isShared:
        amounts += [limit["usedHere"], 0 if limit["usedElsewhere"] is None else limit["usedElsewhere"]]
    shown = ("?" if each is None else roundedAmount(each) for each in amounts)
    return (*shown, "?" if fraction is None else f"{fraction:.0%}")


def _delay(limit: Mapping[str, Any]) -> str:
    endsAtSeconds = limit["delayEndsAtSeconds"]
    if endsAtSeconds is None:
        return "no"
    ends = datetime.fromtimestamp(endsAtSeconds).astimezone()
    return f"{roundedSeconds(limit['delaySeconds'])}, until {ends:%Y-%m-%d %H:%M:%S}"
