"""What the suites have found, and the page that is made of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from tests.kit.checkout import ROOT

PAGE: Final = ROOT / "docs" / "what-works.md"

_DIRECTORY: Final = Path(__file__).parent / "results"

_BEFORE = """\
# What works with it

Other people's software, unmodified, against `twistd admission`. The tables are made from what the suites in
`tests/clients/suites` have found, by `make what-works`; each suite is a test, too, and fails where it finds something
else.

What is refused is refused at once, with an error that says why where the protocol has room for it.
"""


class Outcome(Enum):
    """What became of it."""

    WORKS = "works"
    REFUSED = "refused"
    DOES_NOT_APPLY = "does not apply"


@frozen
class Finding:
    """
    @ivar what: what was tried, as its user would write it.
    @ivar outcome: what became of it.
    @ivar looks: what its user sees.
    """

    what: str
    outcome: str
    looks: str


@frozen
class Suite:
    """
    @ivar name: of the file with its results.
    @ivar software: whose software, in which versions.
    @ivar needs: what has to be on the machine.
    """

    name: str
    software: str
    needs: str

    @property
    def _path(self) -> Path:
        return _DIRECTORY / f"{self.name}.json"

    def check(self, findings: Sequence[Finding]) -> None:
        """
        Compare what was found with the results, or make them of it if C{RECORD} is set.

        @raise AssertionError: if it is something else.
        """
        found = {
            "software": self.software,
            "needs": self.needs,
            "findings": [asdict(each) for each in sorted(findings, key=lambda each: each.what)],
        }
        if os.environ.get("RECORD"):
            self._path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        wanted = json.loads(self._path.read_text("utf-8"))
        assert found == wanted, f"{self._path.name} says something else; make what-works\n{json.dumps(found, indent=1)}"


def page() -> Iterator[str]:
    """The page, in parts."""
    yield _BEFORE
    for path in sorted(_DIRECTORY.glob("*.json")):
        suite = json.loads(path.read_text("utf-8"))
        module = f"test_{path.stem}.py"
        yield f"\n## {suite['software']}\n\n"
        yield f"`python -m pytest tests/clients/suites/{module}`; needs {suite['needs']}.\n\n"
        yield "| what was tried | outcome | what one sees |\n|---|---|---|\n"
        for each in suite["findings"]:
            yield f"| {_cell(each['what'])} | {each['outcome']} | {_cell(each['looks'])} |\n"


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


if __name__ == "__main__":
    PAGE.write_text("".join(page()), "utf-8")
