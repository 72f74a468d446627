# -*- test-case-name: tests.unit.kafka.broker.api.test_groupapi -*-
"""
The requests of administrators about groups: DescribeGroups, ListGroups,
DeleteGroups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.wire.codec import Rows
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting
from ..groups.groupstate import Group, State
from ..groups.member import GroupRefusal
from .authorization import GROUP_OPERATIONS, authorizedOperations
from .groupapi import refusalOf

_FIRST_DESCRIPTION_WITH_ERROR = 6

_CLASSIC = "classic"
"""The only type of groups here; KIP-848 has others."""


def describeGroups(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    operations = {}
    if getattr(request.entity, "include_authorized_operations", False):
        operations["authorized_operations"] = authorizedOperations(broker, request, GROUP_OPERATIONS)

    def described(groupId: str) -> Mapping[str, Any]:
        group = broker.groups.get(groupId)
        if group is None:
            return _missing(request, groupId)
        return {**_described(group), **operations}

    # Each is answered once, since answers are larger than questions.
    return {"groups": Rows(list(dict.fromkeys(request.entity.groups)), described)}


def listGroups(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    ListGroups: all groups, or all in certain states.
    """
    states = {state.lower() for state in getattr(request.entity, "states_filter", ())}
    types = {each.lower() for each in getattr(request.entity, "types_filter", ())}
    groups = [
        group
        for group in broker.groups.all
        if (not states or group.state.value.lower() in states) and (not types or _CLASSIC in types)
    ]
    return {"error_code": ErrorCode.none, "groups": Rows(groups, _listed)}


def _listed(group: Group) -> Mapping[str, Any]:
    return {
        "group_id": group.groupId,
        "protocol_type": group.protocolType or "",
        "group_state": group.state.value,
        "group_type": _CLASSIC,
    }


def deleteGroups(broker: Broker, request: KafkaRequest) -> Steps[Waiting]:
    """
    DeleteGroups: remove groups that have no members, with their offsets.
    """
    groupIds = list(dict.fromkeys(request.entity.groups_names))
    verdicts: dict[str, ErrorCode] = dict.fromkeys(groupIds, ErrorCode.unknown_server_error)
    deleting: list[Deferred[None]] = []

    def noted(result: Failure | None, groupId: str) -> None:
        verdicts[groupId] = ErrorCode.none if result is None else refusalOf(result).errorCode

    for groupId in groupIds:
        yield None
        try:
            deleted = broker.groups.delete(groupId)
        except GroupRefusal as refusal:
            verdicts[groupId] = refusal.errorCode
        else:
            deleting.append(deleted.addBoth(noted, groupId))

    def answered(_: object) -> Answer:
        rows = Rows(groupIds, lambda groupId: {"group_id": groupId, "error_code": verdicts[groupId]})
        return {"results": rows}

    return DeferredList(deleting, consumeErrors=True).addCallback(answered)


def _missing(request: KafkaRequest, groupId: str) -> dict[str, Any]:
    described: dict[str, Any] = {"group_id": groupId, "group_state": State.DEAD.value}
    if request.apiVersion >= _FIRST_DESCRIPTION_WITH_ERROR:
        described["error_code"] = ErrorCode.group_id_not_found
        described["error_message"] = f"there is no group {groupId!r:.300}"
    return described


def _described(group: Group) -> dict[str, Any]:
    # While a group rebalances, metadata and assignments are changing.
    protocolName = group.protocolName if group.state is State.STABLE else None
    return {
        "error_code": ErrorCode.none,
        "group_id": group.groupId,
        "group_state": group.state.value,
        "protocol_type": group.protocolType or "",
        "protocol_data": protocolName or "",
        "members": [
            {
                "member_id": member.memberId,
                "group_instance_id": member.instanceId,
                "client_id": member.clientId,
                # Java writes an address without a name like this.
                "client_host": f"/{member.host}",
                "member_metadata": member.metadata(protocolName),
                "member_assignment": b"" if protocolName is None else member.assignment,
            }
            for member in group.members.values()
        ],
    }
