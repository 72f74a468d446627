# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
SaslHandshake and SaslAuthenticate: L{Authenticator} on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from .login import Authenticator, LoginRefused


def saslHandshake(authenticator: Authenticator, entity: Any) -> Deferred[Mapping[str, Any]]:
    """
    SaslHandshake: choose a mechanism.
    """
    answer = authenticator.handshake(entity.mechanism).addCallbacks(lambda _: {}, _refused)
    return answer.addCallback(lambda fields: {**fields, "mechanisms": authenticator.mechanisms})


def saslAuthenticate(authenticator: Authenticator, entity: Any) -> Deferred[Mapping[str, Any]]:
    """
    SaslAuthenticate: continue the login.  It lasts as long as the connection.
    """
    return authenticator.authenticate(entity.auth_bytes).addCallbacks(
        lambda message: {"auth_bytes": message, "session_lifetime_ms": 0}, _refused
    )


def _refused(failure: Failure) -> Mapping[str, Any]:
    refusal = failure.value
    if not isinstance(refusal, LoginRefused):
        failure.raiseException()
    return {"error_code": refusal.errorCode, "error_message": f"Authentication failed: {refusal}"}


SERVED_BY: Mapping[str, Callable[[Authenticator, Any], Deferred[Mapping[str, Any]]]] = {
    "SaslAuthenticate": saslAuthenticate,
    "SaslHandshake": saslHandshake,
}
"""The functions that serve the APIs for logins."""
