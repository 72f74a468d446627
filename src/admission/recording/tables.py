# -*- test-case-name: tests.unit.recording.test_events -*-
"""
The tables that are recorded: what every server records, and what the drivers
that there are have to add.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..kafka.recordedcolumns import KAFKA_COLUMNS
from . import schema
from .schema import CONNECTIONS, LIMITS, SENSORS, Table

REQUESTS = schema.REQUESTS.extended(KAFKA_COLUMNS)
"""One record for each request of any server; what is not known of one is null, or -1."""

TABLES: Sequence[Table] = (REQUESTS, CONNECTIONS, LIMITS, SENSORS)
