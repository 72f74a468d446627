"""C{admission recording ship} as a process, with a bucket on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from attrs import evolve
from pyarrow import fs, parquet

from admission.cli import main
from admission.recording.events import OPENED, ConnectionEvent
from admission.shipping.pseudonyms import Pseudonyms
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.identitygate import assertAsRecorded, gate, readRecording
from tests.kit.recordings import writeRecording
from tests.kit.shippingcase import ShippingCase, complaints

_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def freePort() -> int:
    """A port that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class S3Case(ShippingCase):
    """Tests with moto's server."""

    def setUp(self) -> None:
        super().setUp()
        self.port = freePort()
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_REGION": "us-east-1"}
        self.environment.update(_CREDENTIALS, **endpoint)
        self.url = "s3://bucket/some/where"

    def startServer(self) -> subprocess.Popen[bytes]:
        """Start the server; it has no buckets."""
        log = open(os.path.abspath(self.mktemp()), "wb")  # noqa: SIM115
        self.addCleanup(log.close)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.send_signal, signal.SIGCONT)
        self.until(self._isListening)
        return process

    def makeBucket(self) -> None:
        self.bucket().create_dir("bucket")

    def bucket(self) -> Any:
        return fs.S3FileSystem(
            access_key="tests",
            secret_key="tests",
            endpoint_override=f"http://127.0.0.1:{self.port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def stored(self) -> dict[str, bytes]:
        """What readers of the bucket see."""
        bucket = self.bucket()
        found: dict[str, bytes] = {}
        root = "bucket/some/where/"
        for each in bucket.get_file_info(fs.FileSelector(root[:-1], recursive=True, allow_not_found=True)):
            if each.type == fs.FileType.File and not each.base_name.startswith("_"):
                with bucket.open_input_stream(each.path) as stream:
                    found[each.path.removeprefix(root)] = stream.read()
        return found

    def _isListening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class ShipTests(S3Case):
    """C{admission recording ship}"""

    def test_killed(self) -> None:
        """
        Killed at several moments while files are recorded and removed, it goes on where it was: after the end each file
        is in the bucket as it was, and none is here.
        """
        self.startServer()
        self.makeBucket()
        every = [f"run-{number:06d}" for number in range(120)]
        wanted: dict[str, bytes] = {}
        moments = Random(7)
        for name in every:
            self.seal(name)
            if int(name[-2:]) % 20 == 19:
                wanted.update(self.here())
                process = self.start("--follow", "--every", "100ms", "--remove")
                count = len(self.stored())
                self.until(lambda count=count: len(self.stored()) > count)  # type: ignore[misc]
                time.sleep(moments.uniform(0.0, 0.3))
                process.kill()
                process.communicate()
                there = self.stored()
                self.assertEqual({name: each for name, each in wanted.items() if name in there}, there)
                self.assertEqual(set(wanted), set(there) | set(self.here()))
        process = self.start("--remove", "--json")
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, complaints(errors)), (0, []))
        self.assertEqual((self.stored(), self.here()), (wanted, {}))
        self.assertEqual(len(wanted), len(every))
        counts = json.loads(output)
        self.assertEqual((counts["waitingFiles"], counts["failures"], counts["droppedFiles"]), (0, 0, 0))

    def test_sealed_meanwhile(self) -> None:
        """Killed while segments are sealed into a recording of which files are removed, each event is there once."""
        there = os.path.abspath(self.mktemp())
        self.url = f"file://{there}"
        Path(self.directory).mkdir()
        moments = Random(9)
        seq = 0

        def record() -> int:
            nonlocal seq
            events = [ConnectionEvent(1, 1.0, OPENED, seq=seq + each) for each in range(1, 4)]
            writeRecording(self.directory, events, wallSeconds=time.time(), firstNumber=seq + 1)
            seq += 3
            return len(list(Path(there).rglob("*.parquet")))

        for _ in range(5):
            shipped = record()
            process = self.start("--follow", "--every", "20ms", "--remove")
            # It is killed some time after it has begun to ship.
            self.until(lambda shipped=shipped: record() > shipped)  # type: ignore[misc]
            killed = time.monotonic() + moments.uniform(0.0, 1.0)
            while time.monotonic() < killed:
                record()
            process.kill()
            process.communicate()
        process = self.start("--remove")
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, complaints(errors), self.here()), (0, [], {}))
        tables = [parquet.read_table(path, partitioning=None) for path in Path(there).rglob("*.parquet")]
        self.assertEqual(
            sorted(each for table in tables for each in table.column("seq").to_pylist()), [*range(1, seq + 1)]
        )

    def test_away(self) -> None:
        """A bucket that is away, first and later, is waited for; SIGTERM ends the command in order."""
        self.seal("run-000001")
        process = self.start("--follow", "--every", "200ms", "--json")
        assert process.stderr is not None
        said = (line for line in process.stderr if complaints(line))
        self.assertIn("does not take files", next(said))
        server = self.startServer()
        self.makeBucket()
        self.until(lambda: len(self.stored()) == 1)
        server.kill()
        server.wait()
        self.seal("run-000002")
        self.assertIn("takes files again", next(said))
        self.assertIn("does not take files", next(said))
        # It has forgotten everything.
        self.startServer()
        self.makeBucket()
        self.until(lambda: len(self.stored()) == 1)
        self.assertIn("takes files again", next(said))
        process.terminate()
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, complaints(errors)), (0, []))
        counts = json.loads(output.splitlines()[-1])
        self.assertEqual((counts["shippedFiles"], counts["waitingFiles"]), (2, 0))
        self.assertGreater(counts["failures"], 0)

    def test_given_up(self) -> None:
        """Without --follow, a bucket that is not there is told in a sentence after the timeout."""
        self.seal("run-000001")
        process = self.start("--timeout", "100ms")
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, output), (1, ""))
        self.assertEqual(len(complaints(errors)), 2, errors)
        self.assertIn("files were not shipped (1): ", errors)

    def test_pseudonyms(self) -> None:
        """A recording in the bucket has no names, and replays as the recording does."""
        self.assertEqual(
            main(["synth", self.directory, "--clients", "9", "--seconds", "20", "--quota", "client-bytes:produce=20k"]),
            0,
        )
        key = Path(self.mktemp())
        key.write_bytes(b"a key of the tests, long enough")
        self.startServer()
        self.makeBucket()
        process = self.start("--pseudonyms", str(key))
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, complaints(errors)), (0, []))
        copy = self.mktemp()
        fs.copy_files(
            "bucket/some/where", copy, source_filesystem=self.bucket(), destination_filesystem=fs.LocalFileSystem()
        )
        named, hidden = (gate(readRecording(each), lambda run: evolve(run, gaps=[])) for each in (self.directory, copy))
        assertAsRecorded(self, hidden)
        self.assertEqual(hidden, named)
        pseudonyms = Pseudonyms(key.read_bytes())
        names = self._names(self.directory)
        self.assertEqual(
            self._names(copy), {pseudonyms.of("client", name) for name in names if name is not None} | (names & {None})
        )

    def _names(self, directory: str) -> set[str | None]:
        return {row["client_id"] for row in readRecording(directory).rows}
