"""
What the documents show works; L{tests.kit.documentation} says how it is marked.

These tests follow them beside each other, at ports of their own, with what is
in the checkout.  C{make follow-docs} follows them to the letter.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.cli import COMMANDS
from tests.kit.brokerprocess import freePort
from tests.kit.checkout import ROOT
from tests.kit.documentation import MisleadingDocument, Reader, blocksOf, straysOf
from tests.kit.gatewayprocess import NODES
from tests.kit.pictures import MAKERS, PICTURES

MANUAL = ROOT / "docs"

_READERS = 2
_MAX_NOT_RUN = 16
_LINK = re.compile(r"\]\(([^):#]*)(?:#([^)]*))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_MEASURED = re.compile(r"^\* \*\*(?:Measured|Calculated)\.\*\*(.*?)(?=^\* |^$)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\d(?:[\d,.]*\d)?")


def pages() -> list[Path]:
    return sorted(MANUAL.glob("*.md"))


def textOf(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def hasWord(document: str, word: str) -> bool:
    """Whether a block of the document is marked with C{word}."""
    return any(block.word == word for block in blocksOf(document))


class DocumentTestCase(SynchronousTestCase):
    """Follows documents."""

    def reader(self, ports: MutableMapping[str, str] | None = None) -> Reader:
        """
        Somebody in a directory of their own who has the checkout installed.

        @param ports: what to use instead of each port; free ones unless given.
        """
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        # A gateway has a port for each node behind its own.
        ports = ports or defaultdict(lambda: str(freePort(count=NODES + 1)))
        return Reader(directory, self.environment(directory), ports)

    def environment(self, directory: Path) -> dict[str, str]:
        """The environment of commands: our own are found, installed or not."""
        commands = Path(self.mktemp()).absolute()
        commands.mkdir()
        for name, module in (("python", ""), ("admission", " -m admission")):
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
            command.chmod(0o755)
        roots = [directory, *(ROOT / root for root in ("src", "plugins", "."))]
        binaries = [commands, Path(sys.executable).parent, os.environ.get("PATH", os.defpath)]
        return {
            **os.environ,
            "PATH": os.pathsep.join(map(str, binaries)),
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "COLUMNS": "120",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),
        }

    def follow(self, document: str) -> int:
        """
        Do what a document says.

        @return: how many blocks were run.
        """
        return len(self.reader().follow(document))


class DocumentsTests(DocumentTestCase):
    """Our documents hold what they promise."""

    def test_readme(self) -> None:
        """What the README marks as runnable runs, and it marks something."""
        marked = re.sub(r"^```\w+ *\n.*?^```$", "", textOf(ROOT / "README.md"), flags=re.MULTILINE | re.DOTALL)
        self.assertGreater(self.follow(marked), 0)

    def test_manual(self) -> None:
        """A reader who does what a page of the manual says gets what it shows, unless the page needs Spark."""
        plain = [page for page in pages() if not hasWord(textOf(page), "spark")]
        readers = [self.reader() for _ in plain]
        with ThreadPoolExecutor(_READERS) as threads:
            ran = sum(threads.map(self._follow, readers, plain))
        self.assertGreater(ran, 0)

    def _follow(self, reader: Reader, page: Path) -> int:
        try:
            return len(reader.follow(textOf(page)))
        except MisleadingDocument as error:
            raise MisleadingDocument(f"docs/{page.name}, {error}") from None

    def test_notRun(self) -> None:
        """No code is outside of marked blocks, and few blocks are left out, each with a reason."""
        strays = {page.name: straysOf(textOf(page)) for page in pages()}
        self.assertEqual({name: found for name, found in strays.items() if found}, {})
        blocks = [(page.name, block) for page in pages() for block in blocksOf(textOf(page))]
        unmarked = [f"{name}:{block.line}" for name, block in blocks if not block.word and block.language != "text"]
        self.assertEqual(unmarked, [])
        left = [f"{name}:{block.line}: {block.reason}" for name, block in blocks if block.word == "not-run"]
        self.assertLessEqual(len(left), _MAX_NOT_RUN, "\n".join(left))

    def test_install(self) -> None:
        """Only the page that everybody begins with says what to install."""
        installing = [page.name for page in pages() if hasWord(textOf(page), "install")]
        self.assertEqual(installing, ["start-here.md"])

    def test_index(self) -> None:
        """The index leads to every page."""
        linked = {target for target, _ in _LINK.findall(textOf(MANUAL / "README.md"))}
        self.assertEqual({page.name for page in pages()} - linked, {"README.md"})

    def test_links(self) -> None:
        """Every file that a document links to exists, and has the heading."""
        for document in [*ROOT.glob("*.md"), *pages()]:
            for target, anchor in _LINK.findall(re.sub(r"```.*?```", "", textOf(document), flags=re.DOTALL)):
                path = document.parent / target if target else document
                self.assertTrue(path.exists(), f"{document.name} links to {target}")
                if anchor and path.suffix == ".md":
                    self.assertIn(anchor, anchorsOf(textOf(path)), f"{document.name} links to {target}#{anchor}")

    def test_pictures(self) -> None:
        """Each picture is made by one command, and is on a page."""
        there = sorted(path.name for path in PICTURES.iterdir())
        self.assertEqual(sorted(name for maker in MAKERS for name in maker.names), there)
        documents = [*ROOT.glob("*.md"), *pages()]
        targets = {(page.parent / target).resolve() for page in documents for target, _ in _LINK.findall(textOf(page))}
        self.assertEqual([name for name in there if PICTURES / name not in targets], [])

    def test_figures(self) -> None:
        """What is measured of others has the figures of the section that it is from, as they are there now."""
        measured = _MEASURED.findall(textOf(MANUAL / "compare.md"))
        self.assertGreater(len(measured), 5)
        for item in measured:
            sections = [sectionOf(textOf(MANUAL / target), anchor) for target, anchor in _LINK.findall(item)]
            self.assertNotEqual(sections, [], item)
            figures = {figure for section in sections for figure in _FIGURE.findall(section)}
            own = _FIGURE.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", item))
            self.assertEqual([figure for figure in own if figure not in figures], [], item)

    def test_commands(self) -> None:
        """The page of the command has all of them."""
        page = textOf(MANUAL / "command.md")
        self.assertEqual([each.name for each in COMMANDS if not re.search(rf"`(admission )?{each.name}\b", page)], [])

    def test_glossary(self) -> None:
        """Each of our names is in the file that the glossary says."""
        rows = re.findall(
            r"^\|[^|]*\|[^|]*\|([^|]*)\| \[[^]]*\]\(([^)]*)\) \|$", textOf(MANUAL / "glossary.md"), re.MULTILINE
        )
        self.assertGreater(len(rows), 50)
        for ours, target in rows:
            code = textOf(MANUAL / target)
            for name in re.findall(r"`([A-Za-z_]+)`", ours):
                self.assertRegex(code, rf"\b{name}\b", f"{target} has no {name}")


def sectionOf(document: str, anchor: str) -> str:
    """
    The section of a document with that anchor, to the next heading that is no deeper.

    @raise AssertionError: if there is none.
    """
    section: list[str] = []
    depth = 0
    for line in document.splitlines():
        heading = re.match(r"(#+) ", line)
        if heading and depth and len(heading[1]) <= depth:
            break
        if heading and not depth and anchor in anchorsOf(line):
            depth = len(heading[1])
        if depth:
            section.append(line)
    assert section, f"there is no section {anchor}"
    return "\n".join(section)


def anchorsOf(document: str) -> Iterable[str]:
    """How the headings of a document are linked to."""
    for heading in _HEADING.findall(document):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
