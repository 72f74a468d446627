"""
C{python -m admission.offline}: the command C{admission}, by a name that Spark's
own commands can be given.
"""

import sys

from admission.cli import main

sys.exit(main())
