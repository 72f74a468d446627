"""What the suites have found, and the pages that are made of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from tests.kit.checkout import ROOT


@frozen
class Page:
    """
    What the suites have found with one kind of server.

    @ivar path: of the page.
    @ivar results: the directory of what was found.
    @ivar before: how the page begins.
    """

    path: Path
    results: Path
    before: str


_MANUAL: Final = ROOT / "docs"
_RESULTS: Final = Path(__file__).parent / "results"

BROKER: Final = Page(
    _MANUAL / "what-works.md",
    _RESULTS,
    """\
# What works with it

Other people's software, unmodified, against `twistd admission`. The tables are made from what the suites in
`tests/clients/suites` have found, by `make what-works`; each suite is a test, too, and fails where it finds something
else. [Another page](what-works-through-the-gateway.md) has most of them with the gateway and a cluster.

What is refused is refused at once, with an error that says why where the protocol has room for it. One case is not
here: librdkafka with `group.protocol=consumer`, which the broker does not have, reads nothing and reports no error.
""",
)

GATEWAY: Final = Page(
    _MANUAL / "what-works-through-the-gateway.md",
    _RESULTS / "gateway",
    """\
# What works through the gateway

Other people's software, unmodified, with `twistd admission-gateway` in front of three nodes of Apache Kafka 4.1. These
are suites of [the broker](what-works.md) with a cluster in its place, and tests, too; `make what-works` makes the
tables of what they have found. Apache Kafka's command line tools and kafka-python's own tests were not run here.

Topics have three replicas, two of which must be in sync. By a limit of the gateway, one client may produce 20 kB in a
second, with a burst of one second; a batch of 60 kB is stored, and the next one waits. The libraries that show
`throttle_time_ms` to applications show it for this limit, too. "Refused" is what the cluster or the gateway refuses.
""",
)


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
    @ivar versions: those that were installed, if any will do.
    """

    name: str
    software: str
    needs: str
    versions: str = ""

    def check(self, page: Page, command: str, findings: Sequence[Finding]) -> None:
        """
        Compare what was found with the results, or make them of it if C{RECORD} is set.

        @param page: which results.
        @param command: what has found it.
        @raise AssertionError: if it is something else.
        """
        path = page.results / f"{self.name}.json"
        found = {
            "software": self.software,
            "needs": self.needs,
            "command": command,
            "versions": self.versions,
            "findings": [asdict(each) for each in sorted(findings, key=lambda each: each.what)],
        }
        if os.environ.get("RECORD"):
            path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        wanted = json.loads(path.read_text("utf-8"))
        # Others may be installed elsewhere.
        found["versions"] = wanted["versions"]
        assert found == wanted, f"{path.name} says something else; make what-works\n{json.dumps(found, indent=1)}"


def text(page: Page) -> Iterator[str]:
    """The page, in parts."""
    yield page.before
    for path in sorted(page.results.glob("*.json")):
        suite = json.loads(path.read_text("utf-8"))
        yield f"\n## {suite['software']}\n\n"
        versions = f", with {suite['versions']}" if suite["versions"] else ""
        yield f"`{suite['command']}`{versions}; needs {suite['needs']}.\n\n"
        yield "| what was tried | outcome | what one sees |\n|---|---|---|\n"
        for each in suite["findings"]:
            yield f"| {_cell(each['what'])} | {each['outcome']} | {_cell(each['looks'])} |\n"


def _cell(text: str) -> str:
    shown = text.replace("|", "\\|").replace("\n", " ")
    return f"`{shown}`" if text else ""


if __name__ == "__main__":
    for each in (BROKER, GATEWAY):
        each.path.write_text("".join(text(each)), "utf-8")
