"""C{examples/operators.ipynb}, the notebook for operators."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, ROOT

NOTEBOOK = ROOT / "examples" / "operators.ipynb"

# For so few rows, to compile each query takes longer than to run it; and nobody else may connect to this Spark.
_SETTINGS = """\
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.driver.memory 1g
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.codegen.wholeStage false
spark.sql.shuffle.partitions 2
spark.ui.enabled false
"""

# Cells have no less patience than the longest of them needs on a machine that is busy with other tests.
_RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=400, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""
_PATIENCE_SECONDS = 600.0

# What the cells leave behind.  Frames are written as JSON, whatever the numbers in them are of.
_TOLD = """
print(json.dumps({
    "problems": problems,
    "who": json.loads(who.to_json(orient="records")),
    "when": {name: float(seconds) for name, seconds in when.sum().items()},
    "limits": sorted(row["limit_name"] for row in limits.collect()),
    "evaluation": evaluation,
    "summary": json.loads(summary.to_json(orient="index")),
    "byMinute": json.loads(byMinute.to_json(orient="split")),
    "changes": json.loads(changes.to_json(orient="index")),
    "status": status,
    "results": results,
}))
"""

_TROUBLE = re.compile(r"Traceback|\bERROR\b|\b\w*(?:Error|Exception)\b|\w+Warning\b")


def read() -> Any:
    """The notebook as it is stored."""
    return nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)


class StoredTests(SynchronousTestCase):
    """What is in the repository."""

    def test_form(self) -> None:
        """It is a notebook of version 4 for any Python, with a title, and a reason before each cell of code."""
        notebook = read()
        nbformat.validate(notebook)
        self.assertEqual(notebook.nbformat, 4)
        self.assertEqual(notebook.metadata.kernelspec.name, "python3")
        self.assertRegex(notebook.cells[0].source, r"\A# \w")
        kinds = [cell.cell_type for cell in notebook.cells]
        self.assertEqual(kinds, ["markdown", "code"] * (len(kinds) // 2))
        for cell in notebook.cells:
            self.assertNotEqual(cell.source.strip(), "", cell.id)

    def test_nothingOfAMachine(self) -> None:
        """It has neither what came out when somebody ran it, nor what is only true where that was."""
        for cell in read().cells:
            if cell.cell_type == "code":
                self.assertEqual((cell.outputs, cell.execution_count), ([], None), cell.id)
            self.assertEqual(cell.metadata, {}, cell.id)
        text = NOTEBOOK.read_text("utf-8")
        self.assertEqual(re.findall(r"""(?<![\w.}/])/\w+(?:/[^\s"'`]*)?|\b[A-Z]:\\|file://\S*""", text), [])


class RunTests(SynchronousTestCase):
    """What an operator sees who runs it."""

    def executed(self) -> Any:
        """Run all cells, and one more that tells what they have found, in a kernel of their own with a Spark."""
        directory = Path(self.mktemp()).absolute()
        temporary, configuration = directory / "tmp", directory / "conf"
        for each in (directory, temporary, configuration):
            each.mkdir()
        configuration.joinpath("spark-defaults.conf").write_text(_SETTINGS)
        notebook = read()
        notebook.cells.append(new_code_cell(_TOLD))
        path = directory / "run.ipynb"
        nbformat.write(notebook, path)
        settings = {f"JUPYTER_{each}_DIR": str(directory / each.lower()) for each in ("CONFIG", "DATA", "RUNTIME")}
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(path)],
            cwd=directory,
            env={
                **ENVIRONMENT,
                **settings,
                "IPYTHONDIR": str(directory / "ipython"),
                "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "JUPYTER_PREFER_ENV_PATH": "1",
                "SPARK_CONF_DIR": str(configuration),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "TMPDIR": str(temporary),
            },
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-5000:])
        return nbformat.read(path, as_version=4)

    def test_run(self) -> None:
        """
        Its cells run from top to bottom without a word of trouble, its answer can be trusted and is that of the
        recording, and it draws its two figures.
        """
        *cells, last = (cell for cell in self.executed().cells if cell.cell_type == "code")
        outputs = {cell.id: cell.outputs for cell in cells}
        for name, found in outputs.items():
            for output in found:
                self.assertIn(output.output_type, ("stream", "display_data", "execute_result"), name)
                self.assertNotRegex(output.get("text", ""), _TROUBLE, name)
        [told] = [json.loads(each.text) for each in last.outputs if each.get("name") == "stdout"]

        self.assertEqual(told["problems"], [])
        found = [(row["client_id"], row["policy"], row["kind"]) for row in told["who"]]
        self.assertEqual(
            found,
            [
                ("client-6", "client-bytes", "Produce"),
                ("client-14", "client-bytes", "Fetch"),
                ("client-24", "producer-ids", "Produce"),
            ],
        )
        self.assertEqual(told["limits"], ["new_identity_rate", "received_byte_rate", "sent_byte_rate"])
        for row in told["who"]:
            self.assertApproximates(told["when"][row["client_id"]], row["seconds"], 1.0)

        evaluation, summary = told["evaluation"], told["summary"]
        self.assertEqual((evaluation["isTrusted"], evaluation["untrusted"]), (True, []))
        self.assertEqual(list(summary), ["recorded", *(each["label"] for each in evaluation["candidates"])])
        seconds = {label: row["throttle_s"] for label, row in summary.items()}
        self.assertApproximates(seconds["recorded"], sum(row["seconds"] for row in told["who"]), 1.0)
        self.assertLess(seconds["twice for writers"], seconds["recorded"])
        self.assertGreater(seconds["half"], seconds["recorded"])

        # The figures show the same again.
        byMinute = told["byMinute"]
        self.assertEqual(byMinute["columns"], list(summary))
        for label, values in zip(byMinute["columns"], zip(*byMinute["data"], strict=True), strict=True):
            self.assertEqual(len(values), 10)
            self.assertApproximates(sum(values), seconds[label], 0.1)
        self.assertLess(told["changes"]["client-6 (user-6)"]["twice for writers"], -10.0)
        self.assertGreater(told["changes"]["client-14 (user-14)"]["from readers to writers"], 10.0)
        for name in ("by-minute", "gains"):
            images = [output.data["image/png"] for output in outputs[name] if "data" in output]
            # An empty pair of axes is a third of that.
            self.assertEqual([len(image) > 15_000 for image in images], [True], name)

        said = "".join(output.text for output in outputs["report"])
        self.assertIn("These answers can be trusted.", said)
        self.assertEqual(told["status"], 0)
        self.assertTrue(Path(told["results"], "report.html").is_file())
