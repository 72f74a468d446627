"""
The command C{admission} as spark-submit takes it: a file.

    spark-submit spark_job.py evaluate /recordings/one --out results --candidate client-bytes:produce=4M
"""

import sys

from admission.cli import main

sys.exit(main())
