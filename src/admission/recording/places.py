# -*- test-case-name: tests.offline.test_places -*-
"""
Places of recordings and of results: directories of this machine, named by paths, and of other storage, named by URLs.

pyarrow reaches other storage, and HDFS by L{admission.recording.hdfs}, from any process, with or without Java.
Credentials are taken from the environment of that process, as the storage's own tools do; a URL must have none.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from ..boundedfile import FileRefused, readBounded
from ..extras import explaining
from ..units import formatBytes

if TYPE_CHECKING:
    from pyarrow import BufferReader  # type: ignore[import-untyped]
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

_S3 = "credentials and settings are in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"
_GOOGLE = "credentials are in the file that GOOGLE_APPLICATION_CREDENTIALS names"
_AZURE = "credentials are in AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
_HADOOP = (
    "a URL has HOST:PORT of the namenode, or a name that core-site.xml or hdfs-site.xml in HADOOP_CONF_DIR explains; "
    "the user is in HADOOP_USER_NAME"
)

_REMEDIES: Final = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hdfs": _HADOOP,
    "viewfs": _HADOOP,
}
"""Where each kind of storage has its settings, besides those of its own tools."""

_PYARROW_NAMES: Final = {"s3a": "s3"}
_HADOOP_NAMES: Final = ("hdfs", "viewfs")

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL_URL: Final = re.compile(r"file:(?://)?(?=/(?!/))", re.IGNORECASE)


class StorageFailed(OSError):
    """
    Other storage cannot be reached, or refuses something.  Its text is a sentence with the remedy.
    """


class StorageUnusable(StorageFailed):
    """
    Storage cannot be reached by this process at all, however often it is tried.
    """


def isRemote(place: str) -> bool:
    """
    Whether a place is in other storage.
    """
    return _URL.match(place) is not None


def namedPlace(text: str) -> str:
    """
    The place that a user names: a path as it is, without the C{file:} that may be before it, or another URL.

    Names in URLs are taken literally, as Spark takes them: C{%20} is no space.

    @raise ValueError: for a URL of another kind, or with a password or a user that is not taken from there.
    """
    place = _LOCAL_URL.sub("", text, count=1)
    if not isRemote(place):
        return place
    parts = urlsplit(place)
    if parts.scheme not in _REMEDIES:
        kinds = ", ".join(f"{each}://" for each in _REMEDIES)
        raise ValueError(f"{text} is in storage of an unknown kind: name a directory, or a URL with one of {kinds}")
    if not parts.netloc and not parts.path.strip("/"):
        raise ValueError(f"{text} names no bucket or directory: write s3://BUCKET/PREFIX or the like")
    if parts.password is not None:
        raise ValueError(f"a URL with a password would be stored with results: leave it out, {_REMEDIES[parts.scheme]}")
    if parts.username is not None and parts.scheme in _HADOOP_NAMES:
        raise ValueError(f"{text} has a user, who is not taken from a URL: leave it out, {_HADOOP}")
    return place.rstrip("/")


def settingsOf(place: str) -> str:
    """
    Where other storage has its credentials and settings, as part of a sentence.
    """
    return _REMEDIES[urlsplit(place).scheme]


def modulesFor(place: str) -> tuple[str, ...]:
    """
    What a process has to import to read a place, besides what it needs for any.
    """
    return ("admission.recording.hdfs",) if urlsplit(place).scheme in _HADOOP_NAMES else ()


def absolutePlace(text: str) -> str:
    """
    The same, and a path is absolute.

    @raise ValueError: as L{namedPlace} does.
    """
    place = namedPlace(text)
    return place if isRemote(place) else str(Path(place).absolute())


def filesBelow(place: str) -> list[tuple[str, int]]:
    """
    The files of other storage in a directory and in those below, none if there is no such directory: the place of each,
    and its size in bytes.

    @raise StorageFailed: if they cannot be listed.
    """
    from pyarrow.fs import FileSelector

    storage, path = storageOf(place)
    with _explaining(place):
        found = storage.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    # Some kinds of storage begin their paths with a slash, and some do not.
    above = path.strip("/")
    files = [(each.path.lstrip("/").removeprefix(above).lstrip("/"), each.size) for each in found if each.is_file]
    return [(f"{place}/{name}", sizeBytes) for name, sizeBytes in files]


def namesIn(place: str) -> set[str]:
    """
    The names of what is in a directory of other storage; none if there is no such directory.

    @raise StorageFailed: if they cannot be listed.
    """
    from pyarrow.fs import FileSelector

    storage, path = storageOf(place)
    with _explaining(place):
        return {each.base_name for each in storage.get_file_info(FileSelector(path, allow_not_found=True))}


def hasEntry(place: str) -> bool:
    """
    Whether there is a file or a directory.

    @raise StorageFailed: if that cannot be found out.
    """
    if not isRemote(place):
        return os.path.exists(place)
    from pyarrow.fs import FileType

    storage, path = storageOf(place)
    with _explaining(place):
        return bool(storage.get_file_info(path).type != FileType.NotFound)


def readWhole(place: str, maxBytes: int) -> bytes:
    """
    Read a file of other storage or of this machine.

    @raise FileRefused: as L{readBounded} does.
    @raise StorageFailed: if other storage does not hand it out.
    @raise OSError: if there is no such file, or it cannot be read.
    """
    if not isRemote(place):
        return readBounded(place, maxBytes)
    storage, path = storageOf(place)
    with _explaining(place), storage.open_input_file(path) as file:
        content: bytes = b"" if file.size() > maxBytes else file.read()
        if file.size() > maxBytes:
            raise FileRefused(errno.EFBIG, f"it has more than {formatBytes(maxBytes)}", place)
    return content


def writeFile(place: str, content: bytes) -> None:
    """
    Write a file of other storage, which replaces one of that name.

    @raise StorageFailed: if the storage does not take it.
    """
    storage, path = storageOf(place)
    directory = path.rpartition("/")[0]
    with _explaining(place):
        # In a bucket directories are only parts of names.
        if storage.type_name not in ("s3", "gcs"):
            storage.create_dir(directory)
        with storage.open_output_stream(path) as file:
            file.write(content)


def removeFile(place: str) -> None:
    """
    Remove a file of other storage.

    @raise StorageFailed: if the storage keeps it.
    """
    storage, path = storageOf(place)
    with _explaining(place):
        storage.delete_file(path)


def parquetSource(place: str) -> str | BufferReader:
    """
    What pyarrow's reader of Parquet opens to read a file.  Those of other storage are fetched whole: a request takes
    longer than the bytes of a small file, and what fails later is the fault of the file.

    @raise StorageFailed: if other storage does not hand it out.
    @raise FileNotFoundError: if other storage has no such file.
    """
    if not isRemote(place):
        return place
    from pyarrow import BufferReader

    storage, path = storageOf(place)
    with _explaining(place), storage.open_input_file(path) as file:
        return BufferReader(file.read_buffer())


def storageOf(place: str) -> tuple[FileSystem, str]:
    """
    The file system of pyarrow's that a place is in, and the path in that.

    @raise StorageFailed: if other storage cannot be reached; L{StorageUnusable} if that can never be.
    """
    if not isRemote(place):
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(Path(place).absolute())
    parts = urlsplit(place)
    with _explaining(place):
        storage, base = _storage(parts.scheme, parts.netloc)
    inside = place.partition("://")[2][len(parts.netloc) :]
    return storage, base.rstrip("/") + inside


@cache
def _storage(scheme: str, authority: str) -> tuple[FileSystem, str]:
    from pyarrow import fs

    if scheme in _HADOOP_NAMES:
        return _hadoopStorage(f"{scheme}://{authority}"), ""
    url = f"{_PYARROW_NAMES.get(scheme, scheme)}://{quote(authority, safe='@:.')}/"
    found: tuple[FileSystem, str] = fs.FileSystem.from_uri(url)
    return found


def _hadoopStorage(url: str) -> FileSystem:
    from pyarrow.fs import PyFileSystem

    with explaining(url, StorageUnusable):
        from .hdfs import HdfsFiles
    try:
        return PyFileSystem(HdfsFiles(url))
    except OSError as error:
        raise StorageUnusable(f"{url} cannot be used ({error}): {_HADOOP}") from error


@contextmanager
def _explaining(place: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (FileNotFoundError, FileRefused, StorageFailed):
        raise
    except (OSError, ArrowException) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise StorageFailed(
            f"{place} cannot be reached ({reason}): {settingsOf(place)}, wherever it is used"
        ) from error
