# -*- test-case-name: tests.spark.test_jobs -*-
"""
The reasons why an offline job cannot be done, each with a sentence for the operator.
"""

from __future__ import annotations


class JobFailed(Exception):
    """
    A job could not be done, for one of the reasons below or another.
    """


class ReportError(JobFailed):
    """
    The report cannot be made.
    """


class RecordingError(JobFailed):
    """
    A recording cannot be read as requested.
    """


class OutputError(JobFailed):
    """
    Results cannot be written.
    """


class TraceError(JobFailed):
    """
    A recording cannot be replayed.
    """


class SparkMissing(JobFailed):
    """
    The packages for Spark are not installed.
    """


class WorkersLack(JobFailed):
    """
    A module is not installed where Spark's workers run.
    """


class ServerMissing(JobFailed):
    """
    Nobody listens where Spark's master, or its server of Spark Connect, should be.
    """


class JavaMissing(JobFailed):
    """
    There is no Java for Spark.
    """
