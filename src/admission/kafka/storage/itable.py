# -*- test-case-name: tests.unit.kafka.storage.test_storedtable -*-
"""
Tables of small facts on the disk, and what goes wrong with them.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from zope.interface import Interface

LONGEST_KEY_BYTES: Final = 511
"""The length limit of keys of an L{ITable}."""


class LogRefusal(Exception):
    """
    The log refused a call, and nothing has changed.

    @cvar errorCode: the error of the Kafka protocol for it.
    """

    errorCode: ClassVar[int] = -1


class LogInUse(LogRefusal):
    """
    Another broker has the directory open.

    @ivar path: the directory.
    @ivar pid: the other process, or L{None} if it left no number.
    """

    def __init__(self, path: str, pid: int | None) -> None:
        super().__init__(f"{path} is in use by {'another process' if pid is None else f'process {pid}'}")
        self.path = path
        self.pid = pid


class LogFailed(LogRefusal):
    """
    The storage under the log failed; the message says what to do.
    """

    errorCode = 56


class LogClosed(LogRefusal):
    """
    The log is closed or about to be.
    """

    errorCode = 56


class ITable(Interface):
    """
    Small facts of other components, kept with the log: bytes by bytes, sorted by
    key.

    Writing takes part in the commit of this turn, as appending does:
    L{ILog.whenCommitted} tells whether what was written will survive or is lost.
    If it is lost, the table is as it was, and a caller that has its contents in
    memory has to revert them.  Only the writes of one call are committed as one:
    a turn that writes very much commits in between.

    Writing raises L{LogClosed} after L{ILog.close}, L{LogFailed} if the
    storage fails, and L{ValueError} for a key that does not have 1 to
    L{LONGEST_KEY_BYTES} bytes.
    """

    def get(key: bytes) -> bytes | None:
        """
        The value of a key, also one put in this turn; L{None} if it has none.
        """

    def items() -> Iterator[tuple[bytes, bytes]]:
        """
        All keys and values at this moment, sorted by key, whatever
        is written during the iteration.
        """

    def put(key: bytes, value: bytes) -> None:
        """
        Set the value of a key.

        @raise LogFailed: as L{ILog.append} does, with the same consequences.
        """

    def delete(key: bytes) -> None:
        """
        Remove a key, if it exists.

        @raise LogFailed: as L{ILog.append} does, with the same consequences.
        """


CommitCallback = Callable[[Exception | None], object]
"""Called with L{None} after a commit, or with an exception."""
