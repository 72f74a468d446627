"""Messages that kio encodes, for seeds."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import _introspect as introspect
from kio.serial.readers import tz_aware_from_i64
from kio.static.primitive import i64

from admission.kafka.wire.codec import encodeEntity
from tests.kit.brokerfixture import build, encode

_FILLED: Final[Mapping[str, Any]] = {
    "bool": True,
    "string": "events",
    "bytes": b"\x00\x01\x02",
    "records": b"\x00\x01\x02",
    "float64": 1.5,
    "uuid": uuid.UUID(int=7),
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(milliseconds=500),
    "timedelta_i64": datetime.timedelta(milliseconds=500),
    "datetime_i64": tz_aware_from_i64(i64(1000)),
}


def emptyMessage(entityType: Any) -> bytes:
    """The bytes of an entity with nothing in it."""
    return b"".join(encodeEntity(entityType, {}))


def filledMessage(entityType: Any) -> bytes:
    """The bytes of an entity with two elements in each array, and something in each field."""
    return encode(_filledEntity(entityType))


def _filledEntity(entityType: Any) -> Any:
    return entityType(**{member.name: _filled(member) for member in fields(entityType)})


def _filled(member: Field[Any]) -> Any:
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField | introspect.EntityTupleField):
        value = _filledEntity(kind.type_)
    else:
        value = _FILLED.get(introspect.get_schema_field_type(member), 1)
    return (value, value) if kind.is_array else value


def requestHeader(entityType: Any, correlationId: int) -> bytes:
    """The header of a request, without a length."""
    values = {
        "request_api_key": entityType.__api_key__,
        "request_api_version": entityType.__version__,
        "correlation_id": correlationId,
        "client_id": "test",
    }
    return encode(build(entityType.__header_schema__, values))
