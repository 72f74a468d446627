# -*- test-case-name: tests.unit.kafka.wire.test_guard -*-
"""
What kio says about the layout of a message, for modules that generate code from it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from typing import Any, Final

# Private, and the reason why setup.cfg allows no other minor version of kio.
from kio.serial import _introspect as introspect
from kio.static.protocol import Entity

_FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_VARYING: Final = ("string", "bytes", "records")

# Lengths by how many bytes they take, a compact one at least.
COMPACT_LENGTH: Final = 1
STRING_LENGTH: Final = 2
ARRAY_LENGTH: Final = 4


def untagged(entityType: type[Entity]) -> list[Field[Any]]:
    """
    The fields that every message of this version has, in their order.
    """
    return [member for member in fields(entityType) if introspect.get_field_tag(member) is None]


def primitiveSizeBytes(member: Field[Any]) -> int | None:
    """
    The size of a primitive, as a field or an element; L{None} if it varies.

    @raise TypeError: if the type is not known here.
    """
    kafkaType = introspect.get_schema_field_type(member)
    if kafkaType in _VARYING:
        return None
    if kafkaType not in _FIXED_BYTES:
        raise TypeError(f"{member.name} is of type {kafkaType}, which is not known here")
    return _FIXED_BYTES[kafkaType]


def fixedSizeBytes(member: Field[Any]) -> int | None:
    """
    The size of a field if it is the same in every message.
    """
    isPrimitive = isinstance(introspect.classify_field(member), introspect.PrimitiveField)
    return primitiveSizeBytes(member) if isPrimitive else None


def lengthSizeBytes(member: Field[Any], flexible: bool) -> int:
    """
    How a field of variable size says its length: one of the constants above.
    """
    if flexible:
        return COMPACT_LENGTH
    return STRING_LENGTH if introspect.get_schema_field_type(member) == "string" else ARRAY_LENGTH


def indented(*blocks: Iterable[str]) -> Iterator[str]:
    """
    Lines of source, one level deeper.
    """
    return (f"    {line}" for block in blocks for line in block)
