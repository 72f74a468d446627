"""Recordings and results in HDFS, on a real one of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from pyarrow.fs import LocalFileSystem, copy_files

from admission.offline.population import Population
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from admission.recording import hdfs
from admission.recording.places import StorageFailed, filesBelow, hasEntry, namesIn, readWhole, storageOf, writeFile
from admission.shipping.target import Target
from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.hdfsserver import MOUNTS, NAME_SERVICE, HdfsServer
from tests.kit.recordings import writeRecording
from tests.kit.shippingcase import HOUR, ShippingCase, complaints
from tests.spark.test_pyspark_admission import someEvents

_MANY_SECONDS = 10 * PATIENCE_SECONDS


class HdfsTests(ShippingCase):
    """All uses, with one HDFS, a directory of which is each test's own."""

    server: ClassVar[HdfsServer]

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = HdfsServer()
        cls.addClassCleanup(cls.server.remove)
        cls.server.start()

    def setUp(self) -> None:
        super().setUp()
        self.url = f"{self.server.url}/{self.id()}"
        self.environment.update(self.server.settings)

    def test_names(self) -> None:
        """Files are found by names that are taken literally, replaced, and bounded when they are read."""
        place = f"{self.url}/a b/c%20#?.bin"
        self.assertEqual([filesBelow(self.url), namesIn(self.url), hasEntry(place)], [[], set(), False])
        content = bytes(range(256)) * (9 << 12)
        for each in (b"first", content):
            writeFile(place, each)
            self.assertEqual(filesBelow(self.url), [(place, len(each))])
            self.assertEqual(readWhole(place, len(content)), each)
        self.assertEqual(namesIn(self.url), {"a b"})
        self.assertRaises(OSError, readWhole, place, len(content) - 1)
        self.assertRaises(FileNotFoundError, readWhole, place + "x", 5)
        storage, path = storageOf(place)
        with storage.open_input_file(path) as file:
            self.assertEqual(file.read_at(6, len(content) - 3), content[-3:])

    def test_target(self) -> None:
        """A file gets its name when it is whole, in place of one of that name."""
        target = Target.open(self.url)
        self.assertTrue(target.isEmpty())
        for content in (b"first", b"", b"second and longer"):
            target.put("a/b.parquet", content)
            self.assertEqual(target.sizesBytes(["a/b.parquet", "a/c", "a"]), [len(content), None, None])
        self.assertEqual(target.read("a/b.parquet", 6), b"second")
        self.assertEqual(namesIn(f"{self.url}/a"), {"b.parquet"})

    def test_configured(self) -> None:
        """HADOOP_CONF_DIR explains name services and mounts, and HADOOP_USER_NAME is the user."""
        writeFile(f"{self.url}/a", b"1")
        program = (
            "import sys; from admission.recording.places import filesBelow, writeFile\n"
            "for each in sys.argv[1:]: print(filesBelow(each))\n"
            "writeFile(sys.argv[1] + '/b', b'2')"
        )
        places = [f"{kind}/{self.id()}" for kind in (f"hdfs://{NAME_SERVICE}", f"viewfs://{MOUNTS}", "hdfs://")]
        done = subprocess.run(
            [sys.executable, "-c", program, *places],
            env={**ENVIRONMENT, **self.server.settings, "HADOOP_USER_NAME": "somebody"},
            capture_output=True,
            text=True,
            timeout=_MANY_SECONDS,
        )
        self.assertEqual(done.stdout.splitlines(), [str([(f"{each}/a", 1)]) for each in places], done.stderr)
        told = done.stderr.splitlines()[-1]
        self.assertIn(f"StorageFailed: {places[0]}/b cannot be reached (AccessControlException: Permission", told)
        self.assertIn("user=somebody", told)
        self.assertIn("the user is in HADOOP_USER_NAME", told)

    def test_away(self) -> None:
        """A namenode that is frozen, or killed, is told in a sentence after a time, and used again when it is back."""
        writeFile(f"{self.url}/a", b"1")
        # What it tells is told in the same words as after a minute.
        self.patch(hdfs, "LONGEST_WAIT_SECONDS", 2.0)
        self.server.freezeNamenode()
        self.addCleanup(self.server.thawNamenode)
        for _ in range(3):
            told = str(self.assertRaises(StorageFailed, namesIn, self.url))
            self.assertIn(f"{self.url} cannot be reached (no server has answered for 2 s): a URL has HOST:PORT", told)
        self.patch(hdfs, "LONGEST_WAIT_SECONDS", _MANY_SECONDS)
        self.server.killNamenode()
        told = str(self.assertRaises(StorageFailed, namesIn, self.url))
        self.assertIn(f"{self.url} cannot be reached (Connection refused (os error 111)): a URL has HOST:PORT", told)
        self.server.startNamenode()
        self.server.awaitWritable()
        self.assertEqual(readWhole(f"{self.url}/a", 1), b"1")

    def stored(self) -> dict[str, bytes]:
        """What readers see."""
        found = {place.removeprefix(f"{self.url}/"): place for place, _ in filesBelow(self.url)}
        seen = {name: place for name, place in found.items() if not os.path.basename(name).startswith((".", "_"))}
        return {name: readWhole(place, 1 << 20) for name, place in seen.items()}

    def test_killed(self) -> None:
        """
        The command is killed while it ships, and so is the namenode, which comes back later: after the end each file is
        there as it was, and none was removed here before.
        """
        wanted: dict[str, bytes] = {}
        for number in range(30):
            self.seal(f"run-{number:06d}")
            if number % 10 == 9:
                wanted.update(self.here())
                process = self.start("--follow", "--every", "100ms", "--remove")
                count = len(self.stored())
                self.until(lambda count=count: len(self.stored()) > count)  # type: ignore[misc]
                process.kill()
                process.communicate()
                there = self.stored()
                self.assertEqual({name: each for name, each in wanted.items() if name in there}, there)
                self.assertEqual(set(wanted), set(there) | set(self.here()))
        self.server.killNamenode()
        self.seal("run-last")
        wanted.update(self.here())
        process = self.start("--follow", "--every", "100ms", "--remove", "--json")
        assert process.stderr is not None
        said = (line for line in process.stderr if complaints(line))
        self.assertIn("does not take files: ", next(said))
        self.assertIn(f"requests/{HOUR}/run-last.parquet", self.here())
        self.server.startNamenode()
        while "takes files again" not in next(said):
            pass
        self.until(lambda: not [*Path(self.directory).rglob("*.parquet")])
        process.terminate()
        output, _ = process.communicate(timeout=_MANY_SECONDS)
        self.assertEqual((process.returncode, self.stored()), (0, wanted))
        counts = json.loads(output.splitlines()[-1])
        self.assertEqual((counts["waitingFiles"], counts["droppedFiles"]), (0, 0))

    def test_refused(self) -> None:
        """A name that nothing explains is refused at once, and a namenode that is not there is told at the end."""
        self.seal("run-000001")
        for url, words in (
            ("hdfs://nowhere/a", "hdfs://nowhere cannot be used (No NameNode hosts found): a URL has HOST:PORT"),
            ("hdfs://127.0.0.1:1/a", "files were not shipped (1): "),
        ):
            self.url = url
            output, errors = self.start("--timeout", "100ms").communicate(timeout=_MANY_SECONDS)
            self.assertEqual(output, "")
            self.assertIn(words, errors)
            self.assertNotIn("Traceback", errors)

    def test_same(self) -> None:
        """A copy in HDFS is read as the recording is, in each way, and results may go there."""
        directory, out = Path(self.directory), Path(self.mktemp()).absolute()
        recordSynthetic(
            str(directory / "a whole"),
            SyntheticServer(
                Population(clients=4, connections=2, seconds=20.0, requests=400),
                ["client-bytes:produce=16KiB"],
                "bounded:8MiB",
            ),
        )
        writeRecording(directory / "a part", someEvents(3))
        writeRecording(directory / "a part", someEvents(2), isSealed=False)
        storage, path = storageOf(self.url)
        copy_files(str(directory), path, LocalFileSystem(), storage)
        process = subprocess.run(
            [
                *DYING_WITH_US,
                *[sys.executable, "-m", "tests.spark.otherstorage", str(directory)],
                *[f"hdfs://{NAME_SERVICE}/{self.id()}", str(out)],
            ],
            env={**ENVIRONMENT, **self.server.settings},
            capture_output=True,
            text=True,
            timeout=_MANY_SECONDS,
        )
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        found = json.loads(process.stdout.splitlines()[-1])
        for table in ("requests", "connections", "limits", "sensors"):
            rows, differing = found[table]
            self.assertGreater(rows, 1, table)
            self.assertEqual([differing, found[f"{table} of Recording"]], [0, 0], table)
        self.assertEqual([found["stream"], found["problems"]], [[3, 0], 0])
        self.assertGreater(found["results"][0], 20)
        self.assertEqual([found["results"][1], found["stored"]], [[], []])
