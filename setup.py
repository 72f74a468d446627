# Metadata lives in setup.cfg.  This has `pip install -e .` put the source roots on sys.path, and nothing else of the
# checkout; and it compiles the hot modules on demand.
import os
import sys
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup
from setuptools.command import editable_wheel

# Those in which a busy server spends its time, and that read no worse for being compiled.
COMPILED = [
    "src/admission/gate/answerroom.py",
    "src/admission/gate/aside.py",
    "src/admission/gate/gate.py",
    "src/admission/gate/memoryqueue.py",
    "src/admission/gate/pressure.py",
    "src/admission/gate/reserve.py",
    "src/admission/gate/slowbodies.py",
    "src/admission/gate/stalledreaders.py",
    "src/admission/gate/turns.py",
    "src/admission/operations.py",
    "src/admission/connection/framing.py",
    "src/admission/kafka/wire/headers.py",
    "src/admission/kafka/wire/primitives.py",
    "src/admission/kafka/wire/produce.py",
    "src/admission/kafka/wire/recordwalk.py",
    "src/admission/metrics/bucket.py",
    "src/admission/metrics/histogram.py",
    "src/admission/metrics/rate.py",
    "src/admission/quotas/limits.py",
    "src/admission/quotas/metering.py",
    "plugins/admission_plugins/bounded.py",
    "plugins/admission_plugins/buffers.py",
    "plugins/admission_plugins/purgatory.py",
    "plugins/admission_plugins/wheel.py",
]

isCompiling = os.environ.get("ADMISSION_COMPILE", "") not in ("", "0")


class EditableWheel(editable_wheel.editable_wheel):
    def _select_strategy(self, name, tag, build_lib):
        if isCompiling:
            raise SystemExit("an editable installation is not compiled: leave out --editable or ADMISSION_COMPILE")
        roots = [Path(self.project_dir, root) for root in ("src", "plugins")]
        # twisted.plugin looks for drop-ins below the directories on sys.path, and never asks an import hook.
        link = roots[0] / "twisted"
        if not link.exists():
            link.symlink_to(Path("..", "twisted"))
        return editable_wheel._StaticPth(self.distribution, name, roots)


def compiling():
    if not isCompiling:
        return {}
    if "bdist_wheel" not in sys.argv:
        settings = ConfigParser()
        settings.read("setup.cfg")
        # mypyc compiles what mypy understands, which takes the types of what is used.
        extras = settings["options.extras_require"]
        used = [*settings["options"]["install_requires"].splitlines(), *extras["kafka"].splitlines()]
        mypy = [each for each in extras["dev"].splitlines() if each.startswith("mypy")]
        return {"setup_requires": [*filter(None, used), *mypy, "mypy[mypyc]"]}
    # What is not there before the wheel is built cannot be imported at the top.
    from mypyc.build import mypycify

    os.environ["MYPYPATH"] = os.pathsep.join(("src", "plugins"))
    # What is imported besides need not be here, nor be without errors.
    arguments = ["--follow-imports=silent", *COMPILED]
    return {"ext_modules": mypycify(arguments, opt_level="3", debug_level="0", group_name="admission")}


setup(cmdclass={"editable_wheel": EditableWheel}, **compiling())
