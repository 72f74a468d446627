# -*- test-case-name: tests.offline.test_jobs -*-
"""
From a command to a job: what has to be there, Spark, and what went wrong in a
sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from ..plugins import PolicyError
from .evaluation import Selection
from .failures import JavaMissing, JobFailed, OutputError, RecordingError, SparkMissing, TraceError
from .sparksession import checkPackages, openSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .jobs import Work

_Result = TypeVar("_Result")

_CONFIGURED = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT")
"""What is in the environment where somebody has set Spark up; the last one is from spark-submit."""

TASKS_OF_CORE = 4
"""Into how many parts data is cut for each core of this machine, where nobody has set Spark up."""


@frozen
class Progress:
    """
    What is told while a job runs.

    @ivar tell: takes a line.
    @ivar isShown: whether Spark is to show how far it is, too.
    """

    tell: Callable[[str], None]
    isShown: bool


def sessionSettings(environment: Mapping[str, str], progress: Progress) -> dict[str, str]:
    """
    Spark properties for a job: few, where somebody has set Spark up.

    @param environment: the process's.
    """
    settings = {"spark.ui.showConsoleProgress": str(progress.isShown).lower()}
    if isConfigured(environment):
        return settings
    return settings | {
        # Its pages have no login, and show the names of clients to everybody who can reach this machine.
        "spark.ui.enabled": "false",
        # Nobody but the workers on this machine and this process is to talk to it.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Spark's 200 are for clusters: on one machine each of many small queries takes seconds longer.
        "spark.sql.shuffle.partitions": str(TASKS_OF_CORE * (os.cpu_count() or 1)),
    }


def isConfigured(environment: Mapping[str, str]) -> bool:
    """
    Whether somebody has set Spark up, and may have said where it runs.

    @param environment: the process's.
    """
    package = find_spec("pyspark")
    hasFiles = package is not None and package.origin is not None and Path(package.origin).with_name("conf").exists()
    return hasFiles or any(name in environment for name in _CONFIGURED)


def runJob(job: Callable[[Work], _Result], selection: Selection, out: str, progress: Progress) -> _Result:
    """
    Run a job on a recording.

    @param job: of L{admission.offline.jobs}.
    @param out: where results go.
    @raise JobFailed: if that is impossible.
    """
    with _session(selection, progress) as session:
        from .jobs import Work

        return job(Work.begin(session, selection, out, progress.tell))


def runStream(selection: Selection, out: str, progress: Progress) -> None:
    """
    Run L{admission.offline.jobs.aggregateStream}.

    @param selection: without bounds and sample.
    @raise JobFailed: if that is impossible.
    """
    with _session(selection, progress) as session:
        from .jobs import aggregateStream

        aggregateStream(session, selection.recording, out)


@contextmanager
def _session(selection: Selection, progress: Progress) -> Iterator[SparkSession]:
    try:
        checkPackages("SPARK_REMOTE" in os.environ)
    except SparkMissing as error:
        raise JobFailed(str(error)) from error
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _check(selection)
    try:
        isOurs = SparkSession.getActiveSession() is None
        if isOurs:
            progress.tell("starting Spark")
        # A session that there is stays as it is.
        session = openSession("admission", sessionSettings(os.environ, progress) if isOurs else None)
        try:
            yield session
        finally:
            if isOurs:
                session.stop()
    except (SparkMissing, JavaMissing, RecordingError, OutputError, PolicyError, TraceError) as error:
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
    except (ValueError, RecordingError) as error:
        raise JobFailed(str(error)) from error


def lastWords(message: str) -> str:
    """
    What was the matter: the last line of a message with a trace of Python's
    stack, else the first.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return "it does not say why"
    return lines[-1] if any(line.startswith("Traceback ") for line in lines) else lines[0]
