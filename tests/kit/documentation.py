"""
Follow a document: do what its fenced blocks say, one after the other, in a
directory of its own.

What becomes of a block is said by the words after its language:

  * C{```python file=NAME}, in any language: written to that file,
  * C{```python run}: run as a program of its own,
  * C{```console run}: each line after C{$ } is run by the shell, and prints
    the lines that follow it, among others,
  * C{```console sample}: the same, but what follows are figures of some day;
    each line that is not indented begins with a word that a line printed
    begins with, and C{...} stands for anything,
  * C{```sh run}: run by the shell as a whole,
  * C{```console serve}: each command runs from when it serves until the end of
    the document, or the next such block,
  * C{```python client}: a program that needs a broker and no more; there is
    one for it,
  * C{```python spark}: a program to which C{spark} is a Spark session,
  * C{```console spark}: as with C{sample}, but the commands need Spark,
  * C{```console install}: what a newcomer does once, in the checkout,
  * C{```console not-run REASON}: nothing can be made of it, and why.

A block without such words is a mistake, unless its language is C{text}: that
is for reading.  This module needs nothing but Python,
since L{tests.followdocs} runs before there is anything else.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import IO, NamedTuple

_FENCE = re.compile(r"^```(\w*)(?: +(\S+))?(?: +(\S.*?))? *\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)    \S.*")
_PROMPT = re.compile(r"^\$ ", re.MULTILINE)
_PORT = re.compile(r"(?<![\w.])((?:tcp|ssl|mtls|localhost|127\.0\.0\.1)(?::|\", )|--auth )([0-9]{4,5})\b")

_BROKER = re.compile(r"\btwistd( -n| --pidfile=)* admission(-gateway)?(?![\w-])")
_ASKS_BROKER = re.compile(r"\badmission (?:quotas|topics|groups) (\w+)")
_ASKS_STATUS = re.compile(r"\badmission (explain|top|memory)\b")
_CONFIG = re.compile(r"--config (\S+)")
_BROKER_PORT, _STATUS_PORT = "9092", "9090"

_COMPLAINT = re.compile("Traceback|Unhandled|this is a bug")

WITH_SESSION = 'from admission.offline import openSession\n\nspark = openSession("documentation")\n'
"""What a program has to begin with to have a Spark session."""


class MisleadingDocument(AssertionError):
    """A reader who does what the document says does not get what it promises."""


class Block(NamedTuple):
    """
    A fenced block of a document.

    @ivar word: the first word after the language.
    @ivar reason: what follows that.
    @ivar line: where its text begins.
    """

    language: str
    word: str
    reason: str
    text: str
    line: int


def blocksOf(document: str) -> Iterator[Block]:
    """Find the blocks of a document."""
    for match in _FENCE.finditer(document):
        language, word, reason, text = match.groups(default="")
        yield Block(language, word, reason, text, document.count("\n", 0, match.start(4)) + 1)


def straysOf(document: str) -> list[str]:
    """
    Find code that is in no block that L{blocksOf} knows: fences that are
    indented or not closed, and indented code.
    """
    prose = _FENCE.sub("", document)
    return re.findall(r"^ *```.*", prose, re.MULTILINE) + _INDENTED.findall(prose)


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path
    line: int


class Reader:
    """
    Somebody who does what documents say.

    @ivar directory: where everything is done.
    @ivar environment: of all commands.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        ports: MutableMapping[str, str] | None = None,
        commandSeconds: float = 300.0,
        pageSeconds: float = 3000.0,
    ) -> None:
        """
        @param ports: what to use instead of each port; those of the document
            if this is L{None}.
        @param commandSeconds: how long one command may take.
        @param pageSeconds: how long a document may take.
        """
        self.directory = directory
        self.environment = environment
        self._ports = ports
        self._commandSeconds = commandSeconds
        self._pageSeconds = pageSeconds
        self._deadline = 0.0
        self._servers: list[_Server] = []

    def follow(self, document: str) -> list[Block]:
        """
        Do what a document says.

        @return: the blocks that were run.
        @raise MisleadingDocument: if one does not do what it should, with its line.
        """
        self._deadline = time.monotonic() + self._pageSeconds
        try:
            ran = [block for block in blocksOf(document) if self._do(block)]
            self._stop()
        finally:
            for server in self._servers:
                server.process.kill()
                server.process.wait()
            self._servers.clear()
        return ran

    def install(self, block: Block) -> bool:
        """
        Install what C{block} says.

        @return: whether that was done; a reader who has everything does not.
        """
        return False

    def useSpark(self, block: Block) -> bool:
        """
        Run a program that needs a Spark session, or commands that do.

        @return: whether that was done.
        """
        if block.language == "console":
            self._converse(block)
        else:
            self._output(["python", "-c", f"{WITH_SESSION}\n{self._atPorts(block.text)}"], block.line)
        return True

    def _do(self, block: Block) -> bool:
        kind, _, name = block.word.partition("=")
        match kind, block.language:
            case "file", _:
                path = self.directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._atPorts(block.text), encoding="utf-8")
                return False
            case "run", "python":
                self._output(["python", "-c", self._atPorts(block.text)], block.line)
            case "run", "sh":
                self._output(["sh", "-ec", self._atPorts(block.text)], block.line)
            case (("run" | "sample"), "console"):
                self._converse(block)
            case "serve", "console":
                self._stop()
                for command, _ in conversationOf(block):
                    self._serve(command, block.line)
            case "client", "python":
                self._serve("twistd -n --pidfile= admission", block.line)
                self._output(["python", "-c", self._atPorts(block.text)], block.line)
                self._stop()
            case "spark", ("python" | "console"):
                return self.useSpark(block)
            case "install", "console":
                return self.install(block)
            case ("", "text"):
                return False
            case "not-run", _ if len(block.reason.split()) > 1:
                return False
            case _:
                raise MisleadingDocument(
                    f"line {block.line}: what is to become of this block of {block.language or 'no language'}?  "
                    f"{block.word!r} says nothing; see tests/kit/documentation.py for the words that do"
                )
        return True

    def _converse(self, block: Block) -> None:
        for command, expected in conversationOf(block):
            output = self._output(["sh", "-c", self._atPorts(command)], block.line).splitlines()
            wanted = [self._atPorts(line) for line in expected]
            if block.word != "run":
                output, wanted = _beginnings(output), _beginnings(wanted)
            missing = [line for line in wanted if line not in output]
            if missing:
                raise MisleadingDocument(f"line {block.line}: {command!r} did not print {missing}, but {output}")

    def _output(self, command: list[str], line: int) -> str:
        process = self._start(command, subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=self._patience())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise MisleadingDocument(f"line {line}: does not end: {output.decode(errors='replace')}") from None
        text = output.decode(errors="replace")
        if process.returncode:
            raise MisleadingDocument(f"line {line}: ended with status {process.returncode}: {text}")
        return text

    def _serve(self, command: str, line: int) -> None:
        command = self._atPorts(command)
        ready = re.compile("serving .* with " if _BROKER.search(command) else r"starting on [1-9]")
        log = self.directory.with_name(f"{self.directory.name}-server-{line}-{len(self._servers)}.log")
        with log.open("wb") as stream:
            # exec takes no assignments before the command, env does.
            process = self._start(["sh", "-c", f"exec env {command}"], stream)
        self._servers.append(_Server(process, log, line))
        until = time.monotonic() + self._patience()
        while not ready.search(text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > until:
                raise MisleadingDocument(f"line {line}: {command!r} does not serve: {text}")
            time.sleep(0.05)

    def _stop(self) -> None:
        while self._servers:
            process, log, line = self._servers[-1]
            process.terminate()
            try:
                status = process.wait(self._patience())
            except subprocess.TimeoutExpired:
                raise MisleadingDocument(f"line {line}: the server does not stop: {log.read_text()}") from None
            self._servers.pop()
            text = log.read_text(errors="replace")
            # Where twistd has shut down in good order it ends by the signal all the same.
            if status not in (0, -signal.SIGTERM) or _COMPLAINT.search(text):
                raise MisleadingDocument(f"line {line}: the server ended with status {status}: {text}")

    def _start(self, command: list[str], output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _patience(self) -> float:
        return max(min(self._commandSeconds, self._deadline - time.monotonic()), 0.0)

    def _atPorts(self, text: str) -> str:
        """C{text} with our ports, where it names one and where it means a default."""
        if self._ports is None:
            return text
        ports = self._ports
        broker, status = f"127.0.0.1:{ports[_BROKER_PORT]}", f"http://127.0.0.1:{ports[_STATUS_PORT]}"
        text = _PORT.sub(lambda match: match[1] + ports[match[2]], text)
        if "--listen" not in text and not self._listensByFile(text):
            text = _BROKER.sub(rf"\g<0> --listen tcp:{ports[_BROKER_PORT]}:interface=127.0.0.1", text)
        if "--broker" not in text:
            text = _ASKS_BROKER.sub(rf"\g<0> --broker {broker}", text)
        if "--status" not in text:
            text = _ASKS_STATUS.sub(rf"\g<0> --status {status}", text)
        return text

    def _listensByFile(self, command: str) -> bool:
        """Whether the file of properties in C{command} says where to listen."""
        match = _CONFIG.search(command)
        path = None if match is None else self.directory / match[1]
        return path is not None and path.exists() and "listeners=" in path.read_text(encoding="utf-8")


def conversationOf(block: Block) -> Iterator[tuple[str, list[str]]]:
    """
    The commands of a console block, each with the lines that it should print.
    A backslash at the end of a line continues a command.
    """
    for part in _PROMPT.split(block.text)[1:]:
        command, *expected = part.splitlines()
        while command.endswith("\\") and expected:
            command = command[:-1] + expected.pop(0).lstrip()
        yield command, expected


def _beginnings(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line[:1].strip() and line != "..."]
