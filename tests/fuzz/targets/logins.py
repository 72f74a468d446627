"""
What logins read: the password file, the messages of SCRAM and of PLAIN, on both sides.  Nothing but the documented
errors comes out; a password file is the same after it was written and read again; nobody gets in who does not know a
password.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from admission.kafka.client.errors import AuthenticationFailed
from admission.kafka.client.sasl import Credentials, ScramConversation
from admission.kafka.scram import HASHES, MIN_ITERATIONS, ScramError, ScramExchange, ScramSecret
from admission.kafka.security.credentials import PlainCredentials
from admission.kafka.security.passwordfile import PasswordFileError, Users, formatUsers, parseUsers

MAX_BYTES = 2048

_MECHANISM: Final = "SCRAM-SHA-256"
_SERVER_NONCE: Final = "server"
_CLIENT_NONCE: Final = "client"
_PASSWORD: Final = b"secret"
_SALT: Final = bytes(16)

_FILE, _FIRST, _FINAL, _PLAIN, _CHALLENGE = range(5)


@cache
def _secret() -> ScramSecret:
    return ScramSecret.ofPassword(_MECHANISM, _PASSWORD, MIN_ITERATIONS, _SALT)


def _users() -> Users:
    users = Users(bytes(32))
    for name in ("alice", "bob:by:colons"):
        users.secretsByName[name] = {
            mechanism: ScramSecret.ofPassword(mechanism, _PASSWORD, MIN_ITERATIONS, _SALT) for mechanism in HASHES
        }
    return users


def _conversation() -> ScramConversation:
    return ScramConversation(Credentials(_MECHANISM, "alice", _PASSWORD.decode()), _CLIENT_NONCE)


TOKENS = [
    *(each.encode() for each in ("n,,n=", ",r=", ",s=", ",i=4096", "c=biws", ",p=", "=2C", "=3D", "a=alice", "y,,")),
    *(each.encode() for each in (_CLIENT_NONCE, _SERVER_NONCE, *HASHES, "\n", ":4096:", "admission users 1 ")),
]


def seeds() -> Sequence[bytes]:
    client = _conversation()
    first = client.first()
    challenge = ScramExchange(_MECHANISM, first, _SERVER_NONCE).challenge(_secret())
    final = client.reply(challenge)
    assert final is not None
    return [
        bytes((_FILE,)) + formatUsers(_users()).encode(),
        bytes((_FILE,)) + formatUsers(Users(bytes(32))).encode(),
        bytes((_FIRST,)) + first,
        bytes((_FIRST,)) + b"y,a=al=2Cice,n=al=2Cice,r=abc,ext=1",
        bytes((_FINAL,)) + b"c=biws,r=clientserver,p=" + bytes(44),
        bytes((_PLAIN,)) + b"\0alice\0secret",
        bytes((_PLAIN,)) + b"alice\0alice\0secret",
        bytes((_CHALLENGE,)) + challenge,
        bytes((_CHALLENGE,)) + b"e=other-error",
    ]


def check(data: bytes) -> None:
    if data:
        (_checkFile, _checkFirst, _checkFinal, _checkPlain, _checkChallenge)[data[0] % 5](data[1:])


def _checkFile(message: bytes) -> None:
    try:
        users = parseUsers(message.decode("utf-8", "replace"))
    except PasswordFileError:
        return
    written = formatUsers(users)
    again = parseUsers(written)
    assert again.key == users.key
    assert again.secretsByName == users.secretsByName
    assert formatUsers(again) == written


def _checkFirst(message: bytes) -> None:
    try:
        exchange = ScramExchange(_MECHANISM, message, _SERVER_NONCE)
    except ScramError:
        return
    assert exchange.username
    exchange.username.encode("utf-8")
    challenge = exchange.challenge(_secret())
    assert len(challenge) <= len(message) + 200
    assert not exchange.isProof(message)


def _checkFinal(message: bytes) -> None:
    exchange = ScramExchange(_MECHANISM, _conversation().first(), _SERVER_NONCE)
    exchange.challenge(_secret())
    assert not exchange.isProof(message), "that was the password, or what follows from it"


def _checkPlain(message: bytes) -> None:
    try:
        credentials = PlainCredentials.ofMessage(message)
    except ValueError:
        return
    assert credentials.username and credentials.password
    assert message.endswith(b"\0%s\0%s" % (credentials.username, credentials.password))


def _checkChallenge(message: bytes) -> None:
    client = _conversation()
    client.first()
    iterations = message.rpartition(b"i=")[2].partition(b",")[0].strip(b"+-_ 0")
    if len(iterations) > len(b"4096"):
        # Up to a million, which take a third of a second, and say nothing new.
        return
    try:
        answer = client.reply(message)
        assert answer is not None
        # A broker that knows nothing cannot prove that it knows the password.
        client.reply(message)
    except AuthenticationFailed:
        return
    raise AssertionError("a broker was believed that does not know the password")
