"""What consumers say of themselves when they join."""

from __future__ import annotations

import struct


def subscription(*topicNames: str) -> bytes:
    """The metadata of a consumer that reads some topics."""
    names = [name.encode() for name in topicNames]
    encoded = b"".join(struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">hi", 1, len(names)) + encoded + struct.pack(">i", -1) + b"owned partitions"
