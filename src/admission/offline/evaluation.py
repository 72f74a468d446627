# -*- test-case-name: tests.spark.test_jobs -*-
"""
C{OUT/evaluation.json}: the origin of the results beside it, so that their reader needs nothing else. One object, with
these keys:

  - C{recording}, C{since}, C{until}, C{sample}: the part that was read, as given; null for everything,
  - C{admission}, C{pyspark}: the versions of these packages,
  - C{requests}: how many there are, and C{runs}: each run of a server, with C{brokerId}, C{bootId}, C{requests},
    C{begin} and C{end} (ISO 8601), C{policies}, C{pool} (their descriptions), C{gateSeed} and
    C{limitShare}, how much of each limit it enforced,
  - C{stepSeconds}: how long the steps are of results by time, other than by minute,
  - C{isSynthetic}: whether the recording is of a synthetic server,
  - of the audit: C{brokenRows}, the number of invalid rows,
  - of the audit and the replay: C{unreadableFiles}, how many files cannot be read, C{problems}, each with C{path} and
    C{problem}, of the first of these, and C{unreadableShare}, about which share of the events is in them,
  - of the replay: C{candidates} and C{pools}, each with C{label} and C{description}, C{modes}, C{recordedEvents} (how
    many events could be read), C{missingEvents} (how many are missing by their numbers), C{droppedEvents} (how many the
    server dropped by its own count; null if it did not record that), C{seqGaps} (in how many places events are
    missing), C{gaps} (C{brokerId}, C{bootId}, C{seq}, C{at} and C{missing} of the first ones), C{approximate} (the
    labels of policies that follow requests), C{isTrusted} (whether every replay of a policy in force agrees with what
    was recorded, and no more is missing than L{admission.offline.missing} allows; null if no policy was in force),
    C{trust}, how far each replay agrees, in sentences, C{untrusted}, the labels of candidates that depend on a replay
    that does not agree, C{disagreements}, the fields of L{admission.offline.simulate.disagreement.Disagreement} for
    each policy in force and run of which the closed-loop replay does not agree, and C{narrower}, the C{since} and
    C{until} of a part of the recording with which it was seen to agree (null if there is none, or none is needed),
  - of the replay, too: C{sharedRuns}, of each group of runs whose servers enforced limits together C{runs} and
    C{counted} (how many servers they say there were), C{isComplete} (whether these are the same, so that the runs are
    replayed together) and C{clocksDifferBySeconds} (the longest time, by their clocks, between two moments at which
    they set the same limit; null if they set none), and C{shared}, the labels of candidates whose limits can be
    enforced so, and C{alone}, of those that each server enforces alone in the place of such limits,
  - of the replay of a sample: C{estimates} and C{largestLeftOut}, what
    L{Sampled <admission.offline.simulate.estimates.Sampled>} has of these names,
  - C{notes}: further remarks on the replay, in sentences.

The keys of a job are present once it has run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import asdict, define, field, frozen

from admission.boundedfile import readBounded
from admission.recording.places import absolutePlace

from .failures import OutputError

EVALUATION = "evaluation.json"

MAX_EVALUATION_BYTES = 16 << 20
"""The largest file, in bytes; one of a hundred runs under a hundred candidates has a tenth of that."""

_SHOWN = {"recording": "DIRECTORY", "since": "--from", "until": "--to", "sample": "--sample"}


@frozen
class Selection:
    """
    The part of a recording to read.

    @ivar recording: the directory, or its URL.
    @ivar since: the first moment; L{None} for the beginning.
    @ivar until: the first moment after the end; L{None} for no end.
    @ivar sample: the share of the clients; L{None} for all.
    """

    recording: str
    since: str | None = None
    until: str | None = None
    sample: str | None = None

    def inWords(self) -> str:
        """
        The selection as part of a sentence.
        """
        parts = [self.recording]
        parts += [f"from {self.since}"] if self.since is not None else []
        parts += [f"to {self.until}"] if self.until is not None else []
        parts += [f"of {self.sample} of the clients"] if self.sample is not None else []
        return " ".join(parts)


@define(eq=False)
class Evaluation:
    """
    The file and its content.

    @ivar path: its path.
    @ivar facts: by key.
    """

    path: Path
    facts: dict[str, Any] = field(factory=dict)

    @classmethod
    def open(cls, directory: str | Path, selection: Selection) -> Evaluation:
        """
        Create the file, or read the existing one.

        @param directory: of the results.
        @raise OutputError: if the directory has results of another selection.
        """
        path = Path(directory) / EVALUATION
        asked = {**asdict(selection), "recording": absolutePlace(selection.recording)}
        try:
            found = readEvaluation(path) or asked
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{path} cannot be read: {error}; remove it, or name another directory with --out"
            ) from error
        for name, option in _SHOWN.items():
            if found.get(name) != asked[name]:
                raise OutputError(
                    f"{directory} has results with {option} {found.get(name) or 'not given'}, and not "
                    f"{asked[name] or 'without it'}; name another directory with --out, or remove that one"
                )
        return cls(path, {**found, **asked})

    def tell(self, facts: Mapping[str, Any]) -> None:
        """
        Set keys, replacing their former values.

        @raise OutputError: if the file cannot be written.
        """
        self.facts.update(facts)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as unfinished:
                unfinished.write_text(json.dumps(self.facts, indent=2, sort_keys=True) + "\n", "utf-8")
        except OSError as error:
            raise OutputError(
                f"results cannot be written to {self.path.parent}: {error}; name another directory"
            ) from error


def readEvaluation(path: Path) -> dict[str, Any]:
    """
    The content of the file; empty if there is none.

    @raise ValueError: if it is something else, L{OSError} if it cannot be read.
    """
    try:
        found = json.loads(readBounded(path, MAX_EVALUATION_BYTES))
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """
    A file to write, which takes the place of C{path} once that is done.
    """
    # Spark ignores files whose names begin with a dot.
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
