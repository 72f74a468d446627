"""A real client changes who may log in."""

from __future__ import annotations

import os
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.security.passwordfile import changeUsers
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess


class ScramUsersTests(SynchronousTestCase):
    """A super user adds a user, and removes it again."""

    def setUp(self) -> None:
        path = os.path.abspath(self.mktemp())
        changeUsers(path, lambda users: users.setPassword("root", "secret", 4096), mayCreate=True)
        self.broker = BrokerProcess("--auth", f"scram:{path}", "--set", "super.users=User:root").startedFor(self)

    def admin(self, name: str, password: str) -> Any:
        """A client that logs in."""
        return AdminClient(
            {
                "bootstrap.servers": self.broker.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": name,
                "sasl.password": password,
                "log_level": 0,
            }
        )

    def test_users(self) -> None:
        """The user logs in at once, may change nobody, and cannot log in once it is removed."""
        root, sha256 = self.admin("root", "secret"), ScramMechanism.SCRAM_SHA_256

        def alter(admin: Any, change: Any) -> None:
            ((_, done),) = admin.alter_user_scram_credentials([change]).items()
            done.result(PATIENCE_SECONDS)

        alter(root, UserScramCredentialUpsertion("alice", ScramCredentialInfo(sha256, 8192), b"wonder"))
        described = root.describe_user_scram_credentials().result(PATIENCE_SECONDS)
        self.assertEqual(sorted(described), ["alice", "root"])
        self.assertEqual(described["alice"].scram_credential_infos[0].iterations, 8192)
        alice = self.admin("alice", "wonder")
        self.assertEqual(alice.list_topics(timeout=PATIENCE_SECONDS).topics, {})
        removal = UserScramCredentialDeletion("alice", sha256)
        refused = self.assertRaises(KafkaException, alter, alice, removal)
        self.assertEqual(refused.args[0].name(), "CLUSTER_AUTHORIZATION_FAILED")
        alter(root, removal)
        self.assertRaises(KafkaException, self.admin("alice", "wonder").list_topics, timeout=2)
