"""
Fuzz all targets, or some, and show what was found::

    python -m tests.fuzz run --minutes 10 [TARGET...]
    python -m tests.fuzz replay build/fuzz/frames/crash-...

Targets share the time, one on each processor at a time.  Inputs that fail stay in build/fuzz.  So do inputs that reach
new branches; the next run goes on from them.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from attrs import define

from .target import Target, loadTarget, targetNames

_DIRECTORY: Final = Path("build/fuzz")

_SHOWN_SECONDS: Final = 10.0

_INPUT_SECONDS: Final = 60
"""How long one input may take: far more than any does, since the machine may be busy."""

_PROCESS_MIB: Final = 2048
_ADDRESS_BYTES: Final = 8 << 30
"""Beyond that an allocation fails, whatever the machine would promise."""

_KEPT_INPUTS: Final = 500
"""How many inputs a target keeps from one run to the next, the smallest ones."""

_FAILED: Final = re.compile(r"(crash|timeout|oom|leak)-[0-9a-f]+")
_COUNT: Final = re.compile(r"^#(\d+)\s.*cov: (\d+)", re.MULTILINE)
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units:\s*(\d+)")

_NO_ATHERIS: Final = (
    "fuzzing needs atheris, for which there is not a wheel for every machine: try pip install -e '.[fuzz]'"
)


@define(eq=False)
class Fuzzing:
    """
    The fuzzing of one target, in a process of its own.

    @ivar log: what the fuzzer says.
    @ivar known: failures of earlier runs.
    """

    name: str
    process: subprocess.Popen[bytes]
    begunSeconds: float
    log: Path
    known: set[Path]

    @classmethod
    def begin(cls, name: str, untilSeconds: float) -> Fuzzing:
        """@param untilSeconds: when to end, on the monotonic clock."""
        directory = _DIRECTORY / name
        directory.mkdir(parents=True, exist_ok=True)
        log = directory / "log"
        known = set(_failures(name))
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz", "one", name, "--until", str(untilSeconds)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return cls(name, process, time.monotonic(), log, known)

    def progress(self) -> str:
        """How far it has come, for people."""
        said = self.log.read_text("utf-8", "replace")
        counts = _COUNT.findall(said)
        executed = _EXECUTED.findall(said)
        count = int(executed[-1]) if executed else int(counts[-1][0]) if counts else 0
        coverage = int(counts[-1][1]) if counts else 0
        seconds = max(time.monotonic() - self.begunSeconds, 0.001)
        return f"{self.name}: {count:,} inputs in {seconds:.0f} s, {coverage:,} branches"

    def failures(self) -> list[Path]:
        """The inputs that failed in this run."""
        return [path for path in _failures(self.name) if path not in self.known]


def _failures(name: str) -> list[Path]:
    return sorted(path for path in (_DIRECTORY / name).glob("*-*") if _FAILED.fullmatch(path.name))


def run(names: Sequence[str], seconds: float) -> int:
    """
    Fuzz targets.

    @param seconds: how long, for all of them together.
    @return: the exit status.
    """
    try:
        import atheris  # noqa: F401
    except ImportError:
        print(_NO_ATHERIS, file=sys.stderr)
        return 1
    places = min(len(os.sched_getaffinity(0)), len(names))
    end = time.monotonic() + seconds
    waiting, running, failed = list(names), list[Fuzzing](), list[Fuzzing]()
    shown = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < places:
                now = time.monotonic()
                # What one has not used is for those behind it.
                share = max(end - now, 0.0) * places / (len(waiting) + len(running))
                running.append(Fuzzing.begin(waiting.pop(0), now + share))
            time.sleep(0.1)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                print(each.progress(), flush=True)
                if each.process.returncode or each.failures():
                    failed.append(each)
                    _tell(each)
            if time.monotonic() - shown >= _SHOWN_SECONDS:
                shown = time.monotonic()
                print("... " + "; ".join(each.progress() for each in running), flush=True)
    finally:
        for each in running:
            each.process.terminate()
            each.process.wait()
    return 1 if failed else 0


def _tell(fuzzing: Fuzzing) -> None:
    said = fuzzing.log.read_text("utf-8", "replace").splitlines()
    begins = [number for number, line in enumerate(said) if "Uncaught Python exception" in line or "ERROR:" in line]
    print("\n".join(said[begins[0] :][:60] if begins else said[-20:]))
    for path in fuzzing.failures():
        print(f"{fuzzing.name} has FAILED; to see it again: {sys.executable} -m tests.fuzz replay {path}", flush=True)
    if not fuzzing.failures():
        print(f"{fuzzing.name} has ended with status {fuzzing.process.returncode}; see {fuzzing.log}", flush=True)


def one(name: str, untilSeconds: float) -> None:
    """Fuzz one target in this process.  Does not return."""
    import atheris

    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    # Not kio's thousand schemas, which have no branches.
    with atheris.instrument_imports(include=["kio"]):
        import kio.serial  # noqa: F401
    with atheris.instrument_imports(include=["admission", "admission_plugins"]):
        from admission.kafka.wire import guard

        # Its functions are generated, not imported.
        generate = guard._walkOf
        guard._walkOf = cache(lambda entityType, label: atheris.instrument_func(generate(entityType, label)))
        target = loadTarget(name)
        # Some of what a target uses is imported when it is used.
        for seed in target.seeds:
            target.check(seed)
    directory = _DIRECTORY / name
    corpus, seeds, tokens = directory / "corpus", directory / "seeds", directory / "tokens"
    corpus.mkdir(exist_ok=True)
    for path in sorted(corpus.iterdir(), key=lambda path: path.stat().st_size)[_KEPT_INPUTS:]:
        path.unlink()
    seeds.mkdir(exist_ok=True)
    for path in seeds.iterdir():
        path.unlink()
    for number, seed in enumerate(target.seeds):
        (seeds / str(number)).write_bytes(seed)
    tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens), "ascii")
    options: dict[str, object] = {
        "artifact_prefix": f"{directory}/",
        "max_len": target.maxBytes,
        "max_total_time": max(round(untilSeconds - time.monotonic()), 1),
        "print_final_stats": 1,
        "report_slow_units": 2 * _INPUT_SECONDS,
        "rss_limit_mb": _PROCESS_MIB,
        "timeout": _INPUT_SECONDS,
    }
    if target.tokens:
        options["dict"] = tokens
    atheris.Setup(
        [sys.argv[0], *(f"-{option}={value}" for option, value in options.items()), str(corpus), str(seeds)],
        target.check,
    )
    atheris.Fuzz()


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def replay(paths: Sequence[Path]) -> int:
    """
    Check inputs that a run has left, without the fuzzer.

    @return: the exit status.
    """
    for path in paths:
        # They lie in the directory of their target, or in its corpus.
        directory = next(each for each in path.resolve().parents if each.name in targetNames())
        target: Target = loadTarget(directory.name)
        target.check(path.read_bytes())
        print(f"{path} passes")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz everything that parses.")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="fuzz targets")
    running.add_argument("targets", nargs="*", metavar="TARGET", help=f"all by default: {', '.join(targetNames())}")
    running.add_argument("--minutes", type=float, default=10.0, help="how long, for all targets together")
    running.add_argument("--seconds", type=float, help="the same")
    fuzzing = commands.add_parser("one", help="what run starts")
    fuzzing.add_argument("target")
    fuzzing.add_argument("--until", type=float, required=True)
    replaying = commands.add_parser("replay", help="check an input that has failed")
    replaying.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    if arguments.command == "one":
        one(arguments.target, arguments.until)
        return 0
    if arguments.command == "replay":
        return replay(arguments.paths)
    unknown = sorted(set(arguments.targets) - set(targetNames()))
    if unknown:
        parser.error(f"there is no target {', '.join(unknown)}; choose from {', '.join(targetNames())}")
    return run(
        arguments.targets or targetNames(),
        60 * arguments.minutes if arguments.seconds is None else arguments.seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
