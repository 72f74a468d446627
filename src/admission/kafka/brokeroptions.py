# -*- test-case-name: tests.unit.kafka.test_options -*-
"""
The options that a broker shares with C{admission doctor}, which runs where
modules of the broker cannot be imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.python.usage import Options


class BrokerOptions(Options):
    """
    Where a broker listens, and what it is configured with.
    """

    optParameters = [
        ["data", "d", "data", "The directory of the log; made if it is not there."],
        ["config", "c", None, "A file of the broker's properties, by Kafka's names."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["listen"] = []
        self["set"] = []

    @property
    def endpoints(self) -> Sequence[str]:
        """
        What to listen on.
        """
        return self["listen"] or ["tcp:9092:interface=127.0.0.1"]

    def opt_listen(self, endpoint: str) -> None:
        """An endpoint to listen on; may come several times. [default: tcp:9092:interface=127.0.0.1]"""
        self["listen"].append(endpoint)

    opt_l = opt_listen

    def opt_set(self, assignment: str) -> None:
        """A property of the broker, as NAME=VALUE; may come several times."""
        self["set"].append(assignment)
