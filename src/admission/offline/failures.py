# -*- test-case-name: tests.spark.test_jobs -*-
"""
The reasons why an offline job cannot be done, each with a sentence for the operator.
"""

from __future__ import annotations


class JobFailed(Exception):
    """
    A job could not be done.
    """


class ReportError(Exception):
    """
    The report cannot be made.
    """


class RecordingError(Exception):
    """
    A recording cannot be read as requested.
    """


class OutputError(Exception):
    """
    Results cannot be written.
    """


class TraceError(ValueError):
    """
    A recording cannot be replayed.
    """


class SparkMissing(Exception):
    """
    The packages for Spark are not installed.
    """


class WorkersLack(Exception):
    """
    A module is not installed where Spark's workers run.
    """


class ServerMissing(Exception):
    """
    Nobody listens where Spark's master, or its server of Spark Connect, should be.
    """


class JavaMissing(Exception):
    """
    There is no Java for Spark.
    """
