# -*- test-case-name: tests.unit.kafka.broker.api.test_configapi -*-
"""
The values of settings, and where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from admission.kafka.property import Property

from ..brokersettings import PROPERTIES, Settings
from .topicconfigs import TopicConfig

SOURCE_TOPIC: Final = 1
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5

_PROPERTIES: Final = {listed.name: listed for listed in PROPERTIES.values()}


class ConfigValue(NamedTuple):
    """
    @ivar name: the name under which it was given.
    @ivar source: where it was given, as the protocol's number for that.
    """

    name: str
    value: str
    source: int


def brokerValues(settings: Settings, listed: Property) -> list[ConfigValue]:
    """
    The values of a property: the one in force, then the one that would be in force without it, and so on.
    """
    name = listed.name
    inForce = settings.asProperties()[name]
    if settings.places.keys().isdisjoint(listed.names):
        return [ConfigValue(name, inForce, SOURCE_DEFAULT)]
    return [
        ConfigValue(name, inForce, SOURCE_STATIC_BROKER),
        ConfigValue(name, _defaults()[name], SOURCE_DEFAULT),
    ]


def topicValues(settings: Settings, config: TopicConfig, own: Mapping[str, str]) -> list[ConfigValue]:
    """
    The same for a setting of a topic.

    @param own: the topic's own settings.
    """
    if config.property is None:
        values = [ConfigValue(config.name, config.default, SOURCE_DEFAULT)]
    else:
        values = brokerValues(settings, _PROPERTIES[config.property])
    return [ConfigValue(config.name, own[config.name], SOURCE_TOPIC), *values] if config.name in own else values


@cache
def _defaults() -> Mapping[str, str]:
    return Settings().asProperties()
