# -*- test-case-name: tests.spark.test_hdfs -*-
"""
HDFS as a file system of pyarrow's, by the client of C{hdfs-native}, which needs neither Java nor Hadoop's C{libhdfs} as
pyarrow's own way does.

That client waits for as long as a server that lives says nothing.  Here each wait has an end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice
from threading import BoundedSemaphore, Thread
from typing import Any, Final, TypeVar

from hdfs_native import Client, FileReader, FileStatus, FileWriter, WriteOptions
from pyarrow import PythonFile  # type: ignore[import-untyped]
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType  # type: ignore[import-untyped]

LONGEST_WAIT_SECONDS = 60.0
"""How long a server may say nothing, as with Hadoop's own client."""

_PIECE_BYTES: Final = 4 << 20
_PIECE_NAMES: Final = 1000
"""How much is read, written or listed in one wait."""

_MOST_CALLS: Final = 16
"""How many calls may be unanswered: more would only pile up at a server that hangs."""

_ONE_NAMENODE: Final = {
    "dfs.client.failover.max.attempts": "10",
    "dfs.client.failover.sleep.base.millis": "500",
    "dfs.client.failover.sleep.max.millis": "1000",
}
"""As Hadoop's own client connects to a namenode that nothing stands in for: each second, ten times."""

_REFUSED: Final = re.compile(r'\w+\((?:"(?:[\w$]+\.)*([\w$]+)", )?"(.*?)(?:\\n|"\)$)')
"""What the client says: of an exception of a namenode's its class and first line, else a text."""

_Result = TypeVar("_Result")


class HdfsFiles(FileSystemHandler):  # type: ignore[misc]
    """
    The files of one HDFS, or of a table of mounts.  All methods may be called by any thread, and raise L{OSError}.
    """

    def __init__(self, url: str) -> None:
        """
        @param url: without a path.
        @raise OSError: if it names no namenode.
        """
        self._url = url
        self._calls = BoundedSemaphore(_MOST_CALLS)
        self._client = self._connecting()

    def get_type_name(self) -> str:
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._infoOf(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        try:
            return [_info(status) for status in self._listed(selector.base_dir, selector.recursive)]
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise

    def create_dir(self, path: str, recursive: bool) -> None:
        self.answered(lambda: self._client.mkdirs(path, create_parent=recursive))

    def delete_file(self, path: str) -> None:
        if not self.answered(lambda: self._client.delete(path)):
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        """
        Rename a file, in place of one of that name.
        """
        self.answered(lambda: self._client.rename(src, dest, overwrite=True))

    def open_input_file(self, path: str) -> PythonFile:
        return PythonFile(_Reading(self, self.answered(lambda: self._client.read(path))), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: object) -> PythonFile:
        options = WriteOptions(overwrite=True)
        return PythonFile(_Writing(self, self.answered(lambda: self._client.create(path, options))), mode="w")

    def _needless(self, *arguments: object) -> Any:
        raise NotImplementedError("recordings and results do not need that of HDFS")

    delete_dir = delete_dir_contents = delete_root_dir_contents = copy_file = open_append_stream = _needless

    def answered(self, call: Callable[[], _Result]) -> _Result:
        """
        What a call of the client's returns.

        @raise OSError: in words; L{TimeoutError} if it takes too long.
        """
        try:
            return self._waiting(call)
        except TimeoutError as error:
            # Another connection may be better: one to a host that is gone looks alive for a quarter of an hour.
            self._client = self._connecting()
            raise TimeoutError(f"no server has answered for {LONGEST_WAIT_SECONDS:g} s") from error

    def _waiting(self, call: Callable[[], _Result]) -> _Result:
        if not self._calls.acquire(timeout=LONGEST_WAIT_SECONDS):
            raise TimeoutError
        answer: Future[_Result] = Future()

        def calling() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
            finally:
                self._calls.release()

        # What is never answered must not keep the process from ending, as it would in a pool.
        Thread(target=calling, name="hdfs", daemon=True).start()
        return _explained(lambda: answer.result(LONGEST_WAIT_SECONDS))

    def _connecting(self) -> Client:
        config = _ONE_NAMENODE if re.search(r":\d+$", self._url) else {}
        return _explained(lambda: Client(self._url, config))

    def _listed(self, path: str, isRecursive: bool) -> Iterator[FileStatus]:
        statuses = self.answered(lambda: self._client.list_status(path, isRecursive))
        while piece := self.answered(lambda: list(islice(statuses, _PIECE_NAMES))):
            yield from piece

    def _infoOf(self, path: str) -> FileInfo:
        try:
            return _info(self.answered(lambda: self._client.get_file_info(path)))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)


class _Reading:
    """
    What pyarrow calls to read a file.
    """

    def __init__(self, files: HdfsFiles, file: FileReader) -> None:
        self._files = files
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        self.closed = False

    def read(self, sizeBytes: int) -> bytes:
        end = min(self.tell() + sizeBytes, len(self._file))
        pieces = []
        while self.tell() < end:
            pieces.append(self._files.answered(lambda: self._file.read(min(_PIECE_BYTES, end - self.tell()))))
        return b"".join(pieces)

    def close(self) -> None:
        self.closed = True


class _Writing:
    """
    What pyarrow calls to write a file.
    """

    def __init__(self, files: HdfsFiles, file: FileWriter) -> None:
        self._files = files
        self._file = file
        self.closed = False

    def write(self, content: bytes) -> None:
        wasClosed, self.closed = self.closed, True
        for first in range(0, len(content), _PIECE_BYTES):
            piece = content[first : first + _PIECE_BYTES]
            # The client is slow with anything else, such as a memoryview.
            self._files.answered(lambda piece=bytes(piece): self._file.write(piece))  # type: ignore[misc]
        # What was not written whole is not closed, which would wait anew.
        self.closed = wasClosed

    def flush(self) -> None:
        """
        Nothing waits here.
        """

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._files.answered(self._file.close)


def _info(status: FileStatus) -> FileInfo:
    if status.isdir:
        return FileInfo(status.path, FileType.Directory)
    return FileInfo(status.path, FileType.File, size=status.length)


def _explained(call: Callable[[], _Result]) -> _Result:
    """
    @raise OSError: for what the client raises, in a line.
    """
    try:
        return call()
    except TimeoutError:
        raise
    except (OSError, RuntimeError, NotImplementedError) as error:
        said = _REFUSED.match(str(error))
        reason = ": ".join(filter(None, said.groups())) if said else str(error).partition("\n")[0]
        reason = reason.replace('\\"', '"')
        raise (FileNotFoundError if isinstance(error, FileNotFoundError) else OSError)(reason) from error
