"""
The pages of the manual that need Spark can be followed; their programs share
the session of all tests here, since each would take seconds to start its own.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path

from tests.kit.brokerprocess import freePort
from tests.kit.documentation import Block, MisleadingDocument, Reader
from tests.kit.sparksession import sharedSession
from tests.system.test_documentation import DocumentTestCase, hasWord, pages, textOf

_FOLLOWED_ELSEWHERE = {"evaluate-offline.md": "tests.spark.test_jobs, on a smaller recording"}

# For a few rows, to compile each query takes longer than to run it.
_DEFAULTS = """\
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.shuffle.partitions 2
"""

# Spark's own directory is another than the reader's.
_PATHS = re.compile(r'"(recording|checkpoint|copy)\b')


class SparkReader(Reader):
    """Somebody who has Spark running."""

    def useSpark(self, block: Block) -> bool:
        """Run a program here, and let the streams that it began come to their end."""
        if block.language == "console":
            return super().useSpark(block)
        session = sharedSession()
        program = compile(_PATHS.sub(rf'"{self.directory}/\1', block.text), f"line {block.line}", "exec")
        with redirect_stdout(io.StringIO()):
            exec(program, {"spark": session, "__name__": "__main__"})
        for query in session.streams.active:
            query.processAllAvailable()
            query.stop()
        return True


class SparkDocumentsTests(DocumentTestCase):
    """Our documents hold what they promise of Spark."""

    def reader(self) -> Reader:
        """Somebody in a directory of their own who has the checkout installed, and Spark."""
        directory = Path(self.mktemp()).absolute()
        configuration = directory.with_name(f"{directory.name}-conf")
        for each in (directory, configuration):
            each.mkdir()
        configuration.joinpath("spark-defaults.conf").write_text(_DEFAULTS)
        quick = {"SPARK_CONF_DIR": str(configuration), "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        environment = {**self.environment(directory), **quick}
        ports = defaultdict(lambda: str(freePort()))
        # A replay begins with half a minute of Spark.
        return SparkReader(directory, environment, ports, commandSeconds=600.0, pageSeconds=1800.0)

    def test_pages(self) -> None:
        """A reader who does what a page says gets what it shows."""
        needing = [page for page in pages() if hasWord(textOf(page), "spark")]
        self.assertEqual(_FOLLOWED_ELSEWHERE.keys() - {page.name for page in needing}, set())
        for page in needing:
            if page.name in _FOLLOWED_ELSEWHERE:
                continue
            try:
                self.follow(textOf(page))
            except MisleadingDocument as error:
                raise MisleadingDocument(f"docs/{page.name}, {error}") from None
