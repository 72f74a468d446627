"""
Other people's servers under attack, plain and protected.

C{python -m tests.clients.servers [NAME ...]} prints a table.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator

from tests.clients.servers.running import Figures, Running, prepared, version
from tests.clients.servers.table import SERVERS
from tests.clients.web import suites
from tests.kit.attack import sized

SECONDS = sized(2.0, 10.0)


def run(name: str, isProtected: bool, attacks: Collection[str]) -> tuple[list[str], float, list[Figures]]:
    """
    Use a server, and stop it; attack others like it.

    @return: what was seen, how long it took to stop, and what each attack has cost.
    """
    server = SERVERS[name]
    running = Running(name, server, isProtected)
    try:
        seen = [*running.use(), running.stop()]
    finally:
        running.remove()
    figures = []
    for attack in attacks:
        attacked = Running(name, server, isProtected)
        try:
            figures.append(attacked.attacked(attack, SECONDS))
        finally:
            attacked.remove()
    return seen, running.seconds, figures


def rows(name: str) -> Iterator[str]:
    """A row for each attack on a server."""
    server = SERVERS[name]
    (plainSeen, plainSeconds, plain), (seen, seconds, protected) = (
        run(name, each, server.attacks) for each in (False, True)
    )
    others = [f"{then}; plain {before}" for before, then in zip(plainSeen, seen, strict=True) if before != then]
    start = [name, version(name, server), str(server.lines), ", ".join(others) or f"the same, {len(seen)} things"]
    start.append(f"{plainSeconds:.1f}, {seconds:.1f}")
    for attack, before, then in zip(server.attacks, plain, protected, strict=True):
        yield " | ".join([*start, attack, str(before), str(then), then.broken() or "kept"])
        start = [""] * len(start)


def ownTests(name: str) -> Iterator[str]:
    """What became of the tests that a server brings, plain and with every port protected, and where that differs."""
    server = SERVERS[name]
    binaries = prepared(f"{name} tested", [*server.packages, *server.tested])
    runs = [suites.run(server.suite, each, binaries, binaries / "python") for each in (False, True)]
    yield f"{server.suite}: {runs[0]}; protected: {runs[1]}"
    yield from suites.differences(*runs)


def main(*names: str) -> None:
    """
    Print the table, and what became of tests that servers bring; a server that cannot be had, or does not do what it
    should, is named.
    """
    unknown = set(names) - SERVERS.keys()
    if unknown:
        sys.exit(f"there is no server {' or '.join(map(repr, unknown))}; there are {', '.join(SERVERS)}")
    print("| server | version | lines | its users see | stops in s | attack | plain | protected | promises |")
    print("|---" * 9 + "|")
    for name in names or SERVERS:
        try:
            for row in rows(name):
                print(f"| {row} |", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            print(f"| {name} | | | {type(error).__name__}: {str(error)[-300:]!r} | | | | | |", flush=True)
    for name in names or SERVERS:
        if SERVERS[name].suite:
            print("\n".join(["", *ownTests(name)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        SERVERS[sys.argv[2]].attacks[sys.argv[3]].attack.run(int(sys.argv[4]), 0)
    else:
        main(*sys.argv[1:])
