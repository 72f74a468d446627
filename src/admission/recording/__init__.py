"""
A server's events: made of its requests, handed to an exporter, read back. Names that are not published here may move
without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .events import (
        ConnectionEvent as ConnectionEvent,
        LimitEvent as LimitEvent,
        Origin as Origin,
        RequestEvent as RequestEvent,
        SensorSample as SensorSample,
    )
    from .recorder import EventRecorder as EventRecorder
    from .schema import Column as Column, ColumnType as ColumnType
    from .segments import Segment as Segment, segmentPaths as segmentPaths
    from .tables import REQUESTS as REQUESTS, TABLES as TABLES

__all__, __getattr__, __dir__ = lazyNames(__name__)
