"""
What the documents show works.

A fenced block is taken up by the words after its language:

  * C{```python file=NAME} is written to that file,
  * C{```python run} is run as a program of its own,
  * C{```python client} is run likewise while a broker is running, whose
    address replaces C{127.0.0.1:9092},
  * C{```console run} has its lines after C{$ } run by the shell, and the
    output must contain the lines that follow each.

Blocks without such a word are for reading only.  All blocks of a document
share a directory, which is where programs run and first on their path.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen
from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parent.parent
_FOLLOWED_ELSEWHERE = {
    "command.md": "tests.test_admission_command, beside a broker with limits",
    "security.md": "tests.test_security_clients, with certificates and a broker of its own",
}
_FENCE = re.compile(r"^```(\w+)(?: +(\S+))? *\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@frozen
class Block:
    """
    A fenced block of a document.

    @ivar line: where its text begins.
    """

    language: str
    word: str
    text: str
    line: int


def blocksOf(document: str) -> Iterator[Block]:
    """
    Find the blocks of a document.
    """
    for match in _FENCE.finditer(document):
        language, word, text = match.groups(default="")
        yield Block(language, word, text, document.count("\n", 0, match.start(3)) + 1)


class DocumentTestCase(SynchronousTestCase):
    """
    Follows documents.
    """

    def follow(self, document: str) -> int:
        """
        Write and run what the document says.

        @return: how many blocks were run.
        """
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()
        ran = 0
        for block in blocksOf(document):
            kind, _, name = block.word.partition("=")
            if kind == "file":
                path = self.directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif kind == "run" and block.language == "python":
                self.output([sys.executable, "-c", block.text], block.line)
                ran += 1
            elif kind == "client":
                with self.broker() as address:
                    self.output([sys.executable, "-c", block.text.replace("127.0.0.1:9092", address)], block.line)
                ran += 1
            elif kind == "run" and block.language == "console":
                self.converse(block)
                ran += 1
            elif kind:
                self.fail(f"line {block.line}: {block.language} blocks know nothing of {block.word!r}")
        return ran

    def converse(self, block: Block) -> None:
        """
        Run each command of a console block and look for what it should print.
        """
        _, *commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        for command, *expected in map(str.splitlines, commands):
            output = self.output(["sh", "-c", command], block.line).splitlines()
            missing = [line for line in expected if line not in output]
            self.assertEqual(missing, [], f"line {block.line}: {command!r} printed {output}")

    def output(self, command: list[str], line: int) -> str:
        """
        What a command prints; it must succeed.
        """
        result = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        self.assertEqual(result.returncode, 0, f"line {line}: {result.stdout}")
        return result.stdout

    def environment(self) -> dict[str, str]:
        """
        The environment of commands.
        """
        roots = [self.directory, *(ROOT / root for root in ("src", "plugins", "."))]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        return {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "COLUMNS": "120",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),
        }

    @contextmanager
    def broker(self) -> Iterator[str]:
        """
        Have a broker run.

        @return: its address.
        """
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = reserved.getsockname()[1]
        listen = ["--listen", f"tcp:{port}:interface=127.0.0.1"]
        command = ["twistd", "-n", "--pidfile=", "-l", "twistd.log", "admission", *listen]
        process = subprocess.Popen(command, cwd=self.directory, env=self.environment())
        try:
            self.waitForPort(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)

    def waitForPort(self, port: int, process: subprocess.Popen[bytes]) -> None:
        """
        Wait until something listens.
        """
        for _attempt in range(300):
            self.assertIs(process.poll(), None, "the broker has stopped")
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.1)
        self.fail("the broker does not listen")


class DocumentsTests(DocumentTestCase):
    """
    Our documents hold what they promise.
    """

    def test_readme(self) -> None:
        """
        What the README marks as runnable runs, and it marks something.
        """
        self.assertGreater(self.follow(ROOT.joinpath("README.md").read_text(encoding="utf-8")), 0)

    def test_manual(self) -> None:
        """
        Likewise the manual, as far as it needs nothing that is not in it.
        """
        ran = 0
        for document in sorted(ROOT.glob("docs/*.md")):
            if document.name not in _FOLLOWED_ELSEWHERE:
                ran += self.follow(document.read_text(encoding="utf-8"))
        self.assertGreater(ran, 0)

    def test_links(self) -> None:
        """
        Every file that a document links to exists.
        """
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
            for target in re.findall(r"\]\(([^):#]+)\)", document.read_text(encoding="utf-8")):
                self.assertTrue((document.parent / target).exists(), f"{document.name} links to {target}")


class FollowTests(DocumentTestCase):
    """
    Documents are followed to the letter.
    """

    def test_fileAndRun(self) -> None:
        """
        A program finds the files that came before it; a block without a word
        is left alone.
        """
        document = (
            "```python file=package/module.py\nX = 1\n```\n"
            "```python\n1 / 0\n```\n"
            "```python run\nfrom package.module import X\nassert X == 1\n```\n"
        )
        self.assertEqual(self.follow(document), 1)

    def test_programFails(self) -> None:
        """
        A program that fails is reported with its line in the document.
        """
        error = self.assertRaises(self.failureException, self.follow, "Text.\n\n```python run\n1 / 0\n```\n")
        self.assertIn("line 4: ", str(error))
        self.assertIn("ZeroDivisionError", str(error))

    def test_console(self) -> None:
        """
        Each command must print the lines that follow it, among others.
        """
        self.assertEqual(
            self.follow("```console run\n$ echo a; echo b; echo c\na\nc\n$ python -c 'print(1)'\n1\n```\n"), 1
        )
        self.assertRaises(self.failureException, self.follow, "```console run\n$ echo a\nb\n```\n")

    def test_unknownWord(self) -> None:
        """
        A word that means nothing is a mistake.
        """
        self.assertRaises(self.failureException, self.follow, "```python runs\n```\n")
