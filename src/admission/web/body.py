# -*- test-case-name: tests.unit.web.test_body -*-
"""
The body of a request: in memory that was granted before it was read, and beyond that in a file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import IO, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..interfaces import ILease

InThread = Callable[[Callable[[], None]], Deferred[None]]
"""Calls a function in another thread; fires when it has returned."""

_PEEKED_BYTES = 8 << 10


class LeasedBody(io.BufferedIOBase):
    """
    A body in the memory of a lease, as a file.  It can be used until the lease is released.
    """

    def __init__(self, lease: ILease, sizeBytes: int = 0) -> None:
        """
        @param sizeBytes: how much of it is there already.
        """
        assert lease.buffer is not None
        self._buffer = lease.buffer
        self._sizeBytes = self._position = sizeBytes

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        end = self._position + len(data)
        if end > len(self._buffer):
            raise ValueError(f"a body of {end} bytes is longer than the {len(self._buffer)} that it has memory for")
        self._buffer[self._position : end] = data
        self._position = end
        self._sizeBytes = max(self._sizeBytes, end)
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._next(self._sizeBytes if size is None or size < 0 else size)
        self._position += len(data)
        return data

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def peek(self, size: int = _PEEKED_BYTES, /) -> bytes:
        """
        The next bytes, which stay the next; C{readline} looks at them.
        """
        return self._next(max(size, 1))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._sizeBytes}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def getvalue(self) -> bytes:
        """
        All of it, as of an L{io.BytesIO}.
        """
        return bytes(self._buffer[: self._sizeBytes])

    def _next(self, sizeBytes: int) -> bytes:
        return bytes(self._buffer[self._position : min(self._position + sizeBytes, self._sizeBytes)])


class SpooledBody:
    """
    Takes a body that may be longer than its memory.  Whenever that is full it is written to a temporary file, in
    another thread; nothing should be read meanwhile.

    @ivar isWriting: whether it is being written.
    @ivar sizeBytes: how much has come.
    """

    def __init__(
        self, lease: ILease, inThread: InThread, written: Callable[[], None], failed: Callable[[Failure], None]
    ) -> None:
        """
        @param written: called when it has been written, and there is room for more.
        @param failed: called if it cannot be written.
        """
        assert lease.buffer is not None
        self._lease = lease
        self._buffer = lease.buffer
        self._inThread = inThread
        self._written = written
        self._failed = failed
        self._filledBytes = 0
        # What came while it was written: at most what a transport delivers before it can be paused.
        self._early: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._isClosed = False
        self.isWriting = False
        self.sizeBytes = 0

    @property
    def isInMemory(self) -> bool:
        """
        Whether there is no file.
        """
        return self._file is None

    @property
    def isStored(self) -> bool:
        """
        Whether all of it is either in memory or in the file.
        """
        return self._file is None or not self._filledBytes

    def write(self, data: bytes) -> int:
        """
        Take C{data}, which has come.
        """
        self.sizeBytes += len(data)
        self._add(data)
        return len(data)

    def tell(self) -> int:
        return self.sizeBytes

    def flush(self) -> None:
        """
        Write what is in memory, too: no more comes.
        """
        self._write()

    def asFile(self) -> IO[bytes]:
        """
        The whole body, to be read from its beginning to its end.
        """
        if self._file is None:
            whole: Any = LeasedBody(self._lease, self._filledBytes)
            return whole  # type: ignore[no-any-return]
        return self._file

    def close(self) -> None:
        """
        Drop it; its memory has to be there as long as it is being written.
        """
        self._isClosed = True
        if self._file is not None and not self.isWriting:
            self._file.close()

    def _add(self, data: bytes) -> None:
        if self.isWriting:
            self._early.append(data)
            return
        begin = self._filledBytes
        taken = data[: len(self._buffer) - begin]
        self._filledBytes = begin + len(taken)
        self._buffer[begin : self._filledBytes] = taken
        if len(taken) < len(data):
            self._early.append(data[len(taken) :])
            self._write()

    def _write(self) -> None:
        self.isWriting = True
        self._inThread(self._writeNow).addCallbacks(self._over, self._overFailed)

    def _writeNow(self) -> None:
        # In another thread: nothing else is touched until this is over.
        if self._file is None:
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115
        rest = self._buffer[: self._filledBytes]
        while rest:
            rest = rest[self._file.write(rest) :]

    def _over(self, _: None) -> None:
        self.isWriting = False
        self._filledBytes = 0
        if self._isClosed:
            self.close()
        else:
            early, self._early = self._early, []
            for data in early:
                self._add(data)
        if not self.isWriting:
            self._written()

    def _overFailed(self, failure: Failure) -> None:
        self.isWriting = False
        self._isClosed = True
        self.close()
        self._failed(failure)
