# -*- test-case-name: tests.unit.commands.test_topcommand -*-
"""
The command C{admission top}: the state of a broker in the terminal, as its
status port reports it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from twisted.python.usage import UsageError

from ..plaintext import printable, table
from ..units import formatSeconds, formatShare, parseSeconds, roundedAmount, roundedBytes, roundedSeconds
from .console import CommandFailed
from .statusport import Fetch, StatusOptions, askStatus, enforcedShare, fetch

SHORTEST_SECONDS = 0.1

# Cursor home, the end of each line, and the end of the screen.
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K\n", "\x1b[J"
_SHOWN_ROWS = 8
_SHOWN_CHARACTERS = 40
"""How much of a name is shown: a client that chooses a long one hides no column."""


class TopOptions(StatusOptions):
    """
    After parsing, C{intervalSeconds} is a key as well.
    """

    synopsis = "[options]"
    longdesc = (
        "Shows how a broker is that runs with --status: its memory, who is not read and why, which clients are over a "
        "quota, groups and their lag, and the connections that hold most memory.  Ctrl-C ends it.  Where the output is "
        "no terminal, it is written once."
    )
    optParameters = [["interval", "i", "1s", "How often to look."]]
    optFlags = [["once", None, "Look once."]]
    examples = ("top", "top --status http://127.0.0.1:9191 --interval 5s", "top --once")

    def postOptions(self) -> None:
        """
        @raise UsageError: also if the interval is not a duration, or too short.
        """
        super().postOptions()
        try:
            self["intervalSeconds"] = parseSeconds(self["interval"])
        except ValueError as error:
            raise UsageError(f"--interval: {error}") from error
        if self["intervalSeconds"] < SHORTEST_SECONDS:
            raise UsageError(f"--interval {self['interval']}: write {formatSeconds(SHORTEST_SECONDS)} or more")


def run(
    options: TopOptions,
    stdin: TextIO,
    stdout: TextIO,
    fetch: Fetch = fetch,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """
    Run the command; see L{admission.cli.Command}.  It fails if the broker cannot
    be asked at first; later failures are shown, and the broker is asked again.
    """
    now = _look(options, fetch)
    if options["once"] or not stdout.isatty():
        stdout.write("".join(f"{line}\n" for line in _linesOf(now, None)))
        return
    before, sentence = None, ""
    try:
        while True:
            _draw(stdout, [*([sentence, ""] if sentence else []), *_linesOf(now, before)])
            sleep(options["intervalSeconds"])
            try:
                looked = _look(options, fetch)
            except CommandFailed as error:
                sentence = f"{error}; what follows is from before"
            else:
                sentence = ""
                if looked["uptimeSeconds"] != now["uptimeSeconds"]:
                    before, now = now, looked
    except KeyboardInterrupt:
        stdout.write("\n")


def _look(options: TopOptions, fetch: Fetch) -> Any:
    def read(seen: Any) -> Any:
        # A document that cannot be shown is not from a broker.
        list(_linesOf(seen, None))
        return seen

    return askStatus(options, "status.json", read, fetch)


def _draw(stdout: TextIO, lines: Sequence[str]) -> None:
    size = shutil.get_terminal_size()
    shown = [line[: size.columns] for line in lines[: size.lines - 1]]
    stdout.write(_HOME + "".join(line + _END_OF_LINE for line in shown) + _END_OF_SCREEN)
    stdout.flush()


def _linesOf(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[str]:
    """
    The lines to show.

    @param before: the previous document, for rates.
    """
    health, pool, process, connections = now["health"], now["pool"], now["process"], now["connections"]
    # A server that is no broker has some of the sections only.
    listeners, requests, throttled = now.get("listeners"), now.get("requests"), now.get("throttled")
    where = "" if listeners is None else f" on {', '.join(listeners) or 'no port'}"
    yield printable(f"admission {now['version']}{where}, up {roundedSeconds(now['uptimeSeconds'])}: {health['status']}")
    for reason in health["reasons"]:
        yield printable(f"  {reason}")
    most = process["maxDescriptors"]
    yield (
        f"process      {roundedBytes(process['residentBytes'])} resident, "
        f"{roundedBytes(process['privateBytes'])} without files, "
        f"CPU {_load(now, before)}, "
        f"{process['openDescriptors']}{'' if most < 0 else f' of {most}'} files"
    )
    bound = "no bound" if pool["sizeBytes"] is None else roundedBytes(pool["sizeBytes"])
    waiting = f", {pool['waiting']} connections wait" if pool["waiting"] else ""
    yield f"pool         {roundedBytes(pool['usedBytes'])} of {bound}{waiting}"
    yield f"ledger       {_pairs(now['ledger'], roundedBytes)}"
    if requests is not None:
        rate = _rate(now, before, lambda each: each["requests"]["read"])
        yield (
            f"requests     {'' if rate is None else f'{roundedAmount(rate)} a second, '}"
            f"{roundedAmount(requests['read'])} in all, "
            f"{requests['running']} of {requests['maxRunning']} running"
        )
    yield (
        f"connections  {connections['open']} of {connections['allowed']}, {connections['refused']} refused; "
        f"not read: {_pairs(now['muted'], str)}"
    )
    disk, purgatory, groups = now.get("disk"), now.get("purgatory"), now.get("groups")
    if disk is not None:
        free = ""
        if disk["freeBytes"] is not None:
            free = f", {roundedBytes(disk['freeBytes'])} of {roundedBytes(disk['totalBytes'])} free"
        topics = "1 topic" if disk["topicCount"] == 1 else f"{disk['topicCount']} topics"
        yield f"disk         {roundedBytes(disk['usedBytes'])} in {topics}{free}"
    if purgatory is not None:
        slowest = purgatory["waitPercentile99Seconds"]
        wait = "" if slowest is None else f"; 99% wait {roundedSeconds(slowest)} or less"
        expired = roundedAmount(purgatory["expirations"])
        yield f"purgatory    {purgatory['watched']} wait, {expired} ran out of time{wait}"
    yield ""
    if "processes" in now:
        yield "processes:"
        yield from _tableOf(
            ("Process", "State", "CPU", "Resident", "Connections", "Restarts"),
            [
                (
                    str(each["process"]),
                    f"{_shown(each['state'])} for {roundedSeconds(each['sinceSeconds'])}",
                    _load(now, before, each["pid"]),
                    "?" if each["residentBytes"] is None else roundedBytes(each["residentBytes"]),
                    "?" if each["connections"] is None else str(each["connections"]),
                    str(each["restarts"]),
                )
                for each in now["processes"]
            ],
        )
    if throttled is not None:
        share = enforcedShare(now)
        part = "" if share == 1.0 else f"; this gateway enforces {formatShare(share)} of each limit"
        yield f"clients over a quota now or in the last ten seconds: {throttled['count']}{part}"
        yield from _tableOf(
            ("Client", "Limit", "Used", "Of it", "Throttled", "Refused"),
            [
                (
                    _name(each),
                    _shownLimit(each),
                    "?" if each["used"] is None else roundedAmount(each["used"]),
                    "?" if each["usedFraction"] is None else f"{each['usedFraction']:.0%}",
                    roundedSeconds(each["delaySeconds"]) if each["delaySeconds"] else "no",
                    roundedAmount(each["refused"]) if each["refused"] else "no",
                )
                for each in throttled["clients"]
            ],
        )
    if groups is not None:
        yield f"groups: {groups['count']}, lag {roundedAmount(groups['lagRecords'])}"
        yield from _tableOf(
            ("Group", "State", "Members", "Lag"),
            [
                (
                    _shown(each["groupId"]),
                    each["state"],
                    str(each["memberCount"]),
                    "?" if each["lagRecords"] is None else roundedAmount(each["lagRecords"]),
                )
                for each in groups["groups"]
            ],
        )
    if "nodes" in now:
        yield "nodes of the cluster:"
        yield from _tableOf(
            ("Node", "Address", "Links", "Unanswered", "Overdue", "Holds", "Stalled", "Last error"),
            [
                (
                    "bootstrap" if each["nodeId"] is None else str(each["nodeId"]),
                    _shown(each["address"] or "not known"),
                    str(each["links"]),
                    str(each["unanswered"]),
                    roundedSeconds(each["unansweredSeconds"]) if each["unansweredSeconds"] else "",
                    roundedBytes(each["heldBytes"]),
                    roundedSeconds(each["stalledSeconds"]) if each["stalledSeconds"] else "",
                    _shown(each["lastError"] or ""),
                )
                for each in now["nodes"]
            ],
        )
    yield "connections by memory held:"
    yield from _tableOf(
        ("Peer", "Client", "Holds", "Not read for"),
        [
            (
                each["peer"],
                _name(each),
                roundedBytes(each["heldBytes"]),
                f"{', '.join(each['mutedFor'])} {roundedSeconds(each['mutedSeconds'])}" if each["mutedFor"] else "",
            )
            for each in connections["largest"]
        ],
    )


def _tableOf(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield from table([titles, *rows[:_SHOWN_ROWS]], indent="  ").splitlines()
    if len(rows) > _SHOWN_ROWS:
        yield f"  and {len(rows) - _SHOWN_ROWS} more"
    yield ""


def _rate(
    now: Mapping[str, Any], before: Mapping[str, Any] | None, read: Callable[[Mapping[str, Any]], float | None]
) -> float | None:
    """
    The growth of a counter per second; L{None} at the first look, after a restart, and where the counter is not known.
    """
    if before is None or now["uptimeSeconds"] <= before["uptimeSeconds"]:
        return None
    elapsedSeconds: float = now["uptimeSeconds"] - before["uptimeSeconds"]
    counts = read(now), read(before)
    # A sum falls when one of several processes ends or does not answer.
    return None if counts[0] is None or counts[1] is None else max(counts[0] - counts[1], 0.0) / elapsedSeconds


def _load(now: Mapping[str, Any], before: Mapping[str, Any] | None, pid: int | None = None) -> str:
    """
    How busy a process is; without C{pid}, all that there are.
    """

    def cpuSeconds(document: Mapping[str, Any]) -> float | None:
        rows = [document["process"]] if pid is None else document.get("processes", ())
        return next((each["cpuSeconds"] for each in rows if each.get("pid") == pid), None)

    load = _rate(now, before, cpuSeconds)
    return "-" if load is None else f"{load:.0%}"


def _shownLimit(client: Mapping[str, Any]) -> str:
    name = client["limitName"]
    if name is None:
        return client["policy"] or "none any more"
    return f"{name}={roundedAmount(client['limit'])}"


def _name(client: Mapping[str, Any]) -> str:
    return f"{_shown(client['clientId']) or '(no client id)'} {_shown(client['user'])}"


def _shown(name: str) -> str:
    safe = printable(name)
    return safe if len(safe) <= _SHOWN_CHARACTERS else f"{safe[: _SHOWN_CHARACTERS - 3]}..."


def _pairs(amounts: Mapping[str, Any], write: Callable[[Any], str]) -> str:
    """
    Amounts by their names, without those that are zero.
    """
    return ", ".join(f"{name} {write(amount)}" for name, amount in amounts.items() if amount) or "nothing"
