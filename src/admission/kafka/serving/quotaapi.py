# -*- test-case-name: tests.unit.kafka.serving.test_quotaapi -*-
"""
DescribeClientQuotas and AlterClientQuotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.wire.codec import Rows
from admission.names import canonicalAddress

from ..storage.itable import LogRefusal
from .kafkarequest import KafkaRequest
from .quotalimits import Alteration
from .refusals import Refused, errorOf, refusedEach, repeated
from .server import Server

_ATTRIBUTES: Mapping[str, str] = {"user": "user", "client-id": "clientId", "ip": "ip"}
"""The attribute of L{QuotaEntity} for each type of entity on the wire."""

_EXACTLY = 0
_DEFAULT = 1
_ANY = 2


def describeClientQuotas(server: Server[Any], request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeClientQuotas: the limits of all entities that match a filter,
    including the limits that the broker was started with.
    """
    try:
        wanted = _wanted(request.entity.components)
    except Refused as refusal:
        return {**errorOf(refusal), "entries": None}
    return {"entries": Rows(list(server.limits.describe(wanted, request.entity.strict)), _described)}


def _described(limited: tuple[QuotaEntity, Mapping[str, float]]) -> Mapping[str, Any]:
    entity, limits = limited
    values = [{"key": name, "value": limit} for name, limit in sorted(limits.items())]
    return {"entity": _components(entity), "values": values}


def alterClientQuotas(server: Server[Any], request: KafkaRequest) -> Deferred[Any]:
    """
    AlterClientQuotas: change limits, either all of an entity's changes or none.
    """
    entries = request.entity.entries
    refusals: list[LogRefusal | None] = [None] * len(entries)
    alterations: dict[int, Alteration] = {}
    for index, entry in enumerate(entries):
        try:
            alterations[index] = Alteration(_entity(entry.entity), _changes(entry.ops))
        except Refused as refusal:
            refusals[index] = refusal
    duplicates = repeated(alteration.entity for alteration in alterations.values())
    for index, alteration in list(alterations.items()):
        if alteration.entity in duplicates:
            refusals[index] = Refused(ErrorCode.invalid_request, "the request names the entity twice")
            del alterations[index]

    def answer(verdicts: Sequence[LogRefusal | None]) -> Mapping[str, Any]:
        for index, verdict in zip(alterations, verdicts, strict=True):
            refusals[index] = verdict
        return {
            "entries": [
                {
                    "entity": [
                        {"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity
                    ],
                    **({} if refusal is None else errorOf(refusal)),
                }
                for entry, refusal in zip(entries, refusals, strict=True)
            ]
        }

    by = f"{request.principal} at {request.host}"
    altered = server.limits.alter(list(alterations.values()), request.entity.validate_only, by)
    return altered.addCallback(answer)


def quotasForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to AlterClientQuotas.
    """

    def describe(entry: Any) -> dict[str, Any]:
        entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
        return {"entity": entity, "error_code": ErrorCode.cluster_authorization_failed}

    return {"entries": refusedEach(request.entity.entries, describe, reason)}


def _wanted(components: Sequence[Any]) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {}
    for component in components:
        kind, matchType, name = component.entity_type, component.match_type, component.match
        attribute = _ATTRIBUTES.get(kind)
        if attribute is None:
            # Kafka answers with this error, not with that of AlterClientQuotas: a later version may know more.
            raise Refused(
                ErrorCode.unsupported_version if kind else ErrorCode.invalid_request,
                f"there are no entities of type {kind!r}, only {', '.join(_ATTRIBUTES)}",
            )
        if attribute in wanted:
            raise Refused(ErrorCode.invalid_request, f"the filter names {kind} twice")
        if matchType not in (_EXACTLY, _DEFAULT, _ANY):
            raise Refused(ErrorCode.invalid_request, f"match type {matchType} of {kind} is not 0, 1 or 2")
        if (name is not None) != (matchType == _EXACTLY):
            wording = "a" if matchType == _EXACTLY else "no"
            raise Refused(ErrorCode.invalid_request, f"match type {matchType} of {kind} needs {wording} name")
        if attribute == "ip" and name is not None:
            # What is no address matches none.
            with suppress(ValueError):
                name = canonicalAddress(name)
        wanted[attribute] = {_EXACTLY: name, _DEFAULT: DEFAULT, _ANY: None}[matchType]
    if "ip" in wanted and len(wanted) > 1:
        raise Refused(ErrorCode.invalid_request, "no entity has both an ip and a user or client-id")
    return wanted


def _entity(components: Sequence[Any]) -> QuotaEntity:
    names: dict[str, str] = {}
    for component in components:
        kind, name = component.entity_type, component.entity_name
        attribute = _ATTRIBUTES.get(kind)
        if attribute is None:
            raise Refused(
                ErrorCode.invalid_request, f"there are no entities of type {kind!r}, only {', '.join(_ATTRIBUTES)}"
            )
        if attribute in names:
            raise Refused(ErrorCode.invalid_request, f"the entity has two components of type {kind}")
        if name == DEFAULT:
            raise Refused(ErrorCode.invalid_request, f"{name} is no name; the default entity is the one without a name")
        names[attribute] = DEFAULT if name is None else name
    return QuotaEntity(**names)


def _changes(ops: Sequence[Any]) -> dict[str, float | None]:
    for name in repeated(op.key for op in ops):
        raise Refused(ErrorCode.invalid_request, f"the request changes {name} twice")
    return {op.key: None if op.remove else op.value for op in ops}


def _components(entity: QuotaEntity) -> list[dict[str, str | None]]:
    return [
        {"entity_type": kind, "entity_name": None if name == DEFAULT else name}
        for kind, name in ((kind, getattr(entity, attribute)) for kind, attribute in _ATTRIBUTES.items())
        if name is not None
    ]
