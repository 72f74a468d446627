"""Processes that tell what happens by lines of JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS


class Event(NamedTuple):
    """
    What L{tests.kit.lines.say} has said.

    @ivar at: when, on the clock that all processes share.
    """

    at: float
    word: str
    values: list[Any]


def moduleCommand(module: str, *arguments: str) -> list[str]:
    """How to run a module that tells L{Event}s."""
    return [*DYING_WITH_US, sys.executable, "-m", module, *arguments]


class LineProcess:
    """
    Such a process, from its making until L{wait} or L{kill}.

    @ivar errors: when it has ended, the end of what it has written to standard error.
    """

    def __init__(self, command: Sequence[str], told: Callable[[Any], None]) -> None:
        """@param told: called in a thread of its own with what each line is."""
        self._told = told
        self.errors = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=ENVIRONMENT
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, line: str) -> None:
        """Write a line to it, unless it has gone."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)

    def dismiss(self) -> None:
        """Tell it that there is nothing more to do."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def terminate(self) -> None:
        """Ask it to end, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        self.wait()

    def kill(self) -> None:
        """End it with no chance to do anything about it; all it told is known then."""
        self._process.kill()
        self._process.wait()
        self._close()

    def isGone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """
        Wait until it has ended, and all it told is known.

        @return: its exit status.
        @raise AssertionError: if it does not end, with its errors.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not end:\n{self.errors}") from None
        finally:
            self._close()

    def _close(self) -> None:
        self._reader.join(PATIENCE_SECONDS)
        self.dismiss()
        if not self._stderr.closed:
            self._stderr.seek(0)
            self.errors = self._stderr.read()[-2000:].decode(errors="replace")
            self._stderr.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                # Some write other lines, too, and the last one of a process that was killed may be cut short.
                if line.startswith(("{", "[")) and line.endswith("\n"):
                    self._told(json.loads(line))
