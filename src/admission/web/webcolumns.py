# -*- test-case-name: tests.unit.web.test_site -*-
"""
What is recorded of an HTTP request, in addition to what every server records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from ..recording.events import UNKNOWN, RequestEvent
from ..recording.schema import Column, ColumnType


@define(eq=False)
class WebRequestEvent(RequestEvent):
    """
    A request of a site; its C{kind} says what it is for.

    @ivar method: its method, or C{"other"}.
    @ivar status: of its answer; L{UNKNOWN} if its client left before.
    """

    method: str | None = None
    status: int = UNKNOWN


WEB_COLUMNS: Mapping[str, Sequence[Column]] = {
    "traits": (
        Column("method", ColumnType.TEXT, "method", "H"),
        Column("status", ColumnType.IDENTITY, "status", "h"),
    ),
}
"""
By the column of the requests table that they follow.
"""
