"""
Pack what Spark's workers need of us, if it is not installed where they run, and say what else they need:

    python spark_package.py admission.zip
    spark-submit --py-files admission.zip spark_job.py evaluate ...

The drop-ins stay out: whoever submits looks for policies, and workers are told
where to import them from.
"""

import re
import shlex
import sys
import zipfile
from importlib import import_module, metadata
from importlib.resources import as_file, files

from admission.offline import WORKER_MODULES

PACKAGES = ("admission", "admission_plugins", "pyspark_admission")


def nameOf(requirement: str) -> str:
    """
    The normalized name of a distribution.
    """
    # The library packaging would itself be among what is imported here.
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
    for name in PACKAGES:
        with as_file(files(name)) as root:
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root.parent))

for module in WORKER_MODULES:
    import_module(module)
distributions = metadata.packages_distributions()
imported = {nameOf(each) for module in [*sys.modules] for each in distributions.get(module.partition(".")[0], ())}
split = (each.partition(";") for each in metadata.requires("admission") or ())
# What only tests need may own a part of what is imported, such as a drop-in in twisted.
requirements = (each.strip() for each, _, marker in split if "extra" not in marker or "spark" in marker)
# Workers have the pyspark of their Spark, and no use for extras: they serve nobody.
needed = [re.sub(r"\[.*?\]", "", each) for each in requirements if nameOf(each) in imported - {"admission", "pyspark"}]
print(f"pip install {shlex.join(dict.fromkeys(needed))}")
