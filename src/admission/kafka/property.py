# -*- test-case-name: tests.unit.kafka.test_property -*-
"""
Settings classes whose fields are properties with Kafka's names.

The class is the table; to add a setting, add a field::

    @frozen(kw_only=True)
    class Settings:
        idleSeconds: float | None = setting(
            "connections.max.idle.ms", unlimited(MILLISECONDS), "10m", "When to close an idle connection."
        )
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from attrs import AttrsInstance, field, fields, frozen
from twisted.python.usage import UsageError

from ..units import formatSeconds, parseBytes, parseRate, parseSeconds

_LONGEST_SHOWN = 200
"""How much of an unknown name is told, and compared with others."""


class SettingsError(UsageError, ValueError):
    """
    Settings that cannot be used.  The message names the setting, the value and
    where it was given, and says what to write instead.
    """


@frozen
class Kind:
    """
    How the values of a property are read and written.

    @ivar unit: the unit of a bare number, such as C{"ms"}; empty
        for anything but sizes, times and rates.
    @ivar parse: reads a text; raises L{ValueError} with the right form.
    @ivar format: writes a value as Kafka does: bytes and milliseconds as whole
        numbers.
    """

    unit: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str] = str


@frozen
class Property:
    """
    @ivar name: Kafka's name.
    @ivar default: the default as a user would write it, or a description of a
        computed default.
    @ivar help: what it does, in a sentence.
    @ivar coarser: other names of the same setting, and the units of their
        bare numbers, in order of precedence; C{name} precedes them all.
    @ivar minimum: the smallest value, as a user would write it.
    @ivar maximum: the largest value, as a user would write it.
    @ivar choices: the possible values, or the possible elements of a list that
        must not be empty; everything is possible if C{choices} is empty.
    @ivar isReloaded: whether it may change while a server runs, see L{admission.kafka.serving.reload}.
    """

    name: str
    kind: Kind
    default: str
    help: str
    coarser: Mapping[str, str] = {}
    minimum: str | None = None
    maximum: str | None = None
    choices: Collection[str] = ()
    isReloaded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """
        All names, in order of precedence.
        """
        return (self.name, *self.coarser)

    def parse(self, text: str, name: str) -> Any:
        """
        Read C{text}, which was given under C{name}.

        @raise ValueError: if it cannot be read or is out of bounds.
        """
        if name in self.coarser and text.replace(".", "", 1).isdecimal():
            text += self.coarser[name]
        value = self.kind.parse(text)
        self.check(value, repr(text))
        return value

    def check(self, value: Any, shown: str) -> None:
        """
        @param shown: the value as messages show it.
        @raise ValueError: if C{value} is out of bounds.
        """
        if value is None:
            return
        if self.minimum is not None and value < self.kind.parse(self.minimum):
            raise ValueError(f"{shown} is too small: at least {self.minimum}")
        if self.maximum is not None and value > self.kind.parse(self.maximum):
            raise ValueError(f"{shown} is too large: at most {self.maximum}")
        if self.choices:
            isSequence = isinstance(value, tuple | list)
            words = value if isSequence else (value,)
            if not words or not set(words) <= set(self.choices):
                number = "one or more" if isSequence else "one"
                raise ValueError(f"{shown} is not possible: write {number} of {', '.join(self.choices)}")


@frozen
class Given:
    """
    A text that was given for a property.

    @ivar place: where it was given, such as C{"broker.properties:3"}; empty if
        there is nothing to say.
    """

    name: str
    text: str
    place: str = ""


def setting(name: str, kind: Kind, default: str, help: str, computed: Any = None, **others: Any) -> Any:
    """
    A field of a settings class, with its L{Property}.

    @param computed: an attrs factory, for a C{default} that is only a description.
    @param others: the other attributes of the property.
    """
    listed = Property(name, kind, default, help, **others)

    def check(settings: AttrsInstance, attribute: object, value: Any) -> None:
        try:
            listed.check(value, repr(value))
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None

    value = listed.parse(default, name) if computed is None else computed
    return field(default=value, validator=check, metadata={Property: listed})


def propertiesOf(settingsClass: type[AttrsInstance]) -> dict[str, Property]:
    """
    The L{Property} of each attribute of a settings class.
    """
    return {each.name: each.metadata[Property] for each in fields(settingsClass) if Property in each.metadata}


def parseAssignments(assignments: Iterable[str], option: str) -> Iterator[Given]:
    """
    Read texts of the form C{name=value}.

    @param option: the option that they were given with, for messages.
    @raise SettingsError: for a text of another form.
    """
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"{option} {assignment}: write {option} NAME=VALUE")
        yield Given(name.strip(), value.strip(), f"{option} {assignment}")


def parseGiven(
    properties: Mapping[str, Property], given: Iterable[Given], elsewhere: Mapping[str, str] = {}
) -> dict[str, Any]:
    """
    Read what was given.  No place takes precedence: a property that is given
    twice must have the same value.

    @param properties: see L{propertiesOf}.
    @param elsewhere: names that are no settings here, with the reason or the
        replacement.
    @return: values by attribute.
    @raise SettingsError: for names that are unknown, and for values that cannot
        be read, are out of bounds or contradict each other.
    """
    attributes = {name: attribute for attribute, listed in properties.items() for name in listed.names}
    chosen: dict[str, tuple[Any, Given]] = {}
    for each in given:
        name, place = each.name, each.place and f"{each.place}: "
        if name in elsewhere:
            raise SettingsError(f"{place}{name} is a property of Kafka's that is not used here: {elsewhere[name]}")
        if name not in attributes:
            shown = name[:_LONGEST_SHOWN]
            near = difflib.get_close_matches(shown, attributes, n=1)
            remedy = f"the nearest is {near[0]}" if near else "docs/configuration.md has them all"
            raise SettingsError(f"{place}unknown property {shown!r}; {remedy}")
        try:
            value = properties[attributes[name]].parse(each.text, name)
        except ValueError as error:
            raise SettingsError(f"{place}{name}: {error}") from error
        valueBefore, before = chosen.setdefault(name, (value, each))
        if valueBefore != value:
            raise SettingsError(
                f"{name} is {before.text!r} at {before.place} but {each.text!r} at {each.place}; keep one of them"
            )
    # The name with precedence comes last.
    return {attributes[name]: chosen[name][0] for name in reversed(attributes) if name in chosen}


def formatSettings(settings: AttrsInstance) -> dict[str, str]:
    """
    Every setting by Kafka's name, written as Kafka writes it.
    """
    return {
        listed.name: listed.kind.format(getattr(settings, attribute))
        for attribute, listed in propertiesOf(type(settings)).items()
    }


def propertyTable(properties: Iterable[Property]) -> str:
    """
    Properties as a table in Markdown; those have a sign that may change while the server runs.
    """
    rows = ["| property | default | unit | what it does |", "|---|---|---|---|"]
    for each in properties:
        names = " ".join(f"`{name}`" for name in each.names) + " ↻" * each.isReloaded
        units = ", ".join((each.kind.unit, *each.coarser.values()))
        rows.append(f"| {names} | {each.default} | {units} | {each.help} |")
    return "\n".join(rows) + "\n"


def _parseInteger(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _parseBoolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def _parseWords(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _parseAddresses(text: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for word in _parseWords(text):
        host, colon, port = word.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"{word!r} is no address: write HOST:PORT")
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)


def _formatAddresses(addresses: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


def _parseSizeOrOff(text: str) -> int:
    return 0 if text.startswith("-") and _parseInteger(text) < 0 else parseBytes(text)


def _parseQuota(text: str) -> float:
    bytesPerSecond = parseRate(text)
    if bytesPerSecond <= 0:
        raise ValueError(f"{text!r} would let nothing pass: write a positive rate, or -1 for no limit")
    return bytesPerSecond


def _parseOverrides(text: str) -> dict[str, float]:
    overrides: dict[str, float] = {}
    for each in _parseWords(text):
        clientId, colon, quota = each.rpartition(":")
        if not colon or not clientId:
            raise ValueError(f"{each!r} is not of the form CLIENT:RATE, as in clientA:4M,clientB:10M")
        if clientId in overrides:
            raise ValueError(f"{clientId!r} is given twice")
        overrides[clientId] = _parseQuota(quota)
    return overrides


def _parsePrincipals(text: str) -> frozenset[str]:
    names = set()
    for each in filter(None, map(str.strip, text.split(";"))):
        kind, _, name = each.partition(":")
        if kind != "User" or not name:
            raise ValueError(f"{each!r} is no principal: write User:NAME, as in User:alice;User:CN=admin,O=Acme")
        names.add(name)
    return frozenset(names)


def _formatPrincipals(names: Iterable[str]) -> str:
    return ";".join(f"User:{name}" for name in sorted(names))


INTEGER = Kind("", _parseInteger)
BOOLEAN = Kind("", _parseBoolean, lambda value: str(value).lower())
TEXT = Kind("", str)
TEXT_OR_NONE = Kind("", lambda text: text or None, lambda value: value or "")
WORDS = Kind("", _parseWords, ",".join)
"""A tuple of words, given with commas."""

ADDRESSES = Kind("", _parseAddresses, _formatAddresses)
"""A tuple of hosts and ports, given as C{HOST:PORT} with commas."""

PRINCIPALS = Kind("", _parsePrincipals, _formatPrincipals)
"""A set of names, given as C{User:NAME} with semicolons, since the subjects of certificates have commas."""

SIZE = Kind("bytes", parseBytes)
SIZE_OR_OFF = Kind("bytes", _parseSizeOrOff)
"""A size; every negative number is 0."""

DURATION = Kind("s", parseSeconds, formatSeconds)
MILLISECONDS = Kind("ms", partial(parseSeconds, defaultUnit="ms"), lambda value: f"{value * 1000:.0f}")
"""A time in seconds, whose bare number counts milliseconds; for the names that end in C{.ms}."""

SECONDS = Kind("s", parseSeconds, "{:g}".format)
"""A time in seconds, written without a unit; for the names that end in C{.seconds}."""

QUOTA = Kind("bytes/s", _parseQuota, "{:.0f}".format)
"""A positive number of bytes a second."""

QUOTA_OVERRIDES = Kind(
    "bytes/s", _parseOverrides, lambda value: ",".join(f"{client}:{quota:.0f}" for client, quota in value.items())
)
"""
Quotas by client id, given as C{clientA:4M,clientB:10M}.  A client id may
contain colons, but no commas.
"""


def unlimited(kind: Kind) -> Kind:
    """
    C{kind}, or C{-1} for no limit, which is L{None}.
    """
    return Kind(
        kind.unit,
        lambda text: None if text == "-1" else kind.parse(text),
        lambda value: "-1" if value is None else kind.format(value),
    )
