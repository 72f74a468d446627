"""L{admission.shipping.shipper}, its rounds, and the files it finds."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field
from hypothesis import given, settings, strategies as st
from pyarrow import fs, parquet
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.shipping import shipper as shipping
from admission.shipping.closedfiles import closedFiles
from admission.shipping.pseudonyms import Pseudonyms
from admission.shipping.rounds import NotShipped, follow, shipOnce
from admission.shipping.shipper import MARK, Retention, Shipper, ShippingRefused, locked
from admission.shipping.target import Target

HOUR = "dt=2026-03-01/hour=07"

KEY = b"a key of the tests, long enough"


class Killed(BaseException):
    """The process is over."""


@define(eq=False)
class Faulty:
    """
    A file system in a directory that fails, or kills the process that calls it.

    @ivar type_name: C{local} for one that renames; another for a bucket, where a file is there once it is closed.
    @ivar fail: called with each operation and its path, before it is done and in the middle of writing.
    """

    type_name: str = "local"
    fail: Callable[[str, str], object] = lambda operation, path: None
    _real: Any = field(factory=fs.LocalFileSystem, init=False)

    def get_file_info(self, asked: Any) -> Any:
        self.fail("ask", "" if isinstance(asked, fs.FileSelector) else " ".join(asked))
        return self._real.get_file_info(asked)

    def open_input_stream(self, path: str) -> Any:
        self.fail("read", path)
        return self._real.open_input_stream(path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.fail("make", path)
        self._real.create_dir(path, recursive=recursive)

    def move(self, source: str, destination: str) -> None:
        self.fail("move", destination)
        self._real.move(source, destination)

    def open_output_stream(self, path: str, compression: None) -> Any:
        self.fail("open", path)
        return _Stream(self, path)


class _Stream(BytesIO):
    """A file that is written."""

    def __init__(self, faulty: Faulty, path: str) -> None:
        super().__init__()
        self._faulty = faulty
        self._path = path

    def write(self, content: Any) -> int:
        isShown = self._faulty.type_name == "local"
        if isShown:
            Path(self._path).write_bytes(bytes(content)[: len(content) // 2])
        self._faulty.fail("write", self._path)
        if isShown:
            Path(self._path).write_bytes(content)
        return super().write(content)

    def __exit__(self, type: Any, *rest: object) -> None:
        if type is None:
            self._faulty.fail("close", self._path)
            if self._faulty.type_name != "local":
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                Path(self._path).write_bytes(self.getvalue())


def killingAt(count: int) -> Callable[[str, str], object]:
    """Kill at one of the calls, and at all that come later."""
    calls = iter(range(count))

    def fail(operation: str, path: str) -> None:
        if next(calls, None) is None:
            raise Killed(operation)

    return fail


def tableOf(rows: int) -> pa.Table:
    return pa.table({"seq": list(range(rows)), "client_id": ["alice"] * rows})


class RecordingCase(SynchronousTestCase):
    """Tests of a made-up recording."""

    def setUp(self) -> None:
        self.directory = os.path.abspath(self.mktemp())
        self.there = os.path.abspath(self.mktemp())
        os.makedirs(os.path.join(self.directory, "_segments"))
        self.told: list[str] = []

    def seal(self, name: str, table: str = "requests", ageSeconds: float = 0.0, rows: int = 3) -> Path:
        path = Path(self.directory, table, HOUR, f"{name}.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(tableOf(rows), path)
        os.utime(path, (1_000_000 - ageSeconds,) * 2)
        return path

    def shipper(self, fileSystem: Faulty | None = None, **attributes: Any) -> Shipper:
        attributes = {"tell": self.told.append, "wallSeconds": lambda: 1_000_000.0, **attributes}
        return Shipper(self.directory, lambda: Target(fileSystem or Faulty(), self.there), **attributes)

    def visible(self, directory: str) -> dict[str, bytes]:
        """What readers of a directory see."""
        paths = [path for path in Path(directory).rglob("*") if path.is_file()]
        names = {str(path.relative_to(directory)): path for path in paths}
        return {
            name: path.read_bytes()
            for name, path in names.items()
            if not any(part.startswith((".", "_")) for part in name.split("/"))
        }


class KillTests(RecordingCase):
    """A kill at any moment loses and doubles nothing."""

    def _kill(self, typeName: str, counts: Sequence[int], isRemoved: bool, pseudonyms: Pseudonyms | None) -> None:
        self.setUp()
        for number in range(3):
            self.seal(f"run-{number:06d}", rows=number + 1)
        self.seal("run-000000", "limits")
        names = self.visible(self.directory)
        wanted = {name: pseudonyms.rewritten(each) if pseudonyms else each for name, each in names.items()}
        retention = Retention(keepSeconds=0.0 if isRemoved else None)
        self.patch(shipping, "PARALLEL_FILES", 1)
        for count in counts:
            with contextlib.suppress(Killed):
                self.shipper(Faulty(typeName, killingAt(count)), pseudonyms=pseudonyms, retention=retention).look()
            there, here = self.visible(self.there), self.visible(self.directory)
            self.assertEqual({name: each for name, each in wanted.items() if name in there}, there)
            self.assertEqual(set(names), set(here) | set(there))
        self.shipper(Faulty(typeName), pseudonyms=pseudonyms, retention=retention).look()
        self.assertEqual(self.visible(self.there), wanted)
        self.assertEqual(self.visible(self.directory), {} if isRemoved else names)

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(("local", "s3")), st.lists(st.integers(0, 45), max_size=3), st.booleans(), st.booleans())
    def test_any(self, typeName: str, counts: list[int], isRemoved: bool, isPseudonymous: bool) -> None:
        """
        Whenever the command is killed, and however often, no file at the target is incomplete, none is lost, and after
        it has ended once each is there as it was.
        """
        self._kill(typeName, counts, isRemoved, Pseudonyms(KEY) if isPseudonymous else None)

    def test_each(self) -> None:
        """The same for a kill at each call that there is."""
        for count in range(40):
            self._kill("local", [count], True, None)


class ShipperTests(RecordingCase):
    """L{Shipper}"""

    def test_closed(self) -> None:
        """Neither segments nor files that sealing may write again are shipped, nor names that readers do not see."""
        self.seal("run-000001")
        self.seal("run-000002")
        self.seal(".run-000003")
        self.seal("run-000004", "_other")
        Path(self.directory, "_segments", "run-000002.segment").write_bytes(b"x")
        shipper = self.shipper()
        shipper.look()
        self.assertEqual(list(self.visible(self.there)), [f"requests/{HOUR}/run-000001.parquet"])
        Path(self.directory, "_segments", "run-000002.segment").unlink()
        shipper.look()
        self.assertEqual(len(self.visible(self.there)), 2)
        self.assertEqual((shipper.counts.shippedFiles, shipper.counts.presentFiles), (2, 0))

    def test_again(self) -> None:
        """What is there is not stored again; what has another size is."""
        self.seal("run-000001")
        self.shipper().look()
        again = self.shipper()
        again.look()
        self.assertEqual((again.counts.shippedFiles, again.counts.presentFiles), (0, 1))
        self.seal("run-000001", rows=50)
        again.look()
        self.assertEqual(again.counts.shippedFiles, 1)
        self.assertEqual(self.visible(self.there), self.visible(self.directory))

    def test_one_that_fails(self) -> None:
        """A file that the target never takes keeps no other from being shipped."""
        for number in range(20):
            self.seal(f"run-{number:06d}", ageSeconds=100.0 - number)

        def fail(operation: str, path: str) -> None:
            if operation == "open" and "-00000" in path:
                raise PermissionError(errno.EACCES, "no")

        shipper = self.shipper(Faulty("s3", fail))
        for _ in range(4):
            shipper.look()
        self.assertEqual(len(self.visible(self.there)), 10)
        self.assertEqual((shipper.counts.waitingFiles, shipper.problem), (10, "no"))
        self.assertEqual(len(self.told), 1, self.told)

    def test_full(self) -> None:
        """A full disk at the target leaves no file that readers see, and files are shipped once there is room."""
        self.seal("run-000001")
        room: list[bool] = []

        def fail(operation: str, path: str) -> None:
            if operation == "write" and MARK not in path and not room:
                raise OSError(errno.ENOSPC, "No space left on device")

        shipper = self.shipper(Faulty("local", fail), retention=Retention(keepSeconds=0.0))
        shipper.look()
        self.assertEqual((self.visible(self.there), len(self.visible(self.directory))), ({}, 1))
        room.append(True)
        before = self.visible(self.directory)
        shipper.look()
        self.assertEqual((self.visible(self.there), self.visible(self.directory)), (before, {}))
        self.assertIn("No space left on device", self.told[0])
        self.assertEqual(self.told[1:], ["the target takes files again"])

    def test_unreadable(self) -> None:
        """A file that cannot be read is told once, shipped never and removed never."""
        self.seal("run-000001").write_bytes(b"PAR1 and nothing else")
        shipper = self.shipper(pseudonyms=Pseudonyms(KEY), retention=Retention(keepSeconds=0.0))
        shipper.look()
        shipper.look()
        self.assertEqual((len(self.told), shipper.counts.unreadableFiles, shipper.counts.waitingFiles), (1, 1, 0))
        self.assertEqual((self.visible(self.there), len(self.visible(self.directory))), ({}, 1))

    def test_too_large(self) -> None:
        """A file that is larger than any that is sealed is not read."""
        os.truncate(self.seal("run-000001"), shipping.MAX_FILE_BYTES + 1)
        shipper = self.shipper()
        shipper.look()
        self.assertEqual(shipper.counts.unreadableFiles, 1)
        self.assertIn("64MiB", self.told[0])

    def test_vanished(self) -> None:
        """Files that the server removes before they were shipped are counted."""
        path = self.seal("run-000001")

        def fail(operation: str, path: str) -> None:
            raise OSError("away")

        shipper = self.shipper(Faulty(fail=fail))
        shipper.look()
        path.unlink()
        shipper.look()
        self.assertEqual((shipper.counts.vanishedFiles, shipper.counts.waitingFiles), (1, 0))
        self.assertIn("a larger cap", self.told[-1])

    def test_mixed(self) -> None:
        """Names and pseudonyms, or pseudonyms of two keys, do not come to one target."""
        self.seal("run-000001")
        self.shipper(pseudonyms=Pseudonyms(KEY)).look()
        for other in (None, Pseudonyms(KEY + b".")):
            with self.assertRaises(ShippingRefused):
                self.shipper(pseudonyms=other).look()
        self.shipper(pseudonyms=Pseudonyms(KEY)).look()

    def test_occupied(self) -> None:
        """Pseudonyms do not come to a target with files of which nobody knows what is in them."""
        self.seal("run-000001")
        Path(self.there, "requests").mkdir(parents=True)
        with self.assertRaises(ShippingRefused):
            self.shipper(pseudonyms=Pseudonyms(KEY)).look()

    def test_itself(self) -> None:
        """A recording is not shipped to itself, whatever it is called."""
        self.seal("run-000001")
        os.symlink(self.directory, self.there)
        with self.assertRaises(ShippingRefused):
            self.shipper(retention=Retention(keepSeconds=0.0)).look()
        self.assertEqual(len(self.visible(self.directory)), 1)

    def test_locked(self) -> None:
        """Two do not ship one recording."""
        with locked(self.directory), self.assertRaises(ShippingRefused), locked(self.directory):
            pass
        with locked(self.directory):
            pass


class RetentionTests(RecordingCase):
    """What L{Shipper} removes."""

    def test_kept(self) -> None:
        """Files are kept for as long as they should be, and removed with their directories."""
        self.seal("run-000001", ageSeconds=7200.0)
        young = self.seal("run-000002", "limits", ageSeconds=60.0)
        shipper = self.shipper(retention=Retention(keepSeconds=3600.0))
        shipper.look()
        self.assertEqual([file.path for file in closedFiles(self.directory)], [str(young)])
        self.assertEqual((shipper.counts.removedFiles, len(self.visible(self.there))), (1, 2))
        self.assertFalse(Path(self.directory, "requests", "dt=2026-03-01").exists())

    def test_lost_there(self) -> None:
        """A file that the target has lost meanwhile is not removed, and is shipped again."""
        path = self.seal("run-000001", ageSeconds=10.0)
        now = [1_000_000.0]
        shipper = self.shipper(retention=Retention(keepSeconds=3600.0), wallSeconds=lambda: now[0])
        shipper.look()
        stored = Path(self.there, "requests", HOUR, "run-000001.parquet")
        stored.unlink()
        now[0] += 3600.0
        shipper.look()
        self.assertTrue(path.exists())
        shipper.look()
        self.assertEqual((path.exists(), stored.exists()), (False, True))

    def test_sealed_again(self) -> None:
        """A file that has changed since it was shipped is not removed."""
        path = self.seal("run-000001", ageSeconds=10.0)

        def fail(operation: str, asked: str) -> None:
            if operation == "ask" and os.path.exists(asked) and path.name in asked:
                self.seal("run-000001", ageSeconds=5.0, rows=9)

        self.shipper(Faulty("local", fail), retention=Retention(keepSeconds=0.0)).look()
        self.assertTrue(path.exists())
        self.shipper(retention=Retention(keepSeconds=0.0)).look()
        self.assertFalse(path.exists())
        self.assertEqual(
            parquet.read_table(Path(self.there, "requests", HOUR, path.name), partitioning=None).num_rows, 9
        )

    def test_room(self) -> None:
        """A directory that is too large loses the oldest files that the target has, and no more than needed."""
        for number in range(4):
            self.seal(f"run-{number:06d}", ageSeconds=100.0 - number)
        sizeBytes = closedFiles(self.directory)[0].sizeBytes
        self.shipper(retention=Retention(maxLocalBytes=2 * sizeBytes)).look()
        names = [Path(file.name).stem for file in closedFiles(self.directory)]
        self.assertEqual(names, ["run-000002", "run-000003"])

    def test_refused(self) -> None:
        """Without being told so, nothing is removed that the target does not have; that is said once."""
        self.seal("run-000001")
        shipper = self.shipper(Faulty(fail=self._away), retention=Retention(maxLocalBytes=1))
        shipper.look()
        shipper.look()
        self.assertEqual((len(closedFiles(self.directory)), shipper.counts.droppedFiles), (1, 0))
        self.assertEqual(len([each for each in self.told if "--drop" in each]), 1, self.told)

    def test_dropped(self) -> None:
        """Of what the target does not have the oldest is dropped and counted, and limits last."""
        self.seal("run-000001", "limits", ageSeconds=200.0)
        self.seal("run-000001", ageSeconds=100.0, rows=7)
        self.seal("run-000002", ageSeconds=50.0)
        sizeBytes = sum(file.sizeBytes for file in closedFiles(self.directory))
        shipper = self.shipper(
            Faulty(fail=self._away), retention=Retention(maxLocalBytes=sizeBytes - 1, isDropping=True)
        )
        shipper.look()
        names = {file.name for file in closedFiles(self.directory)}
        self.assertEqual(names, {f"limits/{HOUR}/run-000001.parquet", f"requests/{HOUR}/run-000002.parquet"})
        counts = shipper.counts
        self.assertEqual((counts.droppedFiles, counts.droppedEvents, counts.waitingFiles), (1, 7, 2))
        self.assertIn("1 file with 7 events", self.told[-1])
        # It is counted once.
        shipper.look()
        self.assertEqual((counts.droppedFiles, counts.vanishedFiles), (1, 0))

    def test_room_while_away(self) -> None:
        """While the target is away, what it has had goes before what it never had."""
        self.seal("run-000002", ageSeconds=50.0)
        isAway: list[bool] = []

        def fail(operation: str, path: str) -> None:
            if isAway:
                self._away(operation, path)

        sizeBytes = closedFiles(self.directory)[0].sizeBytes
        shipper = self.shipper(Faulty(fail=fail), retention=Retention(maxLocalBytes=sizeBytes, isDropping=True))
        shipper.look()
        isAway.append(True)
        self.seal("run-000001", ageSeconds=100.0)
        shipper.look()
        self.assertEqual([Path(file.name).stem for file in closedFiles(self.directory)], ["run-000001"])
        self.assertEqual((shipper.counts.removedFiles, shipper.counts.droppedFiles), (1, 0))

    def _away(self, operation: str, path: str) -> None:
        raise OSError("away")


class RoundsTests(RecordingCase):
    """L{shipOnce} and L{follow}"""

    def _awayFor(self, looks: int) -> Callable[[], Target]:
        opened: Iterator[int] = iter(range(looks))

        def openTarget() -> Target:
            if next(opened, None) is not None:
                raise OSError("away")
            return Target(Faulty(), self.there)

        return openTarget

    def test_waited(self) -> None:
        """A target that is away is waited for, longer each time."""
        self.seal("run-000001")
        clock, waits = Clock(), list[float]()

        def wait(seconds: float) -> None:
            waits.append(seconds)
            clock.advance(seconds)

        shipper = Shipper(self.directory, self._awayFor(4))
        shipOnce(shipper, 60.0, wait, clock.seconds)
        self.assertEqual((waits, len(self.visible(self.there))), ([1.0, 2.0, 4.0, 8.0], 1))

    def test_given_up(self) -> None:
        """A target that stays away is not waited for beyond the timeout."""
        self.seal("run-000001")
        clock = Clock()
        shipper = Shipper(self.directory, self._awayFor(1000))
        error = self.assertRaises(NotShipped, shipOnce, shipper, 60.0, clock.advance, clock.seconds)
        self.assertEqual(
            (str(error), clock.seconds()), ("files were not shipped (1): away; --timeout waits for longer", 60.0)
        )

    def test_followed(self) -> None:
        """Followed, what is recorded meanwhile is shipped, until it is to stop."""
        waits = list[float]()

        class Stop:
            isSet = False

            def is_set(self) -> bool:
                return self.isSet

            def wait(stop, seconds: float) -> None:
                waits.append(seconds)
                self.seal(f"run-{len(waits):06d}")
                stop.isSet = len(waits) == 5

        stop: Any = Stop()
        shipper = Shipper(self.directory, self._awayFor(2))
        follow(shipper, 30.0, stop, lambda: None)
        self.assertEqual((waits, shipper.counts.shippedFiles), ([1.0, 2.0, 30.0, 30.0, 30.0], 4))
