"""
C{admission data check}, on the same damaged logs as L{tests.fuzz.targets.logs}: it reports, or refuses with
L{LogFailed}, and changes nothing.  If it reports no loss, a start finds what the check has found.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from twisted.internet.defer import maybeDeferred
from twisted.logger import capturedLogs

from admission.kafka.broker.log.logcheck import LogReport, checkLog
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.storage.itable import LogFailed
from tests.kit.logfixture import TurnClock

from ..scratch import scratch
from . import logs

TOKENS = logs.TOKENS
MAX_BYTES = logs.MAX_BYTES
seeds = logs.seeds


def check(data: bytes) -> None:
    damaged = logs.damagedLog(data)
    if damaged is None:
        return
    root = os.path.join(scratch(), "checked")
    shutil.rmtree(root, ignore_errors=True)
    for path, contents in damaged.files.items():
        copy = os.path.join(root, os.path.relpath(path, logs.logRoot()))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with open(copy, "wb") as file:
            file.write(contents)
    before = _contents(root)
    with capturedLogs():
        try:
            report: LogReport | None = checkLog(root)
        except LogFailed:
            report = None
        assert _contents(root) == before
        if report is not None and not report.losses:
            _compare(root, report)


def _contents(root: str) -> Mapping[str, bytes]:
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[path] = file.read()
    return found


def _compare(root: str, report: LogReport) -> None:
    """Start with the log."""
    clock = TurnClock()
    log = SegmentLog(root, clock, lambda: 1e9, maybeDeferred, retentionSeconds=None)
    try:
        found = {
            f"{topic.name}-{partition.index}": partition.highWatermark
            for topic in log.topics.values()
            for partition in topic.partitions
        }
    finally:
        log.close()
        clock.advance(1.0)
    assert found == {each.name: each.nextOffset for each in report.partitions}
