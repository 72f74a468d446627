# -*- test-case-name: tests.unit.kafka.broker.api.test_configapi -*-
"""
DescribeConfigs and IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.brokersettings import PROPERTIES
from admission.kafka.kafkarequest import KafkaRequest
from admission.kafka.wire.codec import Rows
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting
from ..log.interface import InvalidTopicConfig, LogRefusal
from .refusals import Refused, errorOf, onceFlushed, repeated
from .topicconfigs import TOPIC_CONFIGS, TYPE_STRING, checkConfigs

_TOPIC = 2
_BROKER = 4

_SOURCE_TOPIC = 1
_SOURCE_STATIC_BROKER = 4
_SOURCE_DEFAULT = 5

_SET = 0
_DELETE = 1


def describeConfigs(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    describe = partial(_described, broker, request, _repeatedResources(request))
    return {"results": Rows(request.entity.resources, describe)}


def _described(
    broker: Broker, request: KafkaRequest, duplicates: Set[tuple[int, str]], resource: Any
) -> Mapping[str, Any]:
    result: dict[str, Any] = {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    try:
        _checkOnce(resource, duplicates)
        if resource.resource_type == _TOPIC:
            configs = _topicConfigs(broker, resource.resource_name)
        elif resource.resource_type == _BROKER and resource.resource_name in ("", str(broker.nodeId)):
            configs = _brokerConfigs(broker)
        else:
            raise Refused(
                ErrorCode.invalid_request,
                f"there are settings of topics and of broker {broker.nodeId}, not of "
                f"resource type {resource.resource_type}, {resource.resource_name!r}",
            )
        wanted = frozenset(resource.configuration_keys or ())
        left = [config for config in configs if not wanted or config["name"] in wanted]
        for config in left:
            if not getattr(request.entity, "include_synonyms", False):
                del config["synonyms"]
            if not getattr(request.entity, "include_documentation", False):
                del config["documentation"]
        result["configs"] = left
    except LogRefusal as refusal:
        result |= errorOf(refusal)
    return result


def incrementalAlterConfigs(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    IncrementalAlterConfigs: change settings of topics, either all of a topic's
    changes or none.
    """
    responses: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    duplicates = _repeatedResources(request)
    for resource in request.entity.resources:
        yield None
        response: dict[str, Any] = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        try:
            _checkOnce(resource, duplicates)
            if resource.resource_type != _TOPIC:
                raise Refused(
                    ErrorCode.invalid_request, "only the settings of topics can be changed while the broker runs"
                )
            name = resource.resource_name
            configs = checkConfigs(_altered(broker, name, resource.configs))
            if not request.entity.validate_only:
                broker.log.setTopicConfigs(name, configs)
                changed.append(response)
        except LogRefusal as refusal:
            response |= errorOf(refusal)
        responses.append(response)
    return onceFlushed(broker, request, changed, {"responses": responses})


def _repeatedResources(request: KafkaRequest) -> set[tuple[int, str]]:
    return repeated((resource.resource_type, resource.resource_name) for resource in request.entity.resources)


def _checkOnce(resource: Any, duplicates: Set[tuple[int, str]]) -> None:
    if (resource.resource_type, resource.resource_name) in duplicates:
        raise Refused(ErrorCode.invalid_request, "the request names the resource twice")


def _altered(broker: Broker, topicName: str, changes: Any) -> dict[str, str | None]:
    altered: dict[str, str | None] = dict(broker.log.topic(topicName).configs)
    duplicates = repeated(change.name for change in changes)
    for change in changes:
        if change.name in duplicates:
            raise Refused(ErrorCode.invalid_request, f"the request changes {change.name} twice")
        if change.config_operation == _SET:
            altered[change.name] = change.value
        elif change.config_operation == _DELETE:
            if change.name not in TOPIC_CONFIGS:
                raise InvalidTopicConfig(f"topics have no setting {change.name!r} here")
            altered.pop(change.name, None)
        else:
            raise InvalidTopicConfig(
                f"{change.name} can be set or deleted; there is nothing to append to or subtract from"
            )
    return altered


def _topicConfigs(broker: Broker, topicName: str) -> list[dict[str, Any]]:
    own = broker.log.topic(topicName).configs
    return [
        _config(
            config.name,
            own.get(config.name, config.default(broker.settings)),
            _SOURCE_TOPIC if config.name in own else _SOURCE_DEFAULT,
            config.type,
            config.help,
            isReadOnly=False,
        )
        for config in TOPIC_CONFIGS.values()
    ]


def _brokerConfigs(broker: Broker) -> list[dict[str, Any]]:
    values, places = broker.settings.asProperties(), broker.settings.places.keys()
    return [
        _config(
            listed.name,
            values[listed.name],
            _SOURCE_STATIC_BROKER if places & {listed.name, *listed.coarser} else _SOURCE_DEFAULT,
            TYPE_STRING,
            listed.help,
            isReadOnly=True,
        )
        for listed in PROPERTIES.values()
    ]


def _config(name: str, value: str, source: int, type: int, help: str, isReadOnly: bool) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": isReadOnly,
        "config_source": source,
        "synonyms": [{"name": name, "value": value, "source": source}],
        "config_type": type,
        "documentation": help,
    }
