"""
What a gateway of several processes does in a second beside one of one process, and what sharing costs while nothing
happens; a part of L{benchmarks.gateway}.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen
from confluent_kafka.admin import NewTopic

from .broker import produceResponseBytes
from .gatewayload import manyPipelined
from .gatewayservers import SHORT_LIVED, gateway, node
from .load import Cost, Loader, batchOf, produceRequest
from .measure import KIB, Report, cpuSecondsOf, inTurns, median, spreadPercent

TOPIC = "produced"
CONNECTIONS, IN_FLIGHT = 32, 8
NODE_ID = 1

ONE = "one process"


@frozen
class Spread:
    """
    @ivar cost: CPU time of all processes, and what passed on the wall.
    @ivar idlePercent: of the machine.
    """

    cost: Cost
    idlePercent: float


def processesOf(pid: int) -> Sequence[int]:
    """
    A process and its children.
    """
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def idleSeconds() -> float:
    """
    How long the machine's processors have had nothing to do, all together.
    """
    _, *ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(ticks[3]) / os.sysconf("SC_CLK_TCK")


def measureProcesses(report: Report, loader: Loader, count: int) -> None:
    """
    Both, in turns.
    """
    rounds, requests = (2, 4000) if report.quick else (9, 30_000)
    idle = 3.0 if report.quick else 30.0
    several = f"{count} processes"
    request, responseBytes = produceRequest(TOPIC, 0, batchOf(KIB)), produceResponseBytes(TOPIC)
    with (
        node(NewTopic(TOPIC, 1, 1, config=SHORT_LIVED)) as kafka,
        gateway(kafka.address) as one,
        gateway(kafka.address, "--processes", str(count)) as many,
        gateway(kafka.address, "--shared-limits", "topic", "--gateways", "2") as shared,
    ):
        servers = {ONE: one, several: many}
        pids: Mapping[str, Sequence[int]] = {name: processesOf(each.process.pid) for name, each in servers.items()}

        def send(name: str) -> Spread:
            port, began, idleBefore = servers[name].port + 1 + NODE_ID, time.monotonic(), idleSeconds()
            cost = loader.run(manyPipelined, pids[name], port, request, responseBytes, CONNECTIONS, IN_FLIGHT, requests)
            cores = os.cpu_count() or 1
            share = (idleSeconds() - idleBefore) / (time.monotonic() - began) / cores
            return Spread(cost, 100 * share)

        for name in servers:
            send(name)
        for name, found in inTurns([*servers], rounds, send, "produce, 1 KiB").items():
            rates = [requests / each.cost.wallSeconds for each in found]
            report.add(
                "processes",
                server=name,
                connections=CONNECTIONS,
                inFlight=IN_FLIGHT,
                requestsPerSecond=median(rates),
                spreadPercent=spreadPercent(rates),
                cpuMicroseconds=median([each.cost.cpuSeconds for each in found]) / requests * 1e6,
                machineIdlePercent=median([each.idlePercent for each in found]),
            )
        for name, measured in {**pids, "one process, --shared-limits topic": processesOf(shared.process.pid)}.items():
            before = [cpuSecondsOf(each) for each in measured]
            time.sleep(idle)
            used = [100 * (cpuSecondsOf(each) - was) / idle for each, was in zip(measured, before, strict=True)]
            report.add("idle", server=name, corePercent=sum(used), ofTheParent=used[0] if used[1:] else 0.0)
