# -*- test-case-name: tests.unit.recording.test_tables -*-
"""
The recorded tables: the columns of every server, and the columns that installed drivers of a protocol add.

A driver with further columns makes a subclass of L{RequestEvent <admission.recording.events.RequestEvent>} and names
its columns in the entry-point group C{admission.recorded_columns}: a mapping of columns as L{Table.extended
<admission.recording.schema.Table.extended>} takes it.  Ours are known without, since Spark's workers may have this
code from a zip, which has no entry points.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points

from . import schema
from .recordlayout import Layout
from .schema import CONNECTIONS, LIMITS, SENSORS, Table

ENTRY_POINT_GROUP = "admission.recorded_columns"

OURS = (EntryPoint("kafka", "admission.kafka.serving.recordedcolumns:KAFKA_COLUMNS", ENTRY_POINT_GROUP),)


def extendedBy(table: Table, entries: Iterable[EntryPoint]) -> Table:
    """
    C{table} with the columns of drivers.  Columns that cannot be imported, or that do not fit into a record, are left
    out, with a warning; of two columns of one name, the later one.
    """
    for entry in entries:
        try:
            extended = table.extended(entry.load())
            Layout.of(extended)
        except Exception as error:
            # A warning, not a log message: Spark's workers import this module without Twisted.
            warnings.warn(f"the columns that {entry.name} ({entry.value}) records are left out: {error}", stacklevel=2)
        else:
            table = extended
    return table


REQUESTS = extendedBy(
    schema.REQUESTS, (*OURS, *sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name))
)
"""One record for each request of any server; columns that its driver lacks are null, or -1."""

TABLES: Sequence[Table] = (REQUESTS, CONNECTIONS, LIMITS, SENSORS)
