"""C{spark.read.format("admission")}, by Spark itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from twisted.trial.unittest import SynchronousTestCase

from admission.offline.sparksession import javaEnvironment
from admission_plugins.sealing import sealAll
from pyspark_admission.files import segmentNames
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.longform import longForm
from tests.kit.recordings import writeRecording
from tests.kit.sparksession import sharedSession
from tests.spark.test_pyspark_admission import CAP_BYTES, RecordedTestCase, someEvents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECT_SECONDS = 240.0
"""How long a server of Spark's and what is asked of it may take together."""

CONNECT = """
import sys
from admission.offline.sparksession import openSession

session = openSession("connect", {
    "spark.remote": "local[1]",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
})
from admission.offline.recording import Recording

rows = session.read.format("admission").load(sys.argv[1])
recording = Recording.open(session, sys.argv[1], sample="100%", since="2023-11-14")
print(type(session).__module__, rows.count(), recording.requests().count(), recording.problems())
session.stop()
"""


def numbersOf(rows: DataFrame) -> list[int]:
    """The numbers of events, ascending."""
    return sorted(row["seq"] for row in rows.select("seq").collect())


class SparkTestCase(RecordedTestCase):
    """Has Spark and a directory to record to."""

    def setUp(self) -> None:
        super().setUp()
        self.session = sharedSession()

    def read(self, **options: str) -> DataFrame:
        """What the source makes of the directory."""
        return self.session.read.format("admission").options(**options).load(str(self.directory))


NOT_ACTIVATED = """
import os, sys; os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.codegen.wholeStage", "false").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
try:
    print(spark.read.format("admission").load(sys.argv[1]).count())
    spark.read.format("admission").option("tabel", "limits").load(sys.argv[1]).count()
except Exception as error:
    print(str(error).split("SQLSTATE")[0].strip().split("\\n")[-1])
"""


class ReadTests(SparkTestCase):
    """C{spark.read}"""

    def test_optionsOfSql(self) -> None:
        """SQL reads recordings as well, without anything being registered."""
        self.record(1, 2)
        self.record(3, isSealed=False)
        self.session.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW recorded USING admission OPTIONS (path '{self.directory}', broker '3')"
        )
        [row] = self.session.sql("SELECT count(*), min(seq), max(seq) FROM recorded").collect()
        self.assertEqual(tuple(row), (3, 1, 3))


class StreamTests(SparkTestCase):
    """C{spark.readStream}"""

    def runQuery(self, **options: str) -> list[list[int]]:
        """
        Begin the query, where it was before, and end it when it has read what
        there is.

        @return: the numbers of the events in each batch that is not empty.
        """
        batches: list[list[int]] = []

        def take(rows: DataFrame, number: int) -> None:
            seqs = [row["seq"] for row in rows.select("seq").collect()]
            if seqs:
                batches.append(seqs)

        stream = self.session.readStream.format("admission").options(**options).load(str(self.directory))
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        self.addCleanup(query.stop)
        self.assertTrue(query.awaitTermination(int(PATIENCE_SECONDS)))
        return batches

    def test_restarts(self) -> None:
        """
        Over several runs, with segments sealed and files removed in between,
        every row comes once and those of a process in their order; nothing new
        is no batch.
        """
        self.checkpoint = str(Path(self.mktemp()).absolute())
        self.record(1, 2)
        stuck = self.record(3, isSealed=False)
        self.record(4)
        self.assertEqual(self.runQuery(), [[1, 2]])
        self.assertEqual(self.runQuery(), [])
        sealAll(self.directory, CAP_BYTES)
        self.record(5, process="other")
        self.parquet("boot-000001").unlink()
        self.assertEqual(sorted(seq for batch in self.runQuery() for seq in batch), [3, 4, 5])
        self.assertNotIn(stuck, segmentNames(str(self.directory)))


class NotActivatedTests(SynchronousTestCase):
    """A program that is run by the Python of an environment which is not activated."""

    def test_workersPython(self) -> None:
        """
        The first line that the manual gives is what it takes, though Spark's workers would be another Python.  An
        option that is wrong is told in the last sentence.
        """
        directory = Path(self.mktemp()).absolute()
        writeRecording(directory, someEvents())
        place = directory.parent / "path"
        place.mkdir()
        other = place / "python3"
        other.write_text(f'#!/bin/sh\nPYTHONPATH= exec {shlex.quote(sys.executable)} -S "$@"\n')
        other.chmod(0o755)
        inherited = {name: text for name, text in ENVIRONMENT.items() if name != "PYSPARK_PYTHON"}
        with TemporaryDirectory() as scratch:
            environment = {
                **inherited,
                **javaEnvironment(inherited, Path(scratch)),
                "PATH": f"{place}:/usr/bin:/bin",
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            done = subprocess.run(
                [sys.executable, "-c", NOT_ACTIVATED, str(directory)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=CONNECT_SECONDS,
            )
        expected = ["10", "ValueError: there is no option tabel: is it table?"]
        self.assertEqual(done.stdout.splitlines(), expected, done.stderr[-3000:])


class ConnectTests(SynchronousTestCase):
    """Spark Connect"""

    @longForm
    def test_local(self) -> None:
        """The source and recordings are read through a server as well."""
        directory = Path(self.mktemp()).absolute()
        writeRecording(directory, someEvents())
        writeRecording(directory, someEvents(), isSealed=False)
        result = subprocess.run(
            [sys.executable, "-c", CONNECT, str(directory)],
            # Has Spark choose a port that is free.
            env={**ENVIRONMENT, "SPARK_TESTING": "1"},
            capture_output=True,
            text=True,
            timeout=CONNECT_SECONDS,
        )
        self.assertEqual(result.stdout.strip(), "pyspark.sql.connect.session 20 20 []", result.stderr[-3000:])
