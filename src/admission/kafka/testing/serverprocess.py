# -*- test-case-name: tests.clients.test_broker_for_tests -*-
"""
A server in a process of its own, with a temporary directory and a log.  It
needs nothing but Python.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, ClassVar

PATIENCE_SECONDS = 60.0
"""How long to wait for what must happen."""


class ServerFailed(Exception):
    """
    A server did not start, does not answer or did not end; the message has its log.
    """


class ServerProcess:
    """
    It can be started, ended and started again, with what it has in its directory.

    For one thread at a time.

    @ivar isDown: whether it was ended by L{stop} or L{kill}, and not started again.

    @cvar failure: what is raised where it does not do as it should, made of a text.
    @cvar workingDirectory: where it runs; L{None} for that of this process.
    """

    failure: ClassVar[type[Exception]] = ServerFailed
    workingDirectory: str | None = None

    def __init__(self, name: str) -> None:
        """
        @param name: what to call it in messages.
        """
        self._name = name
        self._directory = tempfile.mkdtemp(prefix=f"{name}-")
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        # What the log is read from, until that ends.
        self._reading: IO[str] | None = None
        self.isDown = False
        atexit.register(self.remove)

    @property
    def process(self) -> subprocess.Popen[str]:
        """
        The process that was started last.

        @raise RuntimeError: if there was none.
        """
        if self._process is None:
            raise RuntimeError(f"{self._name} was never started")
        return self._process

    def start(self) -> None:
        """
        Start it and wait until it serves.

        @raise RuntimeError: if it runs already.
        @raise ServerFailed: if it does not serve; then it has ended.
        """
        if self.isRunning():
            raise RuntimeError(f"{self._name} runs already")
        begin = self.mark()
        self.isDown = False
        self._process = self._spawn(self._command())
        self._reading = self._logOf(self._process)
        self._reader = threading.Thread(target=self._read, args=(self._reading,), daemon=True)
        self._reader.start()
        try:
            self._waitUntilServing(begin)
        except BaseException:
            if self.isRunning():
                self.kill()
            raise

    def stop(self) -> int:
        """
        Ask it to end, as C{kill} does in a shell, and wait until it has.

        @return: its exit status.
        @raise ServerFailed: if it does not end within a minute; then it is killed.
        """
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """
        End it with no chance to do anything about it.
        """
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        """
        End it, and remove its directory.  This also happens when the process ends that has made it.
        """
        if self.isRunning():
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
        atexit.unregister(self.remove)

    def isRunning(self) -> bool:
        """
        Whether the process lives.
        """
        return self._process is not None and self._process.poll() is None

    def mark(self) -> int:
        """
        How many lines the log has so far.
        """
        return len(self._lines)

    def log(self, begin: int = 0) -> str:
        """
        What all its processes have written, from line C{begin} on.
        """
        return "".join(self._lines[begin:])

    def waitForLog(self, pattern: str, begin: int = 0) -> str:
        """
        Wait for a line that C{pattern} is found in.

        @param begin: the line of the log to begin at.
        @return: the line.
        @raise ServerFailed: if the process ends without it, or it does not come within a minute.
        """
        expression = re.compile(pattern)

        def line() -> str | None:
            return next((each for each in self._lines[begin:] if expression.search(each)), None)

        with self._changed:
            self._changed.wait_for(lambda: line() is not None or self._reading is None, PATIENCE_SECONDS)
            found = line()
        if found is None:
            raise self.failure(f"no {pattern!r} in the log of {self._name}:\n{self.log(begin)}")
        return found

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _waitUntilServing(self, begin: int) -> None:
        """
        Wait for what tells that it serves.

        @param begin: the line of the log that it was started at.
        """
        raise NotImplementedError

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return self._run(command, subprocess.DEVNULL, subprocess.STDOUT)

    def _run(self, command: Sequence[str], stdin: int, stderr: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.workingDirectory,
            env=self._environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="backslashreplace",
            # What interrupts the tests ends it once they are through with it.
            start_new_session=True,
        )

    def _logOf(self, process: subprocess.Popen[str]) -> IO[str]:
        assert process.stdout is not None
        return process.stdout

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            if self._reading is stream:
                self._reading = None
            self._changed.notify_all()

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        self.isDown = True
        process.send_signal(number)
        try:
            status = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise self.failure(f"{number.name} did not end {self._name}:\n{self.log()}") from None
        self._readToEnd()
        return status

    def _readToEnd(self) -> None:
        if self._reader is not None:
            self._reader.join(PATIENCE_SECONDS)


class AnsweringProcess(ServerProcess):
    """
    One that answers each line of its standard input with a line of JSON, and whose log is its standard error.
    """

    def remove(self) -> None:
        super().remove()
        self._close()

    def _asked(self, question: str) -> Any:
        """
        Write a line, and wait for the answer.

        @raise ServerFailed: if there is none.
        """
        stdin = self.process.stdin
        assert stdin is not None
        if not self.isRunning():
            raise self._hasEnded()
        with suppress(BrokenPipeError):
            stdin.write(f"{question}\n")
            stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        stdout = self.process.stdout
        assert stdout is not None
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        if not poll.poll(PATIENCE_SECONDS * 1000):
            raise self.failure(f"{self._name} does not answer:\n{self.log()}")
        line = stdout.readline()
        if not line:
            raise self._hasEnded()
        return json.loads(line)

    def _hasEnded(self) -> Exception:
        status = self.process.wait(PATIENCE_SECONDS)
        self._readToEnd()
        return self.failure(f"{self._name} has ended with status {status}:\n{self.log()}")

    def _end(self, number: signal.Signals) -> int:
        status = super()._end(number)
        self._close()
        return status

    def _close(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                # Closing may have to send what was not taken.
                with suppress(BrokenPipeError):
                    stream.close()

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return self._run(command, subprocess.PIPE, subprocess.PIPE)

    def _logOf(self, process: subprocess.Popen[str]) -> IO[str]:
        assert process.stderr is not None
        return process.stderr
