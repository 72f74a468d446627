"""
Pack what Spark's workers need of us, if it is not installed where they run:

    python spark_package.py admission.zip
    spark-submit --py-files admission.zip spark_job.py evaluate ...

The drop-ins stay out: whoever submits looks for policies, and workers are told
where to import them from.
"""

import sys
import zipfile
from importlib.resources import as_file, files

PACKAGES = ("admission", "admission_plugins", "pyspark_admission")

with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
    for name in PACKAGES:
        with as_file(files(name)) as root:
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root.parent))
