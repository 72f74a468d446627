# -*- test-case-name: tests.unit.kafka.broker.api.test_configapi -*-
"""
DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import Refused, errorOf, repeated
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.codec import Rows
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting
from ..brokersettings import PROPERTIES
from ..log.interface import InvalidTopicConfig
from .configvalues import SOURCE_STATIC_BROKER, ConfigValue, brokerValues, topicValues
from .onceflushed import onceFlushed
from .topicconfigs import TOPIC_CONFIGS, TYPE_LIST, TYPE_STRING, checkConfigs

_TOPIC = 2
_BROKER = 4
_CLIENT_METRICS = 16

_SET = 0
_DELETE = 1
_APPEND = 2
_SUBTRACT = 3


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
            configs = _brokerConfigs(broker, request)
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
    return _change(broker, request, _altered)


def alterConfigs(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    AlterConfigs: replace all settings that topics have.
    """
    return _change(broker, request, _replaced)


def listConfigResources(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    ListConfigResources: what has settings.  Version 0 asks for settings of clients' metrics, which are not here.
    """
    types = set(getattr(request.entity, "resource_types", (_CLIENT_METRICS,))) or {_TOPIC, _BROKER}
    resources = [(_BROKER, str(broker.nodeId))] if _BROKER in types else []
    if _TOPIC in types:
        resources += [(_TOPIC, name) for name in broker.log.topics]
    return {
        "error_code": ErrorCode.none,
        "config_resources": Rows(resources, lambda each: {"resource_type": each[0], "resource_name": each[1]}),
    }


def _change(
    broker: Broker, request: KafkaRequest, change: Callable[[Broker, str, Any], dict[str, str | None]]
) -> Steps[Answer | Waiting]:
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
            configs = checkConfigs(change(broker, name, resource.configs))
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
        name = change.name
        if name in duplicates:
            raise Refused(ErrorCode.invalid_request, f"the request changes {name} twice")
        if change.config_operation == _SET:
            altered[name] = change.value
            continue
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise InvalidTopicConfig(f"topics have no setting {name!r} here")
        if change.config_operation == _DELETE:
            altered.pop(name, None)
        elif change.config_operation in (_APPEND, _SUBTRACT) and config.type == TYPE_LIST:
            present = _elements(altered.get(name) or config.defaultIn(broker.settings))
            given = _elements(change.value)
            if change.config_operation == _APPEND:
                left = dict.fromkeys([*present, *given])
            else:
                left = dict.fromkeys(each for each in present if each not in given)
            altered[name] = ",".join(left)
        else:
            raise InvalidTopicConfig(f"{name} is no list to append to or to subtract from; it can be set or deleted")
    return altered


def _replaced(broker: Broker, topicName: str, configs: Any) -> dict[str, str | None]:
    broker.log.topic(topicName)
    for name in repeated(each.name for each in configs):
        raise Refused(ErrorCode.invalid_request, f"the request sets {name} twice")
    return {each.name: each.value for each in configs}


def _elements(value: str | None) -> list[str]:
    return [each for each in (value or "").split(",") if each]


def _topicConfigs(broker: Broker, topicName: str) -> list[dict[str, Any]]:
    own = broker.log.topic(topicName).configs
    return [
        _config(topicValues(broker.settings, config, own), config.name, config.type, config.help, isReadOnly=False)
        for config in TOPIC_CONFIGS.values()
    ]


def _brokerConfigs(broker: Broker, request: KafkaRequest) -> list[dict[str, Any]]:
    listener = ConfigValue("advertised.listeners", _listener(broker, request), SOURCE_STATIC_BROKER)
    return [
        _config(
            [listener], listener.name, TYPE_LIST, "Where this client finds the broker: `--advertise`.", isReadOnly=True
        ),
        *(
            _config(brokerValues(broker.settings, listed), listed.name, TYPE_STRING, listed.help, isReadOnly=True)
            for listed in PROPERTIES.values()
        ),
    ]


def _listener(broker: Broker, request: KafkaRequest) -> str:
    login = "SASL_" if request.connection.needsLogin else ""
    encryption = "SSL" if request.connection.isTLS else "PLAINTEXT"
    host, port = request.advertised
    return f"{login}{encryption}://{f'[{host}]' if ':' in host else host}:{port}"


def _config(values: list[ConfigValue], name: str, type: int, help: str, isReadOnly: bool) -> dict[str, Any]:
    return {
        "name": name,
        "value": values[0].value,
        "read_only": isReadOnly,
        "config_source": values[0].source,
        "synonyms": [each._asdict() for each in values],
        "config_type": type,
        "documentation": help,
    }
