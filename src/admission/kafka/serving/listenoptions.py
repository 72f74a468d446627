# -*- test-case-name: tests.unit.kafka.serving.test_listenoptions -*-
"""
What the servers share with the command C{admission}: options, and the syntax of
addresses.  It imports nothing heavy, since C{admission doctor} has to run where
a server cannot be imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from twisted.python.usage import Options, UsageError

from admission.completions import DIRECTORIES, FILES, completing

from ..property import Given
from .propertyfile import readPropertyFile

CONFIGURED_OPTIONS: Mapping[str, str] = {
    "listeners": "listen",
    "advertised.listeners": "advertise",
    "auth": "auth",
    "status": "status",
    "pool": "pool",
    "order": "order",
    "purgatory": "purgatory",
    "quota": "quota",
    "export": "export",
    "log.format": "log-format",
}
"""The options that a file of properties may have besides properties, by their names there."""

_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^][\s]+)\]|(?P<host>[^][:\s]+)):(?P<port>[0-9]{1,5})")


class ListenOptions(Options):
    """
    Where a server listens, and its configuration.

    @cvar configured: which of L{CONFIGURED_OPTIONS} are taken from the file of properties.
    @cvar isServer: whether the others there are mistakes, and not for somebody else.
    @ivar chosen: which of these were given on the command line, once the file is taken.
    """

    configured: ClassVar[Sequence[str]] = ("listen",)
    isServer: ClassVar[bool] = False
    chosen: Sequence[str] = ()

    optParameters = [
        ["config", "c", None, "A file of properties, by Kafka's names."],
    ]
    compData = completing(options={"config": FILES})

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["listen"] = []
        self["set"] = []

    @property
    def endpoints(self) -> Sequence[str]:
        """
        The endpoints to listen on.
        """
        return self["listen"] or ["tcp:9092:interface=127.0.0.1"]

    def opt_listen(self, endpoint: str) -> None:
        """An endpoint to listen on; may come several times. [default: tcp:9092:interface=127.0.0.1]"""
        self["listen"].append(endpoint)

    opt_l = opt_listen

    def takeConfigured(self) -> None:
        """
        Take the options that are in the file of properties: a value, or several with commas.

        @raise UsageError: if one is given on the command line as well, or makes no sense.
        @raise SettingsError: if the file cannot be read.
        """
        if self["config"] is None:
            return
        self.chosen = [each for each in self.configured if self.get("credCheckers" if each == "auth" else each)]
        for option, text, given in self.optionsIn(self["config"]):
            take: Any = getattr(self, f"opt_{option}", partial(self.__setitem__, option))
            try:
                take(text)
            except UsageError as error:
                raise UsageError(f"{given.place}: {error}") from error

    def optionsIn(self, path: str) -> Iterator[tuple[str, str, Given]]:
        """
        The options in a file of properties.

        @return: the name of each, a value, and where that is; an option with several values comes several times.
        @raise UsageError: if one has no meaning for this server, or is on the command line as well.
        @raise SettingsError: if the file cannot be read.
        """
        for given in readPropertyFile(path):
            option = CONFIGURED_OPTIONS.get(given.name)
            if option is None:
                continue
            if option not in self.configured:
                if self.isServer:
                    raise UsageError(f"{given.place}: {given.name} is not used here")
                continue
            if option in self.chosen:
                raise UsageError(f"--{option} is given, and {given.name} at {given.place}; keep one of them")
            # As a password may have commas, this option is given several times instead.
            texts = [given.text] if option == "auth" else given.text.split(",")
            for text in filter(None, map(str.strip, texts)):
                yield option, text, given

    def opt_set(self, assignment: str) -> None:
        """A property, as NAME=VALUE; may come several times."""
        self["set"].append(assignment)


class BrokerOptions(ListenOptions):
    """
    The same for a broker, and where its log is.
    """

    optParameters = [
        ["data", "d", "data", "The directory of the log; made if it is not there."],
    ]
    compData = completing(options={"data": DIRECTORIES})


def parseHostPort(source: str, text: str) -> tuple[str, int]:
    """
    Read HOST:PORT; an IPv6 address goes in brackets.

    @param source: what it was given by, for messages.
    @raise UsageError: if C{text} does not have that form.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise UsageError(f"{source} {text}: write HOST:PORT, as in broker.example:9092 or [::1]:9092")
    return match["bracketed"] or match["host"], int(match["port"])
