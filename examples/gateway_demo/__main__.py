"""
See L{examples.gateway_demo}.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .cluster import VERSION, Cluster, DemoFailed, fetchKafka, threeNodes
from .gateway import RunningGateway, gatewayTo
from .users import ROGUE, STEADY, Rogue, Steady, User

KAFKA = Path("build") / f"kafka-tools-and-log-{VERSION}"

IDS, WINDOW = 20, "1m"
QUOTA = f"producer-ids:rate={IDS}:window={WINDOW}"

_TURN_SECONDS = 5.0


def say(line: str) -> None:
    """
    Tell how far it is.
    """
    print(line, flush=True)


def load(cluster: Cluster, address: str, path: str, seconds: float) -> int:
    """
    Let both users work, and tell how they fare.

    @param path: how they reach the cluster, in the names of their topics.
    @return: how many producer ids of the rogue the cluster remembers.
    @raise DemoFailed: if a user does not end.
    """
    users = _begin(address, path)
    _watch(users, seconds)
    _stop(users)
    say(f"   at the end: {_fares(users)}")
    counts = {name: cluster.producerCount(f"{path}-{name}") for name in users}
    for name, count in counts.items():
        say(f"   the cluster remembers {_counted(count, 'producer id')} of {name}")
    return counts[ROGUE]


def _begin(address: str, path: str) -> dict[str, User]:
    return {STEADY: Steady(address, f"{path}-{STEADY}"), ROGUE: Rogue(address, f"{path}-{ROGUE}")}


def _watch(users: dict[str, User], seconds: float) -> None:
    began = time.monotonic()
    while (leftSeconds := began + seconds - time.monotonic()) > 0:
        time.sleep(min(leftSeconds, _TURN_SECONDS))
        if leftSeconds > _TURN_SECONDS:
            say(f"   {time.monotonic() - began:2.0f} s: {_fares(users)}")


def _stop(users: dict[str, User]) -> None:
    for user in users.values():
        user.stop()


def _fares(users: dict[str, User]) -> str:
    return "; ".join(f"{name} has {_fare(user)}" for name, user in users.items())


def _fare(user: User) -> str:
    told = f"{user.acknowledged} of {_counted(user.sent, 'record')} acknowledged"
    slowest = f", the slowest in {user.slowestSeconds:.2f} s" if user.acknowledged else ""
    others = [f", {count} failed with {name}" for name, count in user.results.items() if name != "acknowledged"]
    return f"{told}{slowest}{''.join(others)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def demonstrate(directory: Path, classPath: str, seconds: float, isKept: bool) -> None:
    """
    Show what the cluster sees without a gateway, and what with one.

    @param directory: for all that is written.
    @param seconds: how long each of both takes.
    @param isKept: whether to go on until Ctrl-C.
    @raise DemoFailed: if anything fails.
    """
    say("1. starting three nodes, each broker and controller")
    with threeNodes(classPath, directory, (STEADY, ROGUE)) as cluster:
        for path in ("direct", "gateway"):
            for name in (STEADY, ROGUE):
                cluster.createTopic(f"{path}-{name}")
        say(
            f"2. without a gateway, for {seconds:.0f} s: {STEADY} keeps its producer, {ROGUE} makes one for each record"
        )
        before = load(cluster, cluster.bootstrap, "direct", seconds)
        say(f"3. starting a gateway with --quota {QUOTA}: {IDS} new producer ids per user and minute")
        with gatewayTo(cluster.bootstrap, directory, "--quota", QUOTA, "--require-login") as gateway:
            say(f"4. the same two users at the gateway, {gateway.address}, for {seconds:.0f} s")
            behind = load(cluster, gateway.address, "gateway", seconds)
            _showNodes(gateway)
            say(f"without the gateway {ROGUE} has left {before} producer ids in the cluster, with it {behind}")
            if isKept:
                _keep(gateway)
            else:
                say(f"the status page was {gateway.page}; with --keep it stays until Ctrl-C")


def _showNodes(gateway: RunningGateway) -> None:
    for node in gateway.status()["nodes"]:
        if node["nodeId"] is not None:
            say(f"   the gateway reaches node {node['nodeId']} at {node['address']}")


def _keep(gateway: RunningGateway) -> None:
    users = _begin(gateway.address, "gateway")
    say(f"both users go on until Ctrl-C; the status page is {gateway.page}")
    try:
        while True:
            time.sleep(_TURN_SECONDS)
    except KeyboardInterrupt:
        say("stopping")
    _stop(users)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    The command line.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.gateway_demo",
        description="Put a gateway in front of a Kafka cluster, and let a user make a new producer for each record.",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load takes, each time")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument("--kafka", type=Path, default=KAFKA, help="where Apache Kafka's jars are, or are to be put")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        classPath = fetchKafka(options.kafka.absolute())
        with tempfile.TemporaryDirectory(prefix="admission-gateway-demo-") as directory:
            demonstrate(Path(directory), classPath, options.seconds, options.keep)
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
