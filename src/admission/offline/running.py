# -*- test-case-name: tests.spark.test_jobs -*-
"""
Runs a job for a command: checks the requirements, starts Spark, and reports an error in one sentence.
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
"""The environment variables of a configured Spark; the last one is from spark-submit."""

TASKS_OF_CORE = 4
"""The partitions per core of this machine, unless Spark is configured."""


@frozen
class Progress:
    """
    The progress of a running job.

    @ivar tell: takes a line.
    @ivar isShown: whether Spark should show its own progress, too.
    """

    tell: Callable[[str], None]
    isShown: bool


def sessionSettings(environment: Mapping[str, str], progress: Progress) -> dict[str, str]:
    """
    Spark properties for a job: few, if Spark is configured.

    @param environment: of this process.
    """
    settings = {"spark.ui.showConsoleProgress": str(progress.isShown).lower()}
    if isConfigured(environment):
        return settings
    return settings | {
        # Its pages have no login, and would show the names of clients to everybody who can reach this machine.
        "spark.ui.enabled": "false",
        # Only the workers on this machine and this process may talk to it.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Spark's 200 are for clusters: on one machine each of many small queries takes seconds longer.
        "spark.sql.shuffle.partitions": str(TASKS_OF_CORE * (os.cpu_count() or 1)),
    }


def isConfigured(environment: Mapping[str, str]) -> bool:
    """
    Whether Spark is configured, perhaps for a cluster.

    @param environment: of this process.
    """
    package = find_spec("pyspark")
    hasFiles = package is not None and package.origin is not None and Path(package.origin).with_name("conf").exists()
    return hasFiles or any(name in environment for name in _CONFIGURED)


def runJob(job: Callable[[Work], _Result], selection: Selection, out: str, progress: Progress) -> _Result:
    """
    Run a job on a recording.

    @param job: of L{admission.offline.jobs}.
    @param out: the directory of the results.
    @raise JobFailed: if it fails.
    """
    with _session(selection, progress) as session:
        from .jobs import Work

        return job(Work.begin(session, selection, out, progress.tell))


def runStream(selection: Selection, out: str, progress: Progress) -> None:
    """
    Run L{admission.offline.jobs.aggregateStream}.

    @param selection: without bounds and sample.
    @raise JobFailed: if it fails.
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
        # An existing session stays as it is.
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
    The cause in a message: the last line if it has a Python traceback, else the first.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return "it does not say why"
    return lines[-1] if any(line.startswith("Traceback ") for line in lines) else lines[0]
