# -*- test-case-name: tests.unit.kafka.broker.log.test_retentionlimits -*-
"""
How much of a partition is kept, and in what pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from .interface import InvalidTopicConfig

RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS: Final = "retention.ms"
SEGMENT_BYTES: Final = "segment.bytes"
SEGMENT_MS: Final = "segment.ms"

_PIECES: Final = 4
_MIN_PIECE_BYTES: Final = 1 << 20
_MIN_PIECE_MS: Final = 1000


@frozen
class RetentionLimits:
    """
    The limits of a partition.

    @ivar maxBytes: the oldest segment is removed if at least this much remains
        without it; L{None} for no limit.
    @ivar maxAgeMs: segments are removed, oldest first, while their largest timestamp
        is older; L{None} for any age.  A segment without timestamps has no age.
    @ivar maxSegmentBytes: how large a segment may become, unless its first commit is
        larger.
    @ivar maxSegmentMs: for how long a segment is appended to; L{None} for any time.
    """

    maxBytes: int | None
    maxAgeMs: int | None
    maxSegmentBytes: int
    maxSegmentMs: int | None

    def overriddenBy(self, configs: Mapping[str, str]) -> RetentionLimits:
        """
        The limits of a topic with settings of its own; -1 in a setting means no limit.

        @raise InvalidTopicConfig: if a setting is not such a number.
        """
        if not configs:
            return self
        segmentBytes = _limit(configs, SEGMENT_BYTES, self.maxSegmentBytes)
        return RetentionLimits(
            _limit(configs, RETENTION_BYTES, self.maxBytes),
            _limit(configs, RETENTION_MS, self.maxAgeMs),
            self.maxSegmentBytes if segmentBytes is None else segmentBytes,
            _limit(configs, SEGMENT_MS, self.maxSegmentMs),
        )

    @property
    def segmentBytes(self) -> int:
        """
        The size at which a segment is full.  Only whole segments are removed, so they are smaller where little is
        kept: a partition never has much more than a quarter beyond its C{maxBytes}.
        """
        if self.maxBytes is None:
            return self.maxSegmentBytes
        return min(self.maxSegmentBytes, max(self.maxBytes // _PIECES, _MIN_PIECE_BYTES))

    @property
    def segmentMs(self) -> int | None:
        """
        The age at which a segment is full, for the same reason a quarter of C{maxAgeMs} at most; but a second at least,
        or each commit would have a file of its own.
        """
        pieceMs = self.maxSegmentMs
        if self.maxAgeMs is not None:
            shareMs = self.maxAgeMs // _PIECES
            pieceMs = shareMs if pieceMs is None else min(pieceMs, shareMs)
        return None if pieceMs is None else max(pieceMs, _MIN_PIECE_MS)


NO_LIMITS: Final = RetentionLimits(None, None, 1 << 30, None)


def _limit(configs: Mapping[str, str], key: str, default: int | None) -> int | None:
    text = configs.get(key)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -2
    if value < -1:
        raise InvalidTopicConfig(f"{key} must be a number, or -1 for no limit, not {text!r}")
    return None if value == -1 else value
