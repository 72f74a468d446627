"""
Files of properties: they make settings, or are refused with L{SettingsError}; settings that Kafka's clients are told
are read as what they are; a place in a message is a line of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from admission.kafka.broker.brokersettings import PROPERTIES, loadSettings
from admission.kafka.client.consumersettings import ConsumerSettings, consumerSettings
from admission.kafka.property import Given, SettingsError, propertiesOf
from admission.kafka.serving.propertyfile import readPropertyFile

from ..scratch import scratch

MAX_BYTES = 1024

_PLACE: Final = re.compile(r".*:([0-9]+)", re.DOTALL)

_CONSUMER: Final = propertiesOf(ConsumerSettings)

TOKENS = [
    *(name.encode() + b"=" for each in (*PROPERTIES.values(), *_CONSUMER.values()) for name in each.names),
    *(b"-1", b"64KiB", b"5m", b"\\u0041", b"\\ud800", b"\\\n", b"\r", b"true", b"User:alice;User:CN=a\\,O=b"),
]


def seeds() -> Sequence[bytes]:
    defaults = [f"{each.name}={each.default}" for each in PROPERTIES.values() if " " not in each.default]
    consumer = [f"{each.name}={each.default}" for each in _CONSUMER.values()]
    return [
        *(line.encode() for line in defaults),
        "\n".join(defaults[:8]).encode(),
        *(b"\x00" + line.encode() for line in consumer),
        b"\x00bootstrap.servers=broker.example:9092,[::1]:9093\ngroup.id=g\n",
        b"# comment\r\n! another\nbroker.id : 7\nlog.retention.hours\\\n   = 5\n",
        b"\xef\xbb\xbfquota.producer.override=clientA\\:b:4M,clientB:1k",
        b"super.users=User:alice;User:CN=admin,O=Acme",
        b"log.retention.ms=1000\nlog.retention.minutes=5\nlog.retention.hours=1",
        b"br\\u006fker.id=5",
        b"a=\\ud83d\\ude00\nb=\\ud83d",
    ]


def check(data: bytes) -> None:
    isConsumer, contents = data[:1] == b"\x00", data.removeprefix(b"\x00")
    path = os.path.join(scratch(), "broker.properties")
    with open(path, "wb") as file:
        file.write(contents)
    try:
        given = list(readPropertyFile(path))
    except SettingsError as error:
        _checkMessage(error)
        return
    lineCount = len(re.findall(rb"\r\n|\r|\n", contents)) + 1
    for each in given:
        place = _PLACE.fullmatch(each.place)
        f"{each.name}={each.text}".encode()
        assert place is not None and 1 <= int(place[1]) <= lineCount, each
    try:
        if isConsumer:
            consumerSettings({each.name: each.text for each in given})
        else:
            _checkSettings(path, given)
    except SettingsError as error:
        _checkMessage(error)


def _checkSettings(path: str, given: Sequence[Given]) -> None:
    settings = loadSettings(path)
    properties = settings.asProperties()
    for attribute, listed in PROPERTIES.items():
        value = getattr(settings, attribute)
        written = properties[listed.name]
        if value is not None and written != "":
            read = listed.kind.parse(written)
            # Kafka's units are coarser than ours.
            isNumber = isinstance(value, int | float)
            assert abs(read - value) <= max(1e-3, 1e-5 * abs(value)) if isNumber else type(read) is type(value), listed
    written = "\n".join(f"{each.name}={each.text}" for each in given)
    assert len("".join(properties.values())) <= 10_000 + 4 * len(written)


def _checkMessage(error: SettingsError) -> None:
    str(error).encode("utf-8")
