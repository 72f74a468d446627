"""Simulate a broker with many seeds, or again with one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from twisted.logger import globalLogBeginner

from .network import Violation
from .seededbugs import BUGS, Bug
from .simulation import Simulation

_SEEDS_AT_ONCE = 20
_SHOWN_EVERY_SECONDS = 10.0
_SHOWN_VIOLATIONS = 5


def simulate(seeds: range) -> list[str]:
    """@return: what went wrong, for people."""
    violations = []
    for seed in seeds:
        try:
            Simulation(seed).run()
        except Violation as violation:
            violations.append(str(violation))
    return violations


def quiet() -> None:
    """Nobody reads what the simulated brokers log."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many; each takes about a second [%(default)s]")
    parser.add_argument("--first", type=int, default=0, help="the first of them [%(default)s]")
    parser.add_argument("--seed", type=int, help="only this one, and show what happens in it")
    parser.add_argument("--bugs", type=int, metavar="SEEDS", help="how many it takes to find bugs that are made for it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at a time [%(default)s]")
    options = parser.parse_args()
    if options.seed is not None:
        return again(options.seed)
    if options.bugs is not None:
        return findBugs(options.bugs)
    began = shown = time.monotonic()
    last = options.first + options.seeds
    parts = [range(first, min(first + _SEEDS_AT_ONCE, last)) for first in range(options.first, last, _SEEDS_AT_ONCE)]
    violationCount = seedCount = 0
    with ProcessPoolExecutor(options.processes, initializer=quiet) as pool:
        running = {pool.submit(simulate, part): part for part in parts}
        for future in as_completed(running):
            seedCount += len(running[future])
            for violation in future.result():
                violationCount += 1
                if violationCount <= _SHOWN_VIOLATIONS:
                    print(f"{violation}\n", flush=True)
            if time.monotonic() - shown >= _SHOWN_EVERY_SECONDS:
                shown = time.monotonic()
                print(f"{seedCount} of {options.seeds} seeds, {violationCount} failed", flush=True)
    print(f"{seedCount} seeds in {time.monotonic() - began:.0f} s, {violationCount} failed")
    return 1 if violationCount else 0


def seedsToFind(bug: Bug, maxSeeds: int) -> int | None:
    """@return: how many seeds it takes to find it; L{None} if that are more than C{maxSeeds}."""
    for seed in range(maxSeeds):
        with bug():
            try:
                Simulation(seed).run()
            except Violation:
                return seed + 1
    return None


def findBugs(maxSeeds: int) -> int:
    """Show how many seeds it takes to find each."""
    quiet()
    missed = 0
    for name, bug in BUGS.items():
        found = seedsToFind(bug, maxSeeds)
        missed += found is None
        print(f"{f'more than {maxSeeds}' if found is None else found:>13}  {name}", flush=True)
    return 1 if missed else 0


def again(seed: int) -> int:
    """One seed."""
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Violation as violation:
        print(violation)
        return 1
    print("\n".join(simulation.trace))
    print(f"seed {seed}: {simulation.summary()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
