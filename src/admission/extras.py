# -*- test-case-name: tests.unit.test_extras -*-
"""
Which of our extras brings a library, so that what lacks one says so in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "kafka": ("cramjam", "crc32c", "javaproperties", "kio", "lz4", "rbloom", "zstandard"),
    "spark": ("matplotlib", "numpy", "pandas", "pyarrow", "pyspark", "rbloom", "tqdm"),
    "hdfs": ("hdfs_native",),
}
"""The modules of each; of two extras with the same module the first is named."""


def lacking(what: str, *modules: str) -> str:
    """
    Say that C{what} needs modules that are not installed, and how to install them.

    @param modules: names in L{EXTRAS}, all of one extra.
    @return: a sentence; empty if all are installed.
    """
    missing = [each for each in modules if find_spec(each) is None]
    if not missing:
        return ""
    extra = next(extra for extra, brought in EXTRAS.items() if missing[0] in brought)
    return f"{what} needs {', '.join(missing)}: pip install 'admission[{extra}]'"


@contextmanager
def explaining(what: str, kind: type[Exception]) -> Iterator[None]:
    """
    Import something for C{what}.  If a module of an extra is missing for that, the sentence is raised instead.

    @param kind: made of the sentence.
    """
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        sentence = lacking(what, module) if any(module in brought for brought in EXTRAS.values()) else ""
        if not sentence:
            raise
        raise kind(sentence) from error
