"""
C{python -m admission}: the command C{admission}.
"""

import sys

from .cli import main

sys.exit(main())
