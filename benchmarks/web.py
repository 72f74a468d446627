"""
What a protected site of twisted.web costs for each request: beside the same site as it is, wrapped by its bytes, and
with the library C{limits} as a decorator.

    python -m benchmarks.web [--json] [--quick]
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from importlib.util import find_spec

from attrs import frozen

from .load import Cost, Loader, visit
from .measure import Report, inTurns, median, progress, ratio, run, spreadPercent
from .servers import Server, running

CONNECTIONS = 8

PLAIN = "plain"
REFUSED = ", refused"

GENEROUS = ["client-bytes:received=1T:sent=1T", "concurrency:limit=1000", "request-time:percent=1000000"]
"""Policies that look at every request, and refuse none."""

SITES = {
    PLAIN: ["plainWeb"],
    "wrapped as bytes": ["webBytes"],
    "protected": ["web"],
    "protected, three policies": ["web", *GENEROUS],
    f"protected{REFUSED}": ["web", "concurrency:limit=1"],
}

LIMITS = {"limits": ["plainWeb", "1000000000/second"], f"limits{REFUSED}": ["plainWeb", "1/day"]}
"""The library of that name."""


@frozen
class Load:
    """
    What is sent.

    @ivar together: how many requests are sent on a connection at a time.
    @ivar count: how many in each round.
    """

    name: str
    request: bytes
    together: int
    count: int


GET = b"GET /page HTTP/1.1\r\nHost: site\r\nUser-Agent: benchmark\r\nAccept: */*\r\n\r\n"
POST = GET.replace(b"GET", b"POST", 1).replace(b"\r\n\r\n", b"\r\nContent-Length: 10000\r\n\r\n") + bytes(10_000)
NEVER = GET.replace(b"/page", b"/never")

LOADS = [Load("GET", GET, 1, 4000), Load("GET", GET, 16, 4096), Load("POST 10 kB", POST, 1, 2400)]


def occupied(server: Server) -> socket.socket:
    """
    A connection with a request that stays in progress, the only one that is admitted: all others are refused.
    """
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(NEVER)
    return connection


def measure(report: Report) -> None:
    """
    Everything.
    """
    sites = dict(SITES)
    if find_spec("limits") is None:
        report.add("notInstalled", module="limits")
    else:
        sites |= LIMITS
    with Loader() as loader, ExitStack() as stack:
        servers = {}
        for name, command in sites.items():
            progress(f"starting: {name}")
            servers[name] = stack.enter_context(running(*command))
            if name.endswith(REFUSED):
                stack.enter_context(occupied(servers[name]))
        for load in LOADS:
            rounds, count = (2, load.count // 16) if report.quick else (15, load.count)

            def visited(name: str, load: Load = load, count: int = count) -> Cost:
                server, status = servers[name], 429 if name.endswith(REFUSED) else 200
                return loader.run(
                    visit, server.pid, server.port, load.request, load.together, status, CONNECTIONS, count
                )

            title = f"{load.name}, {load.together} at a time"
            inTurns(servers, 1, visited, f"{title}, first")
            figures = inTurns(servers, rounds, visited, title)
            plain = [cost.cpuSeconds for cost in figures[PLAIN]]
            for name, costs in figures.items():
                cpu = [cost.cpuSeconds for cost in costs]
                report.add(
                    "requests",
                    what=load.name,
                    together=load.together,
                    site=name,
                    cpuMicroseconds=median(cpu) / count * 1e6,
                    ratioToPlain=ratio(cpu, plain),
                    spreadPercent=spreadPercent(cpu),
                )


if __name__ == "__main__":
    run(
        "CPU time of a site's process for each request, in microseconds",
        "What requests cost a protected site.",
        measure,
    )
