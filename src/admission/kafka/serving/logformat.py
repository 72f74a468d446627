# -*- test-case-name: tests.unit.kafka.serving.test_logformat -*-
"""
How the lines of C{twistd}'s log look: short text, or JSON.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from twisted.logger import FileLogObserver, ILogObserver, LogEvent, formatEvent, formatEventAsClassicLogText
from twisted.python.components import Componentized
from twisted.python.logfile import LogFile
from twisted.python.usage import Options, UsageError

# What events of Twisted's older log have besides.
_LEGACY = ("system", "time", "isError", "format", "message")

# What Twisted says of each port, of which a gateway has one for each node.  The server itself says it once, of all.
_OF_PORTS = re.compile(r"ListenerFactory(?: \(TLS\))? starting on \d+|\(T(?:CP|LS) Port \d+ Closed\)")


def asText(event: LogEvent) -> str | None:
    """
    A line as Twisted writes it, with the last part of the name of what has logged it instead of all of it.
    """
    if _isOfPort(event):
        return None
    source = event.get("log_namespace")
    return formatEventAsClassicLogText(event if source is None else {**event, "log_namespace": _lastPart(source)})


def asJson(event: LogEvent) -> str | None:
    """
    An object of JSON in a line: C{time} (UTC), C{level}, C{source}, C{message}, the texts and numbers that are in the
    message as C{fields}, and C{traceback} if there is one.
    """
    message, failure = formatEvent(event), event.get("log_failure")
    if (not message and failure is None) or _isOfPort(event):
        return None
    level, seconds = event.get("log_level"), event.get("log_time")
    fields = {
        "time": None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds"),
        "level": "info" if level is None else level.name,
        "source": _lastPart(event.get("log_namespace") or "-"),
        "message": message,
        "fields": {
            name: value
            for name, value in event.items()
            if isinstance(value, str | int | float) and not name.startswith("log_") and name not in _LEGACY
        },
    }
    if failure is not None:
        fields["traceback"] = failure.getTraceback()
    return json.dumps(fields) + "\n"


LOG_FORMATS: Mapping[str, Callable[[LogEvent], str | None]] = {"text": asText, "json": asJson}
"""The values of C{--log-format}."""


def logObserverMaker(twistd: Options | None, wanted: str | None) -> Callable[[], FileLogObserver] | None:
    """
    What is to write the log of C{twistd} in a format of ours, where its own options say.

    @param twistd: its options; L{None} if there are none.
    @param wanted: the value of C{--log-format}; L{None} if it was not given.
    @return: makes the observer; L{None} if something else writes the log.
    @raise UsageError: if there is no such format, or what writes the log has a format of its own.
    """
    if wanted is not None and wanted not in LOG_FORMATS:
        raise UsageError(f"--log-format {wanted}: write {' or '.join(LOG_FORMATS)}")
    if twistd is None:
        return None
    if "nodaemon" not in twistd:
        # Another program runs plug-ins of twistd, too, and has an option of the same name.
        other = "twist: twist --log-format=json admission"
    elif twistd["logger"] or twistd["syslog"]:
        other = f"--{'logger' if twistd['logger'] else 'syslog'}"
    else:
        return partial(_makeObserver, twistd, LOG_FORMATS[wanted or "text"])
    if wanted is not None:
        raise UsageError(f"--log-format {wanted}: the format of the log is chosen by {other}")
    return None


def observeLog(application: Any, make: Callable[[], FileLogObserver] | None) -> None:
    """
    Tell the application that C{twistd} makes what writes the log.

    @param application: does nothing if it is another kind of parent of services.
    @param make: see L{logObserverMaker}.
    """
    if make is not None and isinstance(application, Componentized):
        application.setComponent(ILogObserver, make())  # type: ignore[no-untyped-call]


def _makeObserver(twistd: Mapping[str, Any], format: Callable[[LogEvent], str | None]) -> FileLogObserver:
    # As twistd itself does, which has no way to choose the format alone.
    path: str = twistd["logfile"] or ("-" if twistd["nodaemon"] else "twistd.log")
    if path == "-":
        if not twistd["nodaemon"]:
            raise SystemExit("a daemon has no terminal to log to: name a file with --logfile, or run twistd -n")
        return FileLogObserver(sys.stdout, format)
    file = LogFile.fromFullPath(path)  # type: ignore[no-untyped-call]
    signal.signal(signal.SIGUSR1, partial(_rotate, file))
    return FileLogObserver(file, format)


def _rotate(file: LogFile, *_: object) -> None:
    from twisted.internet import reactor

    reactor.callFromThread(file.rotate)  # type: ignore[attr-defined]


def _isOfPort(event: LogEvent) -> bool:
    message = event.get("message")
    return bool(message) and isinstance(message, tuple) and _OF_PORTS.fullmatch(str(message[0])) is not None


def _lastPart(name: str) -> str:
    return name.rpartition(".")[2]
