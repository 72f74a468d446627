# -*- test-case-name: tests.offline.test_jobs -*-
"""
Why an offline job cannot be done, each in words for the operator.
"""

from __future__ import annotations


class JobFailed(Exception):
    """
    A job could not be done.
    """


class ReportError(Exception):
    """
    There can be no report.
    """


class RecordingError(Exception):
    """
    A recording cannot be read as it was asked for.
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


class JavaMissing(Exception):
    """
    There is no Java that Spark could run on.
    """
