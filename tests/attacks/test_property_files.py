"""Imitates who may write a server's file of properties, and has it read again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.kit.attack import AttackTestCase, sized

TIMES = sized(2, 10)


class PropertyFileTests(AttackTestCase):
    """Whatever the file is, reading it is over at once."""

    def setUp(self) -> None:
        self.path = Path(os.path.abspath(self.mktemp()))
        self.path.write_text("message.max.bytes=2MiB\n")
        self.options = ("--config", str(self.path))
        super().setUp()

    def test_reload(self) -> None:
        """A pipe and a device are refused, and so are many bytes; many lines are read as others are."""
        found: Mapping[str, tuple[Callable[[Path], object], str]] = {
            "a pipe": (os.mkfifo, "it is not a regular file"),
            "a device without end": (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
            "a line of 8 MiB": (lambda path: path.write_bytes(b"a=" + b"x" * (8 << 20)), "it has more than 64KiB"),
            "one line in 20,000": (lambda path: path.write_bytes(b"a\\\n" * 20_000), "unknown property"),
        }
        for name, (make, words) in found.items():
            self.path.unlink()
            make(self.path)
            with self.attack(f"{TIMES} times SIGHUP, and in the place of the file {name}"):
                for _ in range(TIMES):
                    begin = self.broker.mark()
                    self.broker.process.send_signal(signal.SIGHUP)
                    self.broker.waitForLog(f"nothing is reloaded: .*{words}", begin)
        self.assertAffordable()
