"""Tests for L{admission.kafka.property}."""

from __future__ import annotations

import re
from typing import Any

from attrs import Factory, field, frozen
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.brokersettings import Settings
from admission.kafka.client.consumersettings import ConsumerSettings
from admission.kafka.gateway.gatewaysettings import GatewaySettings
from admission.kafka.property import (
    ADDRESSES,
    BOOLEAN,
    DURATION,
    INTEGER,
    MILLISECONDS,
    PRINCIPALS,
    QUOTA,
    QUOTA_OVERRIDES,
    SECONDS,
    SIZE,
    SIZE_OR_OFF,
    TEXT,
    TEXT_OR_NONE,
    WORDS,
    Given,
    Kind,
    SettingsError,
    formatSettings,
    parseAssignments,
    parseGiven,
    propertiesOf,
    propertyTable,
    setting,
    unlimited,
)
from admission.kafka.serving.serversettings import ServerSettings
from tests.kit.checkout import ROOT


@frozen(kw_only=True)
class ProxySettings:
    """An example of a settings class."""

    places: tuple[str, ...] = field(default=())
    retentionSeconds: float | None = setting(
        "retention.ms", unlimited(MILLISECONDS), "7d", "How long.", coarser={"retention.hours": "h"}, minimum="1ms"
    )
    sizeBytes: int = setting("size.bytes", SIZE, "1k", "How much.", minimum="1", maximum="1MiB")
    threads: int = setting("threads", INTEGER, "as many as there are cores", "How many.", computed=Factory(lambda: 2))
    order: str = setting("order", TEXT, "first", "Which first.", choices=("first", "last"))
    filters: tuple[str, ...] = setting("filters", WORDS, "gzip", "Which.", choices=("gzip", "lz4"))


PROPERTIES = propertiesOf(ProxySettings)
RETENTION = PROPERTIES["retentionSeconds"]


class KindTests(SynchronousTestCase):
    """Each kind reads and writes its values."""

    def test_parse(self) -> None:
        """Sizes and times take units; a number without one counts the unit of the kind."""
        for kind, text, value in [
            (INTEGER, "-3", -3),
            (BOOLEAN, "True", True),
            (BOOLEAN, "false", False),
            (TEXT, "a b", "a b"),
            (TEXT_OR_NONE, "", None),
            (WORDS, "a, b,", ("a", "b")),
            (ADDRESSES, "one.example.org:9092, [::1]:9093", (("one.example.org", 9092), ("::1", 9093))),
            (PRINCIPALS, "User:alice; User:CN=x,O=y;User:a:b;;User:alice;", {"alice", "CN=x,O=y", "a:b"}),
            (PRINCIPALS, "", set()),
            (SIZE, "4k", 4000),
            (SIZE_OR_OFF, "4k", 4000),
            (SIZE_OR_OFF, "-7", 0),
            (DURATION, "3", 3.0),
            (SECONDS, "500ms", 0.5),
            (MILLISECONDS, "3", 0.003),
            (QUOTA, "2M", 2e6),
            (QUOTA_OVERRIDES, "clientA:4M, b:c:10M,", {"clientA": 4e6, "b:c": 1e7}),
            (QUOTA_OVERRIDES, "", {}),
            (unlimited(SIZE), "1k", 1000),
            (unlimited(SIZE), "-1", None),
        ]:
            self.assertEqual(kind.parse(text), value)

    def test_refused(self) -> None:
        """A text that cannot be read is quoted."""
        for kind, text in [
            (INTEGER, "1.5"),
            (BOOLEAN, "yes"),
            (ADDRESSES, "broker"),
            (ADDRESSES, "broker:http"),
            (PRINCIPALS, "alice"),
            (PRINCIPALS, "Group:alice"),
            (PRINCIPALS, "user:alice"),
            (PRINCIPALS, "User:"),
            (SIZE_OR_OFF, "-4k"),
            (SIZE_OR_OFF, "x"),
            (QUOTA, "0"),
            (QUOTA_OVERRIDES, "clientA"),
            (QUOTA_OVERRIDES, ":4M"),
        ]:
            self.assertIn(repr(text), str(self.assertRaises(ValueError, kind.parse, text)))

    def test_overrideTwice(self) -> None:
        """A client has one quota."""
        self.assertIn("'a' is given twice", str(self.assertRaises(ValueError, QUOTA_OVERRIDES.parse, "a:1k,a:2k")))

    def test_format(self) -> None:
        """Values are written as Kafka writes them, and are read back as the same."""
        cases: list[tuple[Kind, Any, str]] = [
            (MILLISECONDS, 0.25, "250"),
            (unlimited(MILLISECONDS), None, "-1"),
            (unlimited(MILLISECONDS), 1.0, "1000"),
            (SIZE, 4096, "4096"),
            (DURATION, 30.0, "30s"),
            (SECONDS, 1.0, "1"),
            (SECONDS, 0.5, "0.5"),
            (BOOLEAN, True, "true"),
            (TEXT_OR_NONE, None, ""),
            (WORDS, ("a", "b"), "a,b"),
            (PRINCIPALS, frozenset(("bob", "CN=x,O=y")), "User:CN=x,O=y;User:bob"),
            (ADDRESSES, (("broker", 1), ("::1", 2)), "broker:1,[::1]:2"),
            (QUOTA, 4e6, "4000000"),
            (QUOTA_OVERRIDES, {"a": 4e6, "b": 1e7}, "a:4000000,b:10000000"),
        ]
        for kind, value, text in cases:
            self.assertEqual((kind.format(value), kind.parse(text)), (text, value))


class PropertyTests(SynchronousTestCase):
    """L{Property} knows its names and its bounds."""

    def test_coarser(self) -> None:
        """
        What a bare number counts depends on the name it is given under; a
        number with a unit means the same under every name.
        """
        self.assertEqual(RETENTION.parse("5", "retention.ms"), 0.005)
        self.assertEqual(RETENTION.parse("1.5", "retention.hours"), 5400.0)
        self.assertEqual(RETENTION.parse("2d", "retention.hours"), 172800.0)

    def test_unlimitedUnderEveryName(self) -> None:
        """C{-1} means no limit, whatever the unit."""
        for name in RETENTION.names:
            self.assertIs(RETENTION.parse("-1", name), None)

    def test_bounds(self) -> None:
        """
        A value out of bounds is refused with what is possible, when it is read and when the class
        is made from values.
        """
        self.assertEqual(PROPERTIES["sizeBytes"].parse("1MiB", "size.bytes"), 1 << 20)
        for attribute, text, value, remedy in [
            ("sizeBytes", "0", 0, "at least 1"),
            ("sizeBytes", "2MiB", 2 << 20, "at most 1MiB"),
            ("retentionSeconds", "0", 0.0, "at least 1ms"),
            ("order", "middle", "middle", "write one of first, last"),
            ("filters", "gzip,zstd", ("gzip", "zstd"), "write one or more of gzip, lz4"),
            ("filters", "gzip,zstd", ["gzip", "zstd"], "write one or more of gzip, lz4"),
            ("filters", "", (), "write one or more of gzip, lz4"),
        ]:
            listed = PROPERTIES[attribute]
            message = str(self.assertRaises(ValueError, listed.parse, text, listed.name))
            self.assertIn(repr(text), message)
            self.assertTrue(message.endswith(remedy), message)
            message = str(self.assertRaises(SettingsError, ProxySettings, **{attribute: value}))
            self.assertTrue(message.startswith(f"{listed.name}: {value!r}"), message)
            self.assertTrue(message.endswith(remedy), message)


class ParseGivenTests(SynchronousTestCase):
    """L{parseGiven} makes values of texts."""

    def parse(self, *given: tuple[str, str, str]) -> dict[str, Any]:
        """The values of names, texts and places."""
        return parseGiven(PROPERTIES, [Given(*each) for each in given], {"listeners": "use --listen"})

    def refusal(self, *given: tuple[str, str, str]) -> str:
        """The message with which C{given} is refused."""
        return str(self.assertRaises(SettingsError, self.parse, *given))

    def test_values(self) -> None:
        """Values are by attribute, and what was not given is not there."""
        self.assertEqual(self.parse(), {})
        values = self.parse(("size.bytes", "2k", "file:1"), ("threads", "3", ""))
        self.assertEqual(values, {"sizeBytes": 2000, "threads": 3})
        self.assertEqual(ProxySettings(**values).retentionSeconds, 604800.0)

    def test_precedence(self) -> None:
        """Of the names of one setting, the finest that was given wins."""
        hours, milliseconds = ("retention.hours", "1", ""), ("retention.ms", "5", "")
        self.assertEqual(self.parse(hours), {"retentionSeconds": 3600.0})
        self.assertEqual(self.parse(milliseconds, hours), {"retentionSeconds": 0.005})

    def test_twice(self) -> None:
        """
        A setting may be given twice if the value is the same, however it is
        written; otherwise both places are named.
        """
        self.assertEqual(self.parse(("size.bytes", "1k", "a"), ("size.bytes", "1000", "b")), {"sizeBytes": 1000})
        self.assertEqual(
            self.refusal(("size.bytes", "1k", "file:1"), ("size.bytes", "2k", "--set size.bytes=2k")),
            "size.bytes is '1k' at file:1 but '2k' at --set size.bytes=2k; keep one of them",
        )

    def test_mistakes(self) -> None:
        """
        A message names the place, the setting and the value, and says what to write; for an unknown name that is the
        nearest known one, if there is one that is near.
        """
        for given, message in [
            (("size.byte", "1", "file:3"), "file:3: unknown property 'size.byte'; the nearest is size.bytes"),
            (("retention.hour", "1", ""), "unknown property 'retention.hour'; the nearest is retention.hours"),
            (("foo", "1", ""), "unknown property 'foo'; docs/configuration.md has them all"),
            (("listeners", "", "f:3"), "f:3: listeners is a property of Kafka's that is not used here: use --listen"),
            (("threads", "two", "file:3"), "file:3: threads: 'two' is not a whole number"),
            (("size.bytes", "0", ""), "size.bytes: '0' is too small: at least 1"),
            (("retention.hours", "0", ""), "retention.hours: '0h' is too small: at least 1ms"),
        ]:
            self.assertEqual(self.refusal(given), message)

    def test_assignments(self) -> None:
        """An assignment has a name and a value, and white space around them does not count."""
        given = list(parseAssignments(["threads = 7", "order=a=b"], "--set"))
        self.assertEqual(given, [Given("threads", "7", "--set threads = 7"), Given("order", "a=b", "--set order=a=b")])
        error = self.assertRaises(SettingsError, list, parseAssignments(["threads"], "--set"))
        self.assertEqual(str(error), "--set threads: write --set NAME=VALUE")


class TableTests(SynchronousTestCase):
    """The tables of the broker and the consumer agree with themselves and with the manual."""

    def test_columns(self) -> None:
        """A row has all names, the default, the units of bare numbers, and the help text."""
        self.assertEqual(
            propertyTable(PROPERTIES.values()).splitlines()[2:5],
            [
                "| `retention.ms` `retention.hours` | 7d | ms, h | How long. |",
                "| `size.bytes` | 1k | bytes | How much. |",
                "| `threads` | as many as there are cores |  | How many. |",
            ],
        )

    def test_documentation(self) -> None:
        """C{docs/configuration.md} holds all tables as the code has them."""
        page = ROOT.joinpath("docs", "configuration.md").read_text(encoding="utf-8")
        tables = re.findall(r"^\| property (?:.*\n\|)+.*\n", page, re.MULTILINE)
        common = propertiesOf(ServerSettings)
        wanted = [propertyTable(common.values())]
        for each in (Settings, GatewaySettings, ConsumerSettings):
            wanted.append(propertyTable([listed for name, listed in propertiesOf(each).items() if name not in common]))
        self.assertEqual(tables, wanted)

    def test_names(self) -> None:
        """A name belongs to one property."""
        for each in (Settings, GatewaySettings, ConsumerSettings):
            names = [name for listed in propertiesOf(each).values() for name in listed.names]
            self.assertEqual(len(set(names)), len(names))

    def test_formatSettings(self) -> None:
        """What is written as Kafka writes it is read back as the same settings."""
        broker = Settings(logRetentionSeconds=None, logFlushIntervalSeconds=0.25, queuedMaxRequestBytes=0)
        consumer = ConsumerSettings(bootstrapServers=(("127.0.0.1", 9092),))
        for settings in (broker, consumer):
            properties, texts = propertiesOf(type(settings)), formatSettings(settings)
            values = parseGiven(properties, [Given(name, text) for name, text in texts.items()])
            self.assertEqual(type(settings)(**values), settings)

    def test_kinds(self) -> None:
        """A name says what a bare number counts: C{.ms} milliseconds, C{.seconds} seconds."""
        for each in (Settings, ConsumerSettings):
            for listed in propertiesOf(each).values():
                for ending, unit in [(".ms", "ms"), (".seconds", "s"), (".timeout", "s"), (".bytes", "bytes")]:
                    if listed.name.endswith(ending):
                        self.assertEqual(listed.kind.unit, unit, listed.name)

    def test_units(self) -> None:
        """The unit in the table is what a number without one counts."""
        scales = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "bytes": 1, "bytes/s": 1}
        for listed in propertiesOf(Settings).values():
            if listed.kind.unit and listed.kind is not QUOTA_OVERRIDES:
                for name, unit in zip(listed.names, (listed.kind.unit, *listed.coarser.values()), strict=True):
                    value = listed.kind.parse("7" + listed.coarser.get(name, ""))
                    self.assertEqual(value, 7 * scales[unit], name)
