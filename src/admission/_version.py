"""
The version, and what was made of it, where modules can have them without the front door.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__version__ = "0.2.0.dev0"


def isCompiled() -> bool:
    """
    Whether mypyc has compiled the hot modules of this installation.
    """
    spec = find_spec(f"{__package__}.operations")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
