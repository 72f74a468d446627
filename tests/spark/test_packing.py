"""L{admission.offline.packing}"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.offline.packing import Package, findPackages, writeArchive
from admission.offline.workers import WORKER_MODULES
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.sparkcluster import SPARK


class FoundTests(SynchronousTestCase):
    """L{findPackages}"""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.patch(sys, "path", [str(self.root), *sys.path])

    def write(self, path: str, source: str = "") -> None:
        """Put a file where modules are imported from."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(source)

    def test_workers(self) -> None:
        """What workers need is found whole: what was installed, and what is in a checkout."""
        found = {each.name: each for each in findPackages(WORKER_MODULES)}
        self.assertLessEqual({"attrs", "Twisted", "zope.interface", "numpy", "pyarrow"}, found.keys())
        self.assertFalse({"pyspark", "py4j", "pandas", "pytest"} & found.keys())
        self.assertEqual([found["numpy"].isCompiled, found["Twisted"].isCompiled], [True, False])
        self.assertTrue(found["numpy"].requirement.startswith("numpy=="))
        # What a compiled package is linked to is not below its own name.
        self.assertTrue(any(path.startswith("numpy.libs/") for path in found["numpy"].files))
        self.assertIn("admission/offline/report/assets/page.html", found["admission"].files)

    def test_checkout(self) -> None:
        """A module, a package and a part of a namespace are found by what is imported, and tests stay here."""
        self.write("single.py")
        self.write("whole/__init__.py")
        self.write("whole/inner/part.py")
        self.write("whole/inner/table.txt")
        self.write("whole/tests/test_it.py")
        self.write("shared/ours/__init__.py")
        self.write("shared/theirs/__init__.py")
        found = {each.name: each for each in findPackages(["single", "whole", "shared.ours"])}
        files = {name: sorted(each.files) for name, each in found.items()}
        self.assertEqual(
            files,
            {
                "shared.ours": ["shared/ours/__init__.py"],
                "single": ["single.py"],
                "whole": ["whole/__init__.py", "whole/inner/part.py", "whole/inner/table.txt"],
            },
        )
        self.assertEqual(found["whole"].requirement, "whole")

    def test_broken(self) -> None:
        """What cannot be imported is told."""
        self.write("broken.py", "import nowhere_at_all")
        told = str(self.assertRaises(ImportError, findPackages, ["broken"]))
        self.assertIn("nowhere_at_all", told)


class CompiledTests(SynchronousTestCase):
    """What depends on the platform."""

    def test_optional(self) -> None:
        """What mypyc has compiled is left beside its source, and is not needed."""
        files = ["a/b.py", "a/b.cpython-311-x86_64-linux-gnu.so", "f00__mypyc.cpython-311-x86_64-linux-gnu.so"]
        package = Package("a", "1", ["a"], {path: Path(path) for path in files})
        self.assertEqual([package.isOptional(path) for path in files], [False, True, True])
        self.assertFalse(package.isCompiled)
        for path in ("a/c.so", "a.libs/libc.so.3"):
            self.assertTrue(Package("a", "1", ["a"], {path: Path(path)}).isCompiled)


class ArchiveTests(SynchronousTestCase):
    """L{writeArchive}"""

    def unpacked(self, packages: list[Package], pythons: list[str], isCompiled: bool = True) -> Path:
        """The directory of an unpacked archive."""
        place, directory = Path(self.mktemp()).absolute(), Path(self.mktemp()).absolute()
        writeArchive(place, packages, pythons, isCompiled)
        with tarfile.open(place) as archive:
            archive.extractall(directory, filter="data")
        return directory

    def test_imports(self) -> None:
        """A Python with nothing but Spark imports from it all that workers need."""
        venv.create("bare", symlinks=True)
        bare = str(Path("bare").absolute() / "bin" / "python")
        directory = self.unpacked(findPackages(WORKER_MODULES), ["/nowhere/python", bare])
        command = f"import {', '.join(WORKER_MODULES)}; print(admission.__file__)"
        done = subprocess.run(
            [directory / "bin" / "python", "-c", command],
            env={"PYTHONPATH": os.pathsep.join(map(str, SPARK.glob("python/lib/*.zip"))), "PATH": os.environ["PATH"]},
            check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE, text=True, cwd=directory.parent,
        )  # fmt: skip
        self.assertTrue(done.stdout.startswith(str(directory / "packages")), done.stdout)

    def test_elsewhere(self) -> None:
        """What is compiled for another platform is left out where its source does, and a missing Python is told."""
        source = Path(self.mktemp())
        source.write_text("")
        files = dict.fromkeys(["a/b.py", "a/b.so"], source)
        directory = self.unpacked([Package("a", "1", ["a"], files)], ["/no where/python"], isCompiled=False)
        self.assertEqual([path.name for path in directory.rglob("b.*")], ["b.py"])
        done = subprocess.run([directory / "bin" / "python"], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual((done.returncode, done.stderr), (127, "none of these is here: /no where/python\n"))
