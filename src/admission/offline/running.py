# -*- test-case-name: tests.spark.test_jobs -*-
"""
Runs a job for a command: checks the requirements, starts Spark, and reports an error in one sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from ..plugins import PolicyError
from ..recording.places import StorageFailed
from .evaluation import Selection
from .failures import JobFailed
from .progress import StepBar, watching
from .sparksession import checkPackages, openSession
from .workers import checkWorkers, prepareWorkers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .jobs import Work

_Result = TypeVar("_Result")

_LACK = "No module named"

_CAUSE = re.compile(r"^Caused by: (?=[\w.$]+: )", re.MULTILINE)
_CALL = re.compile(r"\s*An error occurred while calling \S+\s*: ")
_TRACEBACK = re.compile(r"Traceback \(.*\n(?:[ \t].*\n|\n)*(\S.*)")


@frozen
class Progress:
    """
    The progress of a running job.

    @ivar tell: takes a line when a step begins.
    @ivar bar: moved by Spark's tasks, if there is one.
    """

    tell: Callable[[str], None]
    bar: StepBar | None = None


def runJob(
    job: Callable[[Work], _Result],
    selection: Selection,
    out: str,
    progress: Progress,
    settings: Mapping[str, str] | None = None,
) -> _Result:
    """
    Run a job on a recording.

    @param job: of L{admission.offline.jobs}.
    @param out: the directory of the results.
    @param settings: of Spark, as L{openSession} takes them.
    @raise JobFailed: if it fails.
    """
    with _session(selection, progress, settings or {}) as session:
        from .jobs import Work

        return job(Work.begin(session, selection, out, progress.tell))


def runStream(selection: Selection, out: str, progress: Progress, settings: Mapping[str, str] | None = None) -> None:
    """
    Run L{admission.offline.jobs.aggregateStream}.

    @param selection: without bounds and sample.
    @param settings: of Spark, as L{openSession} takes them.
    @raise JobFailed: if it fails.
    """
    with _session(selection, progress, settings or {}) as session:
        from .jobs import aggregateStream

        aggregateStream(session, selection.recording, out)


@contextmanager
def _session(selection: Selection, progress: Progress, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    checkPackages("spark.remote" in settings or "SPARK_REMOTE" in os.environ)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _check(selection)
    try:
        isOurs = SparkSession.getActiveSession() is None
        if isOurs:
            progress.tell("starting Spark")
        # An existing session stays as it is.
        session = openSession("admission", settings if isOurs else None)
        try:
            with nullcontext() if progress.bar is None else watching(session, progress.bar):
                prepareWorkers(session, progress.tell, selection.recording)
                yield session
        except (PySparkException, Py4JError) as error:
            # A worker that has come since the check may be the one that lacks something.
            if _LACK in str(error):
                checkWorkers(session)
            raise
        finally:
            if isOurs:
                session.stop()
    except (PolicyError, StorageFailed) as error:
        raise JobFailed(str(error)) from error
    except (PySparkException, Py4JError) as error:
        raise JobFailed(f"Spark has failed: {lastWords(str(error))}") from error


def _check(selection: Selection) -> None:
    """
    Find mistakes before Spark is started, which takes seconds.
    """
    from pyspark_admission.options import Options

    from .recording import parseSample

    given = {"path": selection.recording, "since": selection.since, "until": selection.until}
    try:
        Options.parse({name: text for name, text in given.items() if text is not None})
        if selection.sample is not None:
            parseSample(selection.sample)
    except ValueError as error:
        raise JobFailed(str(error)) from error


def lastWords(message: str) -> str:
    """
    The cause in a message: of the deepest of Java's causes that says anything, the exception of its last Python
    traceback, else its first line.
    """
    # Which call failed means nothing to an operator; an exception of Java follows.
    cause = _CAUSE.split(_CALL.sub("", message, count=1))[-1]
    tracebacks = _TRACEBACK.findall(cause)
    lines = tracebacks[-1:] or cause.split("\n")
    words = next((line.strip() for line in lines if line.strip()), "it does not say why")
    if "OutOfMemoryError" in words:
        return f"{words}; give it more (spark.driver.memory in spark-defaults.conf), or take a shorter time or a sample"
    return words
