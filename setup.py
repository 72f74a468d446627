# Metadata lives in setup.cfg; this only teaches `pip install -e .` about the three source roots, because
# twisted.plugin looks for drop-ins in sys.path directories and never asks an import hook.
from pathlib import Path

from setuptools import setup
from setuptools.command import editable_wheel


class EditableWheel(editable_wheel.editable_wheel):
    def _select_strategy(self, name, tag, build_lib):
        roots = [Path(self.project_dir, root) for root in ("src", "plugins", ".")]
        return editable_wheel._StaticPth(self.distribution, name, roots)


setup(cmdclass={"editable_wheel": EditableWheel})
