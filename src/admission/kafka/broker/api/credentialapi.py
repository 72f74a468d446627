# -*- test-case-name: tests.unit.kafka.broker.api.test_credentialapi -*-
"""
The users of the password file: DescribeUserScramCredentials, AlterUserScramCredentials.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from admission.kafka.scram import HASHES, MAX_ITERATIONS, MIN_ITERATIONS, ScramSecret
from admission.kafka.security.checkers import ScramChecker
from admission.kafka.security.credentials import IScramCredentials
from admission.kafka.security.passwordfile import PasswordFileError, Users, checkName
from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import Refused, errorOf, repeated
from admission.kafka.wire.codec import Rows

from ..broker import Answer, Broker, Waiting

_MECHANISMS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_NUMBERS: Final = {name: number for number, name in _MECHANISMS.items()}

_LONGEST_SALT_BYTES: Final = 256

_NO_FILE: Final = "this broker has no file of users; start it with --auth scram:FILE"


def describeUserScramCredentials(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeUserScramCredentials: which mechanisms users have, and with how many iterations.
    """
    checker = _checker(broker)
    users = {} if checker is None else checker.file.secretsByName()
    wanted = [each.name for each in request.entity.users or ()]
    duplicates = repeated(wanted)

    def described(name: str) -> Mapping[str, Any]:
        if name in duplicates:
            refused = Refused(ErrorCode.duplicate_resource, "the request names the user twice")
            return {"user": name, **errorOf(refused)}
        if name not in users:
            why = _NO_FILE if checker is None else "there is no such user"
            return {"user": name, **errorOf(Refused(ErrorCode.resource_not_found, why))}
        infos = [
            {"mechanism": _NUMBERS[mechanism], "iterations": secret.iterations}
            for mechanism, secret in users[name].items()
        ]
        return {"user": name, "error_code": ErrorCode.none, "credential_infos": infos}

    return {"error_code": ErrorCode.none, "results": Rows(list(dict.fromkeys(wanted)) or sorted(users), described)}


def alterUserScramCredentials(broker: Broker, request: KafkaRequest) -> Answer | Waiting:
    """
    AlterUserScramCredentials: change the file.  If one change of a user is refused, the user stays unchanged.
    """
    changes: dict[str, list[Any]] = {}
    for each in (*request.entity.deletions, *request.entity.upsertions):
        changes.setdefault(each.name, []).append(each)
    verdicts: dict[str, Mapping[str, Any]] = {name: {"error_code": ErrorCode.none} for name in changes}
    checker = _checker(broker)

    def change(users: Users) -> None:
        for name, wanted in changes.items():
            try:
                secrets = _changed(users.secretsByName.get(name, {}), name, wanted)
            except Refused as refusal:
                verdicts[name] = errorOf(refusal)
            else:
                users.secretsByName.pop(name, None)
                if secrets:
                    users.secretsByName[name] = secrets

    def answer(_: object) -> Answer:
        return {"results": [{"user": name, **verdict} for name, verdict in verdicts.items()]}

    def failed(failure: Failure) -> Answer:
        failure.trap(PasswordFileError)  # type: ignore[no-untyped-call]
        verdict = {"error_code": ErrorCode.kafka_storage_error, "error_message": failure.getErrorMessage()}
        return {"results": [{"user": name, **verdict} for name in changes]}

    if checker is None:
        for name in changes:
            verdicts[name] = errorOf(Refused(ErrorCode.security_disabled, _NO_FILE))
        return answer(None)
    changing: Deferred[Any] = checker.changeUsers(change)
    return changing.addCallbacks(answer, failed)


def _checker(broker: Broker) -> ScramChecker | None:
    checker = None if broker.portal is None else broker.portal.checkers.get(IScramCredentials)
    return checker if isinstance(checker, ScramChecker) else None


def _changed(secrets: Mapping[str, ScramSecret], name: str, changes: list[Any]) -> dict[str, ScramSecret]:
    """
    @raise Refused: if a change is not possible.
    """
    changed = dict(secrets)
    if repeated(each.mechanism for each in changes):
        raise Refused(ErrorCode.duplicate_resource, "the request changes one mechanism of the user twice")
    for each in changes:
        mechanism = _MECHANISMS.get(each.mechanism)
        if mechanism is None:
            raise Refused(
                ErrorCode.unsupported_sasl_mechanism,
                f"there is no mechanism {each.mechanism}, only {', '.join(HASHES)}",
            )
        if hasattr(each, "salted_password"):
            changed[mechanism] = _secret(name, mechanism, each)
        elif changed.pop(mechanism, None) is None:
            raise Refused(ErrorCode.resource_not_found, f"the user has no {mechanism}")
    return changed


def _secret(name: str, mechanism: str, upsertion: Any) -> ScramSecret:
    try:
        checkName(name)
    except PasswordFileError as error:
        raise Refused(ErrorCode.unacceptable_credential, str(error)) from error
    if not MIN_ITERATIONS <= upsertion.iterations <= MAX_ITERATIONS:
        raise Refused(
            ErrorCode.unacceptable_credential,
            f"clients take from {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations, and not {upsertion.iterations}",
        )
    keyBytes = hashlib.new(HASHES[mechanism]).digest_size
    if len(upsertion.salted_password) != keyBytes or not 1 <= len(upsertion.salt) <= _LONGEST_SALT_BYTES:
        raise Refused(
            ErrorCode.unacceptable_credential,
            f"the salted password of {mechanism} has {keyBytes} bytes, and its salt 1 to {_LONGEST_SALT_BYTES}",
        )
    return ScramSecret.ofSaltedPassword(mechanism, upsertion.salted_password, upsertion.iterations, upsertion.salt)
