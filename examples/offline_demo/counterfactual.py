"""
How right a replay is: a broker is recorded under one policy, what others would have done is predicted from that, and
then they are really tried, on the same clients.

    python -m examples.offline_demo.counterfactual [--seconds 30] [--seed 7] [--out build/counterfactual]

It takes five times as long as C{--seconds} says, and a minute or two for the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from admission.cli import main as admission
from admission.offline import OPEN

from .outcomes import Outcome, Outcomes, inAll, predicted, recorded
from .running import DemoFailed, recordedBroker
from .seeded import Crowd, work

IN_FORCE = "client-bytes:produce=200k"

CANDIDATES = {
    "the same again": IN_FORCE,
    "half the rate": "client-bytes:produce=100k",
    "a quarter": "client-bytes:produce=50k",
    "half, bucket": "client-bytes:produce=100k:algorithm=bucket:burst=500ms",
}
"""By what they are called."""

WINDOW = "100ms"
"""
Eleven of them are a second, so that a client has soon used up what it may take before it is throttled.
"""

_LINE = "{:<16} {:<10} {:>9} {:>9} {:>7} {:>10} {:>10} {:>7}"


def run(directory: Path, policy: str, crowd: Crowd) -> tuple[Path, Counter[str]]:
    """
    Let a crowd work under a policy.

    @param directory: where there is nothing yet.
    @return: the recording, and how many answers each client has counted.
    @raise DemoFailed: if the broker fails.
    """
    options = ["--quota", policy, "--set", f"quota.window.size.seconds={WINDOW}"]
    with recordedBroker(directory, *options) as port:
        answers = work(port, crowd)
    return directory / "recording", answers


def difference(prediction: float, truth: float) -> str:
    """
    By how much a prediction is off, in words.
    """
    if not truth:
        return "-" if not prediction else "all"
    return f"{(prediction - truth) / truth:+.1%}"


def lines(name: str, prediction: Outcomes, truth: Outcomes) -> Iterator[str]:
    """
    A prediction beside the truth, for each client and in all.
    """
    pairs: list[tuple[str, Outcome, Outcome]] = [(each, prediction[each], truth[each]) for each in truth]
    for who, said, was in [*pairs, ("all", inAll(prediction), inAll(truth))]:
        yield _LINE.format(
            name,
            who,
            said.requests,
            was.requests,
            difference(said.requests, was.requests),
            f"{said.throttleSeconds:.1f}",
            f"{was.throttleSeconds:.1f}",
            difference(said.throttleSeconds, was.throttleSeconds),
        )


def prove(directory: Path, crowd: Crowd, candidates: Mapping[str, str] = CANDIDATES) -> None:
    """
    Predict, try, and print both.

    @raise DemoFailed: if that cannot be done.
    """
    say(f"1. recording {len(crowd.clientIds)} clients under {IN_FORCE} for {crowd.seconds:g} s")
    recording, _ = run(directory / "recorded", IN_FORCE, crowd)
    say("2. predicting what other policies would have done")
    results = directory / "predicted"
    arguments = ["replay", str(recording), "--out", str(results), "--mode", "closed,open"]
    for name, description in candidates.items():
        arguments += ["--candidate", f"{name}={description}"]
    if admission(arguments):
        raise DemoFailed("the replay has failed")
    found: list[str] = []
    for name, description in candidates.items():
        say(f"3. trying {name}: {description}")
        tried, _ = run(directory / name.replace(" ", "-"), description, crowd)
        truth = recorded(tried, crowd.clientIds)
        found += lines(name, predicted(results, name, crowd.clientIds), truth)
        opened = inAll(predicted(results, name, crowd.clientIds, OPEN))
        found.append(f"{'':<16} open loop: {opened.requests} requests, throttled for {opened.throttleSeconds:.1f} s")
    print(_LINE.format("", "", "requests", "", "", "throttled", "(s)", ""))
    print(_LINE.format("policy", "client", "predicted", "really", "", "predicted", "really", ""))
    print("\n".join(found))


def say(line: str) -> None:
    """
    Tell how far it is.
    """
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    The command line.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(description="How right a replay is: predictions beside what then really happens.")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long clients work under each policy")
    parser.add_argument("--seed", type=int, default=7, help="what clients do comes from it")
    parser.add_argument("--out", type=Path, default=Path("build/counterfactual"), help="where there is nothing yet")
    options = parser.parse_args(arguments)
    try:
        prove(options.out.absolute(), Crowd(options.seed, seconds=options.seconds))
    except (DemoFailed, ConnectionError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
