"""
Tests for L{admission.kafka.broker.log.storage}.
"""

import errno
import os

import lmdb
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import LogFailed, LogInUse
from admission.kafka.broker.log.storage import DirectoryLock, explain, openStorage
from tests.kit.logfixture import storageError

MAP_SIZE_BYTES = 1 << 20


class ExplainTests(SynchronousTestCase):
    """
    L{explain} says what to do.
    """

    def test_remedies(self) -> None:
        """
        Each error that an operator can do something about names the remedy;
        others speak for themselves.
        """
        self.assertIn("larger map size", explain(lmdb.MapFullError("mdb_put")))
        self.assertIn("restart", explain(lmdb.PanicError("mdb_txn_begin")))
        self.assertIn("disk is full", explain(storageError(errno.ENOSPC)))
        self.assertIn("make room", explain(storageError(errno.EIO)))
        self.assertIn("mdb_frobnicate", explain(lmdb.CorruptedError("mdb_frobnicate")))


class DirectoryLockTests(SynchronousTestCase):
    """
    L{DirectoryLock} is for one at a time.
    """

    def setUp(self) -> None:
        """
        Lock a directory.
        """
        self.path = self.mktemp()
        os.mkdir(self.path)
        self.lock = DirectoryLock(self.path)
        self.addCleanup(self.lock.release)

    def test_refused(self) -> None:
        """
        A second lock is refused, naming the directory and the process.
        """
        refused = self.assertRaises(LogInUse, DirectoryLock, self.path)
        self.assertEqual((refused.path, refused.pid), (self.path, os.getpid()))
        self.assertIn(self.path, str(refused))
        self.assertIn(str(os.getpid()), str(refused))

    def test_released(self) -> None:
        """
        A released directory can be locked again, and names its new owner once.
        """
        self.lock.release()
        again = DirectoryLock(self.path)
        self.addCleanup(again.release)
        self.assertEqual(self.assertRaises(LogInUse, DirectoryLock, self.path).pid, os.getpid())

    def test_nameless(self) -> None:
        """
        An owner that left no number is called another process.
        """
        with open(os.path.join(self.path, "broker.lock"), "w"):
            pass
        refused = self.assertRaises(LogInUse, DirectoryLock, self.path)
        self.assertIsNone(refused.pid)
        self.assertIn("another process", str(refused))


class StorageTests(SynchronousTestCase):
    """
    L{openStorage} opens what it wrote, and nothing else.
    """

    def setUp(self) -> None:
        """
        Have an empty directory.
        """
        self.path = self.mktemp()
        os.mkdir(self.path)

    def test_counters(self) -> None:
        """
        A counter goes on where it was, also after a restart.
        """
        storage = openStorage(self.path, MAP_SIZE_BYTES)
        with storage.environment.begin(write=True) as transaction:
            self.assertEqual(storage.advance(transaction, b"sheep", 3), 0)
            self.assertEqual(storage.advance(transaction, b"sheep", 1), 3)
        storage.environment.close()
        storage = openStorage(self.path, MAP_SIZE_BYTES)
        self.addCleanup(storage.environment.close)
        with storage.environment.begin(write=True) as transaction:
            self.assertEqual(storage.advance(transaction, b"sheep", 1), 4)
            self.assertEqual(storage.advance(transaction, b"goats", 1), 0)

    def test_otherFormat(self) -> None:
        """
        A directory of another format is not opened, and left alone.
        """
        storage = openStorage(self.path, MAP_SIZE_BYTES)
        with storage.environment.begin(write=True) as transaction:
            storage.advance(transaction, b"format", 1)
        storage.environment.close()
        for _ in range(2):
            self.assertIn("format 2", str(self.assertRaises(LogFailed, openStorage, self.path, MAP_SIZE_BYTES)))

    def test_unusable(self) -> None:
        """
        What is no log is refused with its path.
        """
        with open(os.path.join(self.path, "data.mdb"), "wb") as file:
            file.write(bytes(100_000))
        self.assertIn(self.path, str(self.assertRaises(LogFailed, openStorage, self.path, MAP_SIZE_BYTES)))

    def test_readingFails(self) -> None:
        """
        An error while reading becomes a refusal in words.
        """
        storage = openStorage(self.path, MAP_SIZE_BYTES)
        storage.environment.close()

        def read() -> None:
            with storage.cursor(storage.batches):
                self.fail("read from a closed environment")

        self.assertRaises(LogFailed, read)
