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
from tests.kit.documentation import Block, MisleadingDocument, Reader, blocksOf, straysOf
from tests.kit.gatewayprocess import NODES

MANUAL = ROOT / "docs"

_READERS = 2
_MAX_NOT_RUN = 16
_LINK = re.compile(r"\]\(([^):#]*)(?:#([^)]*))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages() -> list[Path]:
    """The pages of the manual."""
    return sorted(MANUAL.glob("*.md"))


def textOf(page: Path) -> str:
    """What a page says."""
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
        """Whoever does what a page of the manual says gets what it shows, unless the page needs Spark."""
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


def anchorsOf(document: str) -> Iterable[str]:
    """How the headings of a document are linked to."""
    for heading in _HEADING.findall(document):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class FollowTests(DocumentTestCase):
    """Documents are followed to the letter."""

    def assertMisleads(self, document: str, *words: str) -> None:
        """Following C{document} fails, with C{words} in the message."""
        error = self.assertRaises(MisleadingDocument, self.follow, document)
        for word in words:
            self.assertIn(word, str(error))

    def test_fileAndRun(self) -> None:
        """A program finds the files that came before it; what is not to be run is left alone."""
        document = (
            "```python file=package/module.py\nX = 1\n```\n"
            "```python not-run It divides by nothing.\n1 / 0\n```\n"
            "```python run\nfrom package.module import X\nassert X == 1\n```\n"
        )
        self.assertEqual(self.follow(document), 1)

    def test_programFails(self) -> None:
        """A program that fails is reported with its line in the document."""
        self.assertMisleads("Text.\n\n```python run\n1 / 0\n```\n", "line 4: ", "ZeroDivisionError")

    def test_console(self) -> None:
        """Each command must print the lines that follow it, among others."""
        self.assertEqual(
            self.follow("```console run\n$ echo a; echo b; \\\n    echo c\na\nc\n$ python -c 'print(1)'\n1\n```\n"), 1
        )
        self.assertMisleads("```console run\n$ echo a\nb\n```\n", "line 2: 'echo a' did not print ['b']")

    def test_sample(self) -> None:
        """Where figures differ from day to day, the words that lines begin with must be there."""
        self.assertEqual(self.follow("```console sample\n$ echo took 7 s\ntook 5 s\n  and more\n```\n"), 1)
        self.assertMisleads("```console sample\n$ echo took 7 s\ntakes 5 s\n```\n", "takes")

    def test_script(self) -> None:
        """A script ends with the first of its commands that fails."""
        self.assertEqual(self.follow("```sh run\nX=1\ntest $X = 1\n```\n"), 1)
        self.assertMisleads("```sh run\nfalse\ntrue\n```\n", "ended with status 1")

    def test_install(self) -> None:
        """Who has everything installs nothing."""
        self.assertEqual(self.follow("```console install\n$ false\n```\n"), 0)

    def test_serve(self) -> None:
        """A server that does not serve, or ends badly, is reported with what it said; its successor finds it gone."""
        server = (
            "python -u -c 'import signal, sys; signal.signal(15, lambda *_: sys.exit({}));"
            ' print("X starting on 1"); signal.pause()\''
        )
        good, bad = server.format(0), server.format(3)
        self.assertEqual(self.follow(f"```console serve\n$ {good}\n```\n```console serve\n$ {good}\n```\n"), 2)
        self.assertMisleads(f"```console serve\n$ {bad}\n```\n", "ended with status 3", "starting on")
        self.assertMisleads("```console serve\n$ echo no\n```\n", "does not serve: no")

    def test_ports(self) -> None:
        """Ports are replaced where a document names them and where it means their default, in what is shown as well."""
        document = (
            "```console run\n"
            "$ echo twistd -n admission --set x=9092\n"
            "twistd -n admission --listen tcp:9092:interface=127.0.0.1 --set x=9092\n"
            "$ echo admission quotas describe\nadmission quotas describe --broker 127.0.0.1:9092\n"
            "$ echo admission top --once\nadmission top --status http://127.0.0.1:9090 --once\n"
            "```\n"
            '```python run\nassert (("127.0.0.1", 8007)[1], "tcp:8007") == (20000 + 3, f"tcp:{20000 + 3}")\n```\n'
        )
        reader = self.reader({"9092": "20001", "9090": "20002", "8007": "20003"})
        self.assertEqual(len(reader.follow(document)), 2)

    def test_unknownWord(self) -> None:
        """A word that means nothing is a mistake, and so is none, and a block that is left out without a reason."""
        for fence in ("```python runs", "```python", "```", "```console not-run", "```text run", "```python serve"):
            self.assertMisleads(f"{fence}\n```\n", "line 2: what is to become of this block")

    def test_strays(self) -> None:
        """Code that no block has is found."""
        document = "Text\n\n    code\n\n* an item\n\n  ```python run\n  1\n  ```\n\n```console run\n$ echo\n```\n"
        self.assertEqual(straysOf(document), ["  ```python run", "  ```", "    code"])

    def test_blocks(self) -> None:
        """A block is known by its language, its words and its line."""
        self.assertEqual(
            list(blocksOf("\n```ini not-run needs systemd\n[Unit]\n```\n```\n```\n")),
            [Block("ini", "not-run", "needs systemd", "[Unit]\n", 3), Block("", "", "", "", 6)],
        )
