"""L{admission.kafka.serving.logformat}."""

from __future__ import annotations

import json
from typing import Any

from twisted.application.twist._options import TwistOptions
from twisted.logger import Logger, capturedLogs
from twisted.python import log
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.scripts.twistd import ServerOptions
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.logformat import asJson, asText, logObserverMaker


class Talker:
    """Something that logs."""

    log = Logger()


def logged(function: Any, *args: Any, **fields: Any) -> Any:
    """The event that a function logs."""
    with capturedLogs() as events:
        function(*args, **fields)
    (event,) = events
    return {**event, "log_time": 1_790_000_000.25}


class TextTests(SynchronousTestCase):
    """Lines for people."""

    def test_prefix(self) -> None:
        """Of a long name of what logs, the last part is shown, with the level."""
        event = logged(Talker.log.warn, "closing {peer}", peer="192.0.2.1:5")
        self.assertRegex(
            asText(event) or "", r"^2026-09-2\dT\d\d:\d\d:20[+-]\d{4} \[Talker#warn\] closing 192.0.2.1:5\n$"
        )

    def test_continued(self) -> None:
        """What has several lines is one entry, so that nobody makes up another by what it calls itself."""
        event = logged(Talker.log.info, "{name}", name="a\n2026-09-21T00:00:00+0000 [Talker#info] b")
        self.assertEqual((asText(event) or "").count("\n\t"), 1)

    def test_others(self) -> None:
        """What Twisted logs in its older way is as it was, and what says nothing is left out."""
        self.assertIn(" [-] hello\n", asText(logged(log.msg, "hello")) or "")
        self.assertIsNone(asText({}))

    def test_ports(self) -> None:
        """What Twisted says of single ports of a server is left out, but not what others say of theirs."""
        for text in (
            "ListenerFactory starting on 9092",
            "ListenerFactory (TLS) starting on 9093",
            "(TLS Port 9093 Closed)",
        ):
            self.assertIsNone(asText(logged(log.msg, text)))
            self.assertIsNone(asJson(logged(log.msg, text)))
        for text in "StatusSite starting on 9090", "a client says: (TCP Port 9092 Closed)":
            self.assertIn(text, asText(logged(log.msg, text)) or "")


class JsonTests(SynchronousTestCase):
    """Lines for programs."""

    def object(self, event: Any) -> Any:
        """The object in a line."""
        line = asJson(event)
        assert line is not None
        self.assertEqual(line.count("\n"), 1)
        return json.loads(line)

    def test_fields(self) -> None:
        """An event is an object, with what its message was made of."""
        event = logged(Talker.log.warn, "closing {peer}\n: {count}", peer="192.0.2.1:5", count=3, link=object())
        self.assertEqual(
            self.object(event),
            {
                "time": "2026-09-21T14:13:20.250+00:00",
                "level": "warn",
                "source": "Talker",
                "message": "closing 192.0.2.1:5\n: 3",
                "fields": {"peer": "192.0.2.1:5", "count": 3},
            },
        )

    def test_traceback(self) -> None:
        """An exception has its traceback."""
        found = self.object(logged(Talker.log.failure, "it failed", Failure(ZeroDivisionError("by nothing"))))
        self.assertEqual((found["level"], found["message"]), ("critical", "it failed"))
        self.assertIn("ZeroDivisionError: by nothing", found["traceback"])
        self.flushLoggedErrors(ZeroDivisionError)

    def test_others(self) -> None:
        """What Twisted logs in its older way has the same form, and what says nothing is left out."""
        found = self.object(logged(log.msg, "hello"))
        self.assertEqual((found["message"], found["fields"]), ("hello", {}))
        self.assertIsNone(asJson({}))


class ChoiceTests(SynchronousTestCase):
    """The format in which the log is written."""

    def refusal(self, options: Any, wanted: str = "json") -> str:
        """How a format is refused."""
        return str(self.assertRaises(UsageError, logObserverMaker, options, wanted))

    def test_chosen(self) -> None:
        """Without C{twistd} nothing is to be done; with it the format is ours unless something else is asked for."""
        self.assertIsNone(logObserverMaker(None, None))
        options: Any = ServerOptions()
        for wanted in (None, "text", "json"):
            self.assertIsNot(logObserverMaker(options, wanted), None)
        for option in ("syslog", "logger"):
            self.assertIsNone(logObserverMaker({**options, option: "something"}, None))  # type: ignore[arg-type]
        self.assertIsNone(logObserverMaker(TwistOptions(), None))

    def test_mistakes(self) -> None:
        """There are two formats, and a log observer of another kind has another format."""
        options: Any = ServerOptions()
        self.assertEqual(self.refusal(options, "xml"), "--log-format xml: write text or json")
        for option in ("syslog", "logger"):
            self.assertIn(f"is chosen by --{option}", self.refusal({**options, option: "something"}))
        self.assertIn("twist --log-format=json", self.refusal(TwistOptions()))

    def test_daemonWithoutFile(self) -> None:
        """A daemon cannot log to a terminal."""
        options: Any = ServerOptions()
        make = logObserverMaker({**options, "logfile": "-"}, None)  # type: ignore[arg-type]
        assert make is not None
        self.assertIn("--logfile", str(self.assertRaises(SystemExit, make)))
