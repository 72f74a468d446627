"""L{admission.recording.places}"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from pyarrow import parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from twisted.trial.unittest import SynchronousTestCase

from admission import extras
from admission.boundedfile import FileRefused
from admission.recording import places
from admission.recording.places import (
    StorageFailed,
    StorageUnusable,
    absolutePlace,
    filesBelow,
    hasEntry,
    modulesFor,
    parquetSource,
    readWhole,
)

_STORAGE = places._storage


class PlacesTests(SynchronousTestCase):
    """The functions on places."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.joinpath("bucket/a b").mkdir(parents=True)
        storage = SubTreeFileSystem(str(self.root), LocalFileSystem())
        self.patch(places, "_storage", lambda scheme, authority: (storage, authority))

    def test_absolutePlace(self) -> None:
        """A path may have file: before it, and stays what it is otherwise; a URL has no slash in the end."""
        for text, place in [
            ("a b/c", os.path.join(os.getcwd(), "a b/c")),
            ("/a/*/", "/a/*"),
            ("file:/a b", "/a b"),
            ("FILE:///a b", "/a b"),
            ("file:///a%20b/", "/a%20b"),
            ("s3a://bucket/a b/", "s3a://bucket/a b"),
            ("hdfs://host:8020/a", "hdfs://host:8020/a"),
        ]:
            self.assertEqual(absolutePlace(text), place)

    def test_refused(self) -> None:
        """Unknown kinds of storage are refused, and passwords, which would be kept with results, are not repeated."""
        for text in ("ftp://host/a", "file://host/a"):
            self.assertIn("s3a://", str(self.assertRaises(ValueError, absolutePlace, text)))
        refusal = str(self.assertRaises(ValueError, absolutePlace, "s3a://me:secret@bucket/a"))
        self.assertIn("AWS_SECRET_ACCESS_KEY", refusal)
        self.assertNotIn("secret@", refusal)
        self.assertIn("HADOOP_USER_NAME", str(self.assertRaises(ValueError, absolutePlace, "hdfs://me@host:8020/a")))

    def test_modules(self) -> None:
        """What needs a library of its own says so, before and when it is used; it can never be reached without."""
        self.assertEqual(
            [modulesFor(each) for each in ("/a", "s3a://bucket/a", "hdfs://host:8020/a", "viewfs://a/b")],
            [(), (), ("admission.recording.hdfs",), ("admission.recording.hdfs",)],
        )
        self.enterContext(patch.dict(sys.modules, {"hdfs_native": None}))
        sys.modules.pop("admission.recording.hdfs", None)
        self.patch(extras, "find_spec", lambda name: None)
        self.patch(places, "_storage", _STORAGE)
        told = str(self.assertRaises(StorageUnusable, filesBelow, "hdfs://host:8020/a"))
        self.assertEqual(told, "hdfs://host:8020 needs hdfs_native: pip install 'admission[hdfs]'")

    def test_files(self) -> None:
        """Files are found by their URLs, and read whole."""
        self.root.joinpath("bucket/a b/c%20#?.txt").write_bytes(b"12345")
        place = "s3a://bucket/a b/c%20#?.txt"
        self.assertEqual(filesBelow("s3a://bucket/a b"), [(place, 5)])
        self.assertEqual(filesBelow("s3a://bucket/none"), [])
        self.assertEqual([hasEntry(place), hasEntry("s3a://bucket/a b"), hasEntry(place + "x")], [True, True, False])
        self.assertEqual(readWhole(place, 5), b"12345")
        self.assertRaises(FileRefused, readWhole, place, 4)
        self.assertRaises(FileNotFoundError, readWhole, place + "x", 5)
        self.assertRaises(FileNotFoundError, parquetSource, place + "x")

    def test_parquet(self) -> None:
        """A Parquet file is read here as elsewhere."""
        table = pa.table({"a": [1, 2]})
        path = self.root / "bucket" / "a.parquet"
        pq.write_table(table, path)
        for place in (str(path), "s3a://bucket/a.parquet"):
            self.assertEqual(pq.read_table(parquetSource(place)), table)

    def test_failed(self) -> None:
        """What storage says is told in one sentence, with the place and where its settings are."""

        def failing(scheme: str, authority: str) -> None:
            raise OSError("AWS Error ACCESS_DENIED\nand much more")

        self.patch(places, "_storage", failing)
        failure = str(self.assertRaises(StorageFailed, filesBelow, "s3a://bucket/a"))
        self.assertTrue(failure.startswith("s3a://bucket/a cannot be reached (AWS Error ACCESS_DENIED): "), failure)
        self.assertIn("AWS_ACCESS_KEY_ID", failure)
        self.assertNotIn("\n", failure)
