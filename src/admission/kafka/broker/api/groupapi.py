# -*- test-case-name: tests.unit.kafka.broker.api.test_groupapi -*-
"""
The requests of members of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from admission.interfaces import PARKED
from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting, Work
from ..groups.member import GroupRefusal, JoinRequest, JoinResult, MemberRequest, SyncResult
from ..groups.subscriptions import CONSUMER_PROTOCOL_TYPE, NO_TOPICS, Subscription, decodingBytes, subscriptionIn

_FIRST_JOIN_THAT_NEEDS_ITS_ID = 4
_FIRST_JOIN_THAT_MAY_SKIP = 9
_FIRST_LEAVE_OF_SEVERAL = 3

_LARGE_DECODING_BYTES = 256 << 10
"""The memory that it takes to decode about a thousand names."""


def joinGroup(broker: Broker, request: KafkaRequest) -> Steps[Waiting]:
    """
    JoinGroup: answered when all members have joined.
    """
    entity = request.entity
    sessionSeconds = entity.session_timeout.total_seconds()
    # Version 0 has one timeout for both; a rebalance timeout of zero has been seen to make groups spin (KAFKA-8653).
    rebalanceSeconds = entity.rebalance_timeout.total_seconds() if hasattr(entity, "rebalance_timeout") else -1.0
    protocols = tuple((protocol.name, protocol.metadata) for protocol in entity.protocols)
    subscription = NO_TOPICS
    if entity.protocol_type == CONSUMER_PROTOCOL_TYPE:
        subscription = yield from _subscriptionIn(broker, request, [metadata for _, metadata in protocols])
    joinRequest = JoinRequest(
        groupId=entity.group_id,
        memberId=entity.member_id,
        instanceId=getattr(entity, "group_instance_id", None),
        clientId=request.clientId,
        host=request.host,
        holder=request.connection.holder,
        connection=request.connection,
        sessionSeconds=sessionSeconds,
        rebalanceSeconds=rebalanceSeconds if rebalanceSeconds > 0 else sessionSeconds,
        protocolType=entity.protocol_type,
        protocols=protocols,
        subscription=subscription,
        mustKnowItsId=request.apiVersion >= _FIRST_JOIN_THAT_NEEDS_ITS_ID,
        maySkipAssignment=request.apiVersion >= _FIRST_JOIN_THAT_MAY_SKIP,
    )
    return maybeDeferred(broker.groups.join, joinRequest).addCallbacks(_joined, _refused)


def _subscriptionIn(broker: Broker, request: KafkaRequest, metadata: list[bytes]) -> Steps[Subscription]:
    """
    The topics that a member reads.  A long list is decoded when there is memory for it, and for few members at a time,
    because Python keeps the memory of the decoded pieces for a while.
    """
    sizeBytes = sum(map(decodingBytes, metadata))
    if sizeBytes <= _LARGE_DECODING_BYTES:
        return (yield from subscriptionIn(metadata))
    room = broker.gate.answers.whenRoom(request.connection.holder, sizeBytes, request.decodedBytes)
    if room is not None:
        yield room
    place = broker.largeAnswers.take(request.connection.holder)
    if place is not None:
        yield place
    charge = broker.gate.pool.charge(sizeBytes, PARKED)
    try:
        return (yield from subscriptionIn(metadata))
    finally:
        charge.release()
        broker.largeAnswers.give()


def syncGroup(broker: Broker, request: KafkaRequest) -> Deferred[Answer | Work]:
    """
    SyncGroup: answered when the leader has sent the assignment.
    """
    entity = request.entity
    syncing = maybeDeferred(
        broker.groups.sync,
        memberRequest(request, entity.generation_id),
        {each.member_id: each.assignment for each in entity.assignments},
        getattr(entity, "protocol_type", None),
        getattr(entity, "protocol_name", None),
    )
    return syncing.addCallbacks(_synced, _refused)


def heartbeat(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    Heartbeat: tells the member whether it has to join again.
    """
    try:
        broker.groups.heartbeat(memberRequest(request, request.entity.generation_id))
    except GroupRefusal as refusal:
        return {"error_code": refusal.errorCode}
    return {"error_code": ErrorCode.none}


def leaveGroup(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    LeaveGroup: remove one member, or several.
    """
    entity = request.entity
    isOfSeveral = request.apiVersion >= _FIRST_LEAVE_OF_SEVERAL
    if isOfSeveral:
        # Each is answered once, since the answer repeats the names.
        leaving = list(dict.fromkeys((each.member_id, each.group_instance_id) for each in entity.members))
    else:
        leaving = [(entity.member_id, None)]
    try:
        errorCodes = broker.groups.leave(entity.group_id, leaving)
    except GroupRefusal as refusal:
        return {"error_code": refusal.errorCode, "members": ()}
    if not isOfSeveral:
        return {"error_code": errorCodes[0]}
    members = [
        {"member_id": memberId, "group_instance_id": instanceId, "error_code": errorCode}
        for (memberId, instanceId), errorCode in zip(leaving, errorCodes, strict=True)
    ]
    return {"error_code": ErrorCode.none, "members": members}


def memberRequest(request: KafkaRequest, generation: int) -> MemberRequest:
    """
    The member that sends a request.
    """
    entity = request.entity
    return MemberRequest(
        groupId=entity.group_id,
        generation=generation,
        memberId=entity.member_id,
        instanceId=getattr(entity, "group_instance_id", None),
        holder=request.connection.holder,
        connection=request.connection,
    )


def refusalOf(failure: Failure) -> GroupRefusal:
    """
    The refusal in C{failure}.

    @raise Exception: the failure, if it is not a refusal.
    """
    if not isinstance(failure.value, GroupRefusal):
        failure.raiseException()
    return failure.value


def _refused(failure: Failure) -> Answer:
    refusal = refusalOf(failure)
    return {"error_code": refusal.errorCode, "member_id": refusal.memberId}


def _joined(result: JoinResult) -> Answer:
    return {
        "error_code": ErrorCode.none,
        "generation_id": result.generation,
        "protocol_type": result.protocolType,
        "protocol_name": result.protocolName,
        "leader": result.leaderId,
        "skip_assignment": result.skipsAssignment,
        "member_id": result.memberId,
        "members": [
            {"member_id": each.memberId, "group_instance_id": each.instanceId, "metadata": each.metadata}
            for each in result.members
        ],
    }


def _synced(result: SyncResult) -> Answer:
    return {
        "error_code": ErrorCode.none,
        "protocol_type": result.protocolType,
        "protocol_name": result.protocolName,
        "assignment": result.assignment,
    }
