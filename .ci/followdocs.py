"""
Be a newcomer: install what a copy of the checkout has, as the first page of
the manual says, into a fresh environment, and do what every page says, to the
letter and at the ports that it names.

    .ci/follow-docs [PAGE ...]

This runs before there is anything but Python, so it finds
C{tests/kit/documentation.py} without its package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from documentation import Block, MisleadingDocument, Reader, blocksOf, conversationOf

ROOT = Path(__file__).parent.parent
FIRST = "start-here.md"

_INSTALL_SECONDS = 1800.0
_COMMAND_SECONDS = 300.0
_PAGE_SECONDS = 900.0

_NOT_CLONED = (".git", ".venv*", "build", "dist", "data", "*.egg-info", "__pycache__", ".*_cache", "dropin.cache")


class Newcomer(Reader):
    """
    Somebody who has a clone, and a directory to try things in.
    """

    def __init__(self, clone: Path, directory: Path) -> None:
        """
        @param clone: the directory of the checkout.
        @param directory: where to do what pages say; made here.
        """
        directory.mkdir(parents=True)
        self._clone = clone
        installed = [clone / ".venv" / "bin", Path(sys.executable).parent]
        # What is run gets nothing of the environment of this process, but how to get at packages and a few more.
        hidden = ("PYTHON", "VIRTUAL_ENV")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        path = os.pathsep.join([*map(str, installed), os.environ.get("PATH", os.defpath)])
        super().__init__(
            directory,
            {**inherited, "PATH": path, "COLUMNS": "120", "PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            commandSeconds=_COMMAND_SECONDS,
            pageSeconds=_PAGE_SECONDS,
        )

    def install(self, block: Block) -> bool:
        """
        Run the commands of C{block} in the checkout, all by one shell.
        """
        script = "\n".join(command for command, _ in conversationOf(block))
        # Each shell begins anew, in an environment that the first block has made.
        activated = ". .venv/bin/activate\n" if self._clone.joinpath(".venv").exists() else ""
        try:
            subprocess.run(
                ["sh", "-ec", activated + script],
                cwd=self._clone,
                env=self.environment,
                check=True,
                timeout=_INSTALL_SECONDS,
            )
        except subprocess.SubprocessError as error:
            raise MisleadingDocument(f"line {block.line}: {error}") from None
        return True


def clone(target: Path) -> Path:
    """
    Copy the checkout, since installing leaves things in it.
    """
    return Path(shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*_NOT_CLONED)))


def main(names: Sequence[str]) -> int:
    """
    Follow the pages of these names, or all, and say how it went.

    @return: the exit status: 1 if a page does not hold what it promises.
    """
    manual = ROOT / "docs"
    wanted = [FIRST, *(names or sorted(page.name for page in manual.glob("*.md")))]
    misleading = 0
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix="admission-newcomer-", ignore_cleanup_errors=True) as scratch:
        checkout = clone(Path(scratch, "admission"))
        for name in dict.fromkeys(wanted):
            document = manual.joinpath(name).read_text(encoding="utf-8")
            left += [f"{name}:{each.line}: {each.reason}" for each in blocksOf(document) if each.word == "not-run"]
            begin = time.monotonic()
            try:
                count = len(Newcomer(checkout, Path(scratch, "pages", name)).follow(document))
            except MisleadingDocument as error:
                misleading += 1
                print(f"{name} misleads: {error}", flush=True)
                if name == FIRST:
                    break
            else:
                print(f"{name}: {count} blocks, {time.monotonic() - begin:.0f} s", flush=True)
    for each in left:
        print(f"not run: {each}")
    return 1 if misleading else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
