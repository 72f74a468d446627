"""Tests for L{admission.kafka.broker.api.credentialapi}."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, execute

from admission.kafka.security.checkers import ScramChecker, makePortal
from admission.kafka.security.passwordfile import PasswordFile, changeUsers, readUsers
from tests.kit.brokerfixture import BrokerTestCase, codes

SHA_256 = 1
SHA_512 = 2

SALT = b"salt"


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096, **others: Any) -> dict[str, Any]:
    """What a client sends of a new password."""
    hashName = {SHA_256: "sha256"}.get(mechanism, "sha512")
    salted = hashlib.pbkdf2_hmac(hashName, b"secret", SALT, 4096)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": SALT,
        "salted_password": salted,
        **others,
    }


class CredentialTestCase(BrokerTestCase):
    """A broker whose file knows alice."""

    properties = {"super.users": "User:root"}

    def setUp(self) -> None:
        super().setUp()
        self.path = self.mktemp()
        changeUsers(self.path, lambda users: users.setPassword("alice", "wonderland", 4096), mayCreate=True)

        def inThread(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
            return execute(function, *args)

        self.broker.portal = makePortal([ScramChecker(PasswordFile(self.path), inThread)])
        self.client = self.connect()
        self.client.protocol.principal = "root"

    def describe(self, *names: str) -> Any:
        """Ask for users, or for all of them."""
        users = [{"name": name} for name in names] if names else None
        return self.client.ask("DescribeUserScramCredentials", 0, users=users).results

    def alter(self, *upsertions: dict[str, Any], deletions: Any = ()) -> Any:
        """Change users."""
        asked = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
        return self.client.ask("AlterUserScramCredentials", 0, deletions=asked, upsertions=upsertions).results


class DescribeTests(CredentialTestCase):
    """DescribeUserScramCredentials tells who is in the file."""

    def test_described(self) -> None:
        """Mechanisms and iterations are told, secrets are not."""
        for names in ((), ("alice",)):
            (alice,) = self.describe(*names)
            self.assertEqual((alice.user, alice.error_code), ("alice", ErrorCode.none))
            told = [(each.mechanism, each.iterations) for each in alice.credential_infos]
            self.assertEqual(told, [(SHA_256, 4096), (SHA_512, 4096)])

    def test_refused(self) -> None:
        """The answer says which users are not there, or are named twice."""
        results = self.describe("bob", "alice", "alice")
        self.assertEqual([each.user for each in results], ["bob", "alice"])
        self.assertEqual(codes(results), [ErrorCode.resource_not_found, ErrorCode.duplicate_resource])

    def test_withoutFile(self) -> None:
        """Without a file nobody is there, and the remedy is told."""
        self.broker.portal = None
        self.assertEqual(self.describe(), ())
        (alice,) = self.describe("alice")
        self.assertEqual(alice.error_code, ErrorCode.resource_not_found)
        self.assertIn("--auth scram:FILE", alice.error_message)
        (changed,) = self.alter(upsertion("alice"))
        self.assertEqual(changed.error_code, ErrorCode.security_disabled)
        self.assertIn("--auth scram:FILE", changed.error_message)


class AlterTests(CredentialTestCase):
    """AlterUserScramCredentials changes the file."""

    def test_upserted(self) -> None:
        """A new user is added, with the password that the client has hashed; another mechanism comes besides."""
        self.assertEqual(codes(self.alter(upsertion("bob"))), [ErrorCode.none])
        self.assertTrue(readUsers(self.path).secretsByName["bob"]["SCRAM-SHA-256"].isPassword(b"secret"))
        self.assertEqual(codes(self.alter(upsertion("bob", SHA_512))), [ErrorCode.none])
        secrets = readUsers(self.path).secretsByName["bob"]
        self.assertEqual(list(secrets), ["SCRAM-SHA-256", "SCRAM-SHA-512"])
        self.assertTrue(secrets["SCRAM-SHA-512"].isPassword(b"secret"))
        self.assertEqual(len(self.describe()), 2)

    def test_deleted(self) -> None:
        """A user without any mechanism is gone."""
        self.assertEqual(codes(self.alter(deletions=[("alice", SHA_256)])), [ErrorCode.none])
        self.assertEqual(list(readUsers(self.path).secretsByName["alice"]), ["SCRAM-SHA-512"])
        self.assertEqual(codes(self.alter(deletions=[("alice", SHA_512)])), [ErrorCode.none])
        self.assertEqual(readUsers(self.path).secretsByName, {})

    def test_refused(self) -> None:
        """What cannot be is refused, the user stays as it is, and others are changed all the same."""
        before = readUsers(self.path).secretsByName["alice"]
        for wrong, errorCode in (
            (upsertion("alice", 3), ErrorCode.unsupported_sasl_mechanism),
            (upsertion("alice", iterations=4095), ErrorCode.unacceptable_credential),
            (upsertion("alice", iterations=2**31 - 1), ErrorCode.unacceptable_credential),
            (upsertion("alice", salt=b""), ErrorCode.unacceptable_credential),
            (upsertion("alice", salt=bytes(257)), ErrorCode.unacceptable_credential),
            (upsertion("alice", salted_password=b"short"), ErrorCode.unacceptable_credential),
            (upsertion(""), ErrorCode.unacceptable_credential),
            (upsertion("a\nb"), ErrorCode.unacceptable_credential),
        ):
            refused, changed = self.alter(wrong, upsertion("bob"))
            self.assertEqual((refused.error_code, changed.error_code), (errorCode, ErrorCode.none))
            self.assertTrue(refused.error_message)
        self.assertEqual(codes(self.alter(deletions=[("carol", SHA_256)])), [ErrorCode.resource_not_found])
        twice = self.alter(upsertion("alice"), deletions=[("alice", SHA_256)])
        self.assertEqual(codes(twice), [ErrorCode.duplicate_resource])
        self.assertEqual(readUsers(self.path).secretsByName["alice"], before)

    def test_unwritable(self) -> None:
        """A file that somebody else is changing stays as it is, and the client is told."""
        open(f"{os.path.realpath(self.path)}.new", "wb").close()
        (refused,) = self.alter(upsertion("bob"))
        self.assertEqual(refused.error_code, ErrorCode.kafka_storage_error)
        self.assertIn("somebody else is changing", refused.error_message)
