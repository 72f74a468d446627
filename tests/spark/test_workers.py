"""L{admission.offline.workers}"""

from __future__ import annotations

import sys
from pathlib import Path
from socket import gethostname

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from twisted.trial.unittest import SynchronousTestCase

from admission.offline import workers
from admission.offline.failures import WorkersLack
from admission.offline.packing import Package, platformHere
from admission.offline.workers import checkWorkers, hasLocalWorkers, prepareWorkers
from tests.kit.sparksession import sharedSession


class CheckTests(SynchronousTestCase):
    """L{checkWorkers}, with workers on this machine."""

    def test_there(self) -> None:
        """Workers that have everything are not complained of, and those of a session on this machine need no check."""
        session = sharedSession()
        checkWorkers(session)
        self.assertTrue(hasLocalWorkers(session))

    def test_lacking(self) -> None:
        """The sentence names the Python, the host and the module, once however many workers lack it."""
        modules = ("admission", "not_there.at_all")
        told = str(self.assertRaises(WorkersLack, checkWorkers, sharedSession(), modules))
        lack = f"{sys.executable} on {gethostname()} lacks the module not_there"
        self.assertTrue(told.startswith(f"Spark's workers cannot do this: {lack}; install it there"), told)
        self.assertNotIn("\n", told)

    def test_noPython(self) -> None:
        """A Python that is not there, or is another, is told with the remedy."""
        for message, words in (
            ('java.io.IOException: Cannot run program "python3.11": error=2', "have no python3.11, and need"),
            ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than", "run Python 3.9, and need"),
        ):

            def fail(frame: object, message: str = message) -> None:
                raise PySparkException(message)

            self.patch(DataFrame, "collect", fail)
            self.patch(type(sharedSession().range(1)), "collect", fail)
            told = str(self.assertRaises(WorkersLack, checkWorkers, sharedSession()))
            self.assertTrue(told.startswith(f"Spark's workers {words} Python 3."), told)
            self.assertIn("PYSPARK_PYTHON", told)


class SentTests(SynchronousTestCase):
    """L{prepareWorkers}, as if the workers were elsewhere; L{tests.spark.test_cluster} has real ones."""

    def setUp(self) -> None:
        self.told: list[str] = []

    def test_here(self) -> None:
        """Workers of this machine are sent nothing."""
        prepareWorkers(sharedSession(), self.told.append)
        self.assertEqual(self.told, [])

    def test_otherStorage(self) -> None:
        """What reads the storage of a recording is needed, too, and nothing is needed that reads another."""
        self.patch(workers, "hasLocalWorkers", lambda session: False)
        for recording, needed in (("s3a://bucket/a", set()), ("hdfs://host:8020/a", {"admission.recording.hdfs"})):
            asked: list[str] = []
            self.patch(workers, "findPackages", lambda modules, asked=asked: asked.extend(modules) or [])
            self.patch(workers, "_send", lambda session, packages, tell: None)
            prepareWorkers(sharedSession(), self.told.append, recording)
            self.assertEqual({"admission.recording.hdfs"} & {*asked}, needed)

    def test_otherPlatform(self) -> None:
        """Compiled packages are not sent to another platform: the command that installs what is lacking is told."""
        lacking = Package("not-there", "1.2", ["not_there"], {"not_there.so": Path("not_there.so")})
        self.patch(workers, "hasLocalWorkers", lambda session: False)
        self.patch(workers, "findPackages", lambda modules: [lacking])
        self.patch(workers, "platformHere", lambda: "linux-sparc, cpython-311")
        told = str(self.assertRaises(WorkersLack, prepareWorkers, sharedSession(), self.told.append))
        self.assertIn(f"{gethostname()} lacks the module not_there ({platformHere()}); compiled packages of", told)
        self.assertTrue(
            told.endswith("(linux-sparc, cpython-311) cannot be sent there: pip install not-there==1.2"), told
        )
        self.assertEqual(self.told, ["looking what Spark's workers have"])
