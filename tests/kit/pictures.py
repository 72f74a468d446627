"""
The pictures of the manual, and what makes each of them anew.

C{python -m tests.kit.pictures [NAME ...]} makes those whose names begin with a NAME, or all: C{make pictures} does.
Pages are pictured by the tests that look at them, which are told so by C{RECORD=yes}.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.browser import picture
from tests.kit.checkout import ROOT
from tests.kit.longform import LONG

PICTURES = ROOT / "docs" / "images"

LARGE, WIDE, NARROW = 1920, 1280, 400
"""The sizes of a page, in pixels across, that it must be good to read at."""

_WIDTHS = (LARGE, WIDE, NARROW)
_RECORD = "RECORD"


@frozen
class Maker:
    """
    What makes some pictures.

    @ivar names: of their files.
    @ivar arguments: for Python.
    """

    names: Sequence[str]
    arguments: Sequence[str]

    def make(self) -> None:
        """
        Make them.

        @raise SystemExit: if that fails, or leaves one of them as it was.
        """
        begunSeconds = time.time()
        environment = {**ENVIRONMENT, _RECORD: "yes", LONG: "yes"}
        status = subprocess.run([sys.executable, *self.arguments], cwd=ROOT, env=environment).returncode
        if status:
            raise SystemExit(f"python {' '.join(self.arguments)} has failed, see above")
        old = [name for name in self.names if (PICTURES / name).stat().st_mtime < begunSeconds]
        if old:
            raise SystemExit(f"{' and '.join(old)} were not made anew; see above what was skipped")


def _ofPage(page: str, *tests: str) -> Maker:
    return Maker([f"{page}-{width}.png" for width in _WIDTHS], ["-m", "pytest", "-q", "-rs", *tests])


def _plot(name: str, *arguments: str) -> Maker:
    return Maker([name], ["-m", *arguments, str(PICTURES / name)])


MAKERS = (
    _ofPage("status", "tests/system/test_status_browser.py", "-k", "test_taken"),
    _ofPage("report", "tests/spark/test_demo_offline.py", "-k", "test_report"),
    _plot("site-attacked.png", "tests.attacks.sitesplot"),
    _plot("goodput.png", "benchmarks.goodput", "--seconds", "300", "--plot"),
)


def arePicturesTaken() -> bool:
    """Whether tests are to take the pictures of the manual."""
    return bool(os.environ.get(_RECORD))


def takePictures(browser: Any, page: str, maxHeight: float = math.inf) -> None:
    """Take those of the page that a browser shows, in all widths, and no more of it than C{maxHeight} pixels."""
    for width in _WIDTHS:
        (PICTURES / f"{page}-{width}.png").write_bytes(picture(browser, width, maxHeight))


def main(*names: str) -> None:
    """
    Make pictures.

    @raise SystemExit: as L{Maker.make} does, or if no picture has such a name.
    """
    chosen = [maker for maker in MAKERS if not names or any(each.startswith(names) for each in maker.names)]
    if not chosen:
        known = ", ".join(name for maker in MAKERS for name in maker.names)
        raise SystemExit(f"no picture's name begins with {' or '.join(names)}; there are {known}")
    for maker in chosen:
        maker.make()


if __name__ == "__main__":
    main(*sys.argv[1:])
