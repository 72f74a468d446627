"""L{admission.offline.outputplaces}"""

from __future__ import annotations

from pathlib import Path

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.failures import OutputError
from admission.offline.outputplaces import resultsIn
from admission.recording import places


class ResultsInTests(SynchronousTestCase):
    """L{resultsIn}"""

    OUT = "s3a://bucket/results"

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.results = self.root / "bucket" / "results"
        self.results.mkdir(parents=True)
        storage = SubTreeFileSystem(str(self.root), LocalFileSystem())
        self.patch(places, "_storage", lambda scheme, authority: (storage, authority))

    def contents(self) -> dict[str, str]:
        """What is in the storage."""
        return {path.name: path.read_text() for path in self.results.iterdir()}

    def test_here(self) -> None:
        """A directory of this machine is used as it is."""
        with resultsIn("a directory/") as directory:
            self.assertEqual(directory, "a directory/")

    def test_replaced(self) -> None:
        """Results begin as they were and are replaced in the end; those that are gone go, and other files stay."""
        for name in ("evaluation.json", "replay_pool.csv", "mine.csv"):
            self.results.joinpath(name).write_text("before")
        with resultsIn(self.OUT) as directory:
            names = sorted(path.name for path in Path(directory).iterdir())
            self.assertEqual(names, ["evaluation.json", "replay_pool.csv"])
            Path(directory, "evaluation.json").write_text("after")
            Path(directory, "report.html").write_text("page")
            Path(directory, "replay_pool.csv").unlink()
            self.assertEqual(self.contents()["evaluation.json"], "before")
        self.assertEqual(self.contents(), {"evaluation.json": "after", "report.html": "page", "mine.csv": "before"})
        self.assertFalse(Path(directory).exists())

    def test_failed(self) -> None:
        """What fails leaves the results as they were, and is told with the name that the user gave."""
        self.results.joinpath("evaluation.json").write_text("before")

        def fail() -> None:
            with resultsIn(self.OUT) as directory:
                Path(directory, "evaluation.json").write_text("after")
                raise OutputError(f"{directory} has other results")

        self.assertEqual(str(self.assertRaises(OutputError, fail)), f"{self.OUT} has other results")
        self.assertEqual(self.contents(), {"evaluation.json": "before"})

    def test_refused(self) -> None:
        """Storage that takes nothing says so before any work is done."""

        def refuse(scheme: str, authority: str) -> None:
            raise OSError("AWS Error ACCESS_DENIED")

        self.patch(places, "_storage", refuse)
        failure = str(self.assertRaises(OutputError, resultsIn(self.OUT).__enter__))
        self.assertIn(f"{self.OUT}/.admission-tried cannot be reached (AWS Error ACCESS_DENIED): ", failure)
