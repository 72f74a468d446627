# -*- test-case-name: tests.unit.kafka.security.test_passwordfile -*-
"""
A file of users and the SCRAM secrets of their passwords.

The first line identifies the format, and has a key from which secrets for
unknown names are derived.  Then each user has a line for each mechanism::

    NAME:MECHANISM:ITERATIONS:SALT:STORED KEY:SERVER KEY

The key is in hexadecimal, salts and the other keys in base64.  A name may
contain colons.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import define, field
from twisted.logger import Logger

from admission.boundedfile import readBounded
from admission.units import formatBytes

from ..scram import HASHES, MAX_ITERATIONS, MIN_ITERATIONS, ScramSecret

DEFAULT_ITERATIONS = 16_384
"""The most that Kafka's own tools allow; a login with a plain password takes 5 ms of a thread."""

SALT_BYTES = 16

MAX_FILE_BYTES = 16 << 20
"""The largest password file, in bytes: of 40,000 users, whom the reactor reads in four tenths of a second."""

_HEADER = re.compile(r"admission users 1 (?P<key>[0-9a-f]{64})")


class PasswordFileError(ValueError):
    """
    A password file cannot be used, or a change to it is invalid;
    the message is for the operator.
    """


@define(eq=False)
class Users:
    """
    The contents of a password file.

    @ivar key: the key from which secrets for unknown names are derived.
    @ivar secretsByName: for each user, the secrets by mechanism.
    """

    key: bytes = field(repr=False, factory=lambda: secrets.token_bytes(32))
    secretsByName: dict[str, dict[str, ScramSecret]] = field(factory=dict)

    def setPassword(self, name: str, password: str, iterations: int = DEFAULT_ITERATIONS) -> None:
        """
        Set the password of a user, who is added if new.

        @raise PasswordFileError: if the name or the password cannot be used.
        """
        checkName(name)
        if not password or "\0" in password:
            raise PasswordFileError("a password has at least one character, and none of them is NUL")
        try:
            encoded = password.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PasswordFileError("a password is text, in UTF-8") from error
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise PasswordFileError(
                f"clients take from {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations, and not {iterations}"
            )
        self.secretsByName[name] = {
            mechanism: ScramSecret.ofPassword(mechanism, encoded, iterations, secrets.token_bytes(SALT_BYTES))
            for mechanism in HASHES
        }

    def remove(self, name: str) -> None:
        """
        Remove a user.

        @raise PasswordFileError: if there is no such user.
        """
        if self.secretsByName.pop(name, None) is None:
            raise PasswordFileError(f"there is no user {name!r}")


def checkName(name: str) -> None:
    """
    @raise PasswordFileError: if no user can have the name.
    """
    if not name or name != name.strip() or any(unicodedata.category(each).startswith("C") for each in name):
        raise PasswordFileError(
            f"{name!r:.300} cannot be a name: it is empty, begins or ends in a space or is not text"
        )


def parseUsers(text: str) -> Users:
    """
    Parse the contents of a password file.

    @raise PasswordFileError: naming the line.
    """
    first, *lines = text.split("\n")
    header = _HEADER.fullmatch(first)
    if header is None:
        raise PasswordFileError("it is not a password file; make one with admission users set")
    users = Users(bytes.fromhex(header["key"]))
    for number, line in enumerate(lines, 2):
        if line.strip():
            try:
                name, secret = _parseSecret(line)
            except ValueError:
                # The message does not say what is wrong, because the line is a secret.
                raise PasswordFileError(f"line {number} is not NAME:MECHANISM:ITERATIONS:SALT:KEY:KEY") from None
            users.secretsByName.setdefault(name, {})[secret.mechanism] = secret
    return users


def formatUsers(users: Users) -> str:
    """
    Write users in the format that L{parseUsers} reads.
    """
    lines = [f"admission users 1 {users.key.hex()}"]
    for name, byMechanism in sorted(users.secretsByName.items()):
        for secret in byMechanism.values():
            encoded = [
                base64.b64encode(each).decode("ascii") for each in (secret.salt, secret.storedKey, secret.serverKey)
            ]
            lines.append(":".join([name, secret.mechanism, str(secret.iterations), *encoded]))
    return "".join(f"{line}\n" for line in lines)


def readUsers(path: str | os.PathLike[str]) -> Users:
    """
    Read a password file.

    @raise PasswordFileError: if it cannot be read.
    """
    try:
        return parseUsers(readBounded(path, MAX_FILE_BYTES).decode("utf-8"))
    except (PasswordFileError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise PasswordFileError(f"{path} cannot be used: {reason}") from error
    except OSError as error:
        raise PasswordFileError(f"{path} cannot be read: {error.strerror}") from error


def changeUsers(path: str | os.PathLike[str], change: Callable[[Users], None], mayCreate: bool = False) -> None:
    """
    Change a password file atomically: readers see the file before or after the
    change.  Its owner stays the same, and only the owner may read it.

    @param mayCreate: whether to begin with no users if the file does not exist.
    @raise PasswordFileError: if the file cannot be read or written, another process
        is changing it, or C{change} raises it.
    """
    target = Path(path).resolve()
    unfinished = target.with_name(f"{target.name}.new")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise PasswordFileError(f"somebody else is changing {path}; if not, remove {unfinished}") from error
    except OSError as error:
        raise PasswordFileError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            users = Users() if mayCreate and not target.exists() else readUsers(target)
            change(users)
            if target.exists():
                before = target.stat()
                os.fchown(descriptor, before.st_uid, before.st_gid)
            text = formatUsers(users)
            if len(text.encode("utf-8")) > MAX_FILE_BYTES:
                raise PasswordFileError(
                    f"{path} would have more than {formatBytes(MAX_FILE_BYTES)}; remove users first"
                )
            stream.write(text)
            stream.flush()
            os.fsync(descriptor)
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink()
        raise PasswordFileError(f"{path} cannot be written: {error.strerror}") from error
    except BaseException:
        unfinished.unlink()
        raise


class PasswordFile:
    """
    A password file that is read again when it changes.

    If a changed file cannot be read, that is logged and the users stay as they
    were.

    @ivar path: its path.
    """

    log = Logger()

    def __init__(self, path: str, stat: Callable[[str], os.stat_result] = os.stat) -> None:
        """
        @param stat: used to detect changes of the file.
        @raise PasswordFileError: if it cannot be read now.
        """
        self.path = path
        self._stat = stat
        self._version = self._lookedAt()
        self._take(readUsers(path))

    def secretsByName(self) -> Mapping[str, Mapping[str, ScramSecret]]:
        """
        The secrets of each user by mechanism.
        """
        self._readAgain()
        return self._users.secretsByName

    def secretOf(self, name: str, mechanism: str) -> ScramSecret:
        """
        The secret of a user.  An unknown user gets a decoy, which looks like
        other secrets, is the same each time and fits no password.
        """
        self._readAgain()
        # Derived in either case, so that both cases take the same time.
        decoy = self._decoy(name, mechanism)
        return self._users.secretsByName.get(name, {}).get(mechanism, decoy)

    def _readAgain(self) -> None:
        version = self._lookedAt()
        if version != self._version:
            self._version = version
            try:
                self._take(readUsers(self.path))
            except PasswordFileError as error:
                self.log.error("{error}; the users stay as they were", error=error)

    def _lookedAt(self) -> tuple[int, int, int] | None:
        try:
            status = self._stat(self.path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _take(self, users: Users) -> None:
        self._users = users
        self._iterations = {
            mechanism: sorted(
                {each[mechanism].iterations for each in users.secretsByName.values() if mechanism in each}
                or {DEFAULT_ITERATIONS}
            )
            for mechanism in HASHES
        }

    def _decoy(self, name: str, mechanism: str) -> ScramSecret:
        def derived(purpose: str) -> bytes:
            return hmac.digest(self._users.key, f"{purpose}:{mechanism}:{name}".encode(), HASHES[mechanism])

        choices = self._iterations[mechanism]
        iterations = choices[int.from_bytes(derived("iterations"), "big") % len(choices)]
        return ScramSecret(
            mechanism, iterations, derived("salt")[:SALT_BYTES], derived("stored key"), derived("server key")
        )


def _parseSecret(line: str) -> tuple[str, ScramSecret]:
    name, mechanism, iterations, *encoded = line.rsplit(":", 5)
    salt, storedKey, serverKey = (base64.b64decode(each, validate=True) for each in encoded)
    keyBytes = hashlib.new(HASHES.get(mechanism, "")).digest_size
    secret = ScramSecret(mechanism, int(iterations), salt, storedKey, serverKey)
    if not name or not salt or not MIN_ITERATIONS <= secret.iterations <= MAX_ITERATIONS:
        raise ValueError(line)
    if (len(storedKey), len(serverKey)) != (keyBytes, keyBytes):
        raise ValueError(line)
    return name, secret
