# -*- test-case-name: tests.unit.recording.test_events -*-
"""
How events become records of a fixed width, and records become rows.

A record fills one slot of L{SLOT_BYTES}.  Its fields end at the end of the slot; the last byte is the number of its
table, and is written last: where it is zero there is no record, however far writing had come when the process ended. At
the beginning of the slot are lists, each a byte with the number of values and then the values.  Text is recorded as a
code; the meaning of a code is a record of its own, once for each segment.

A layout says where the fields are.  Segments contain theirs, so that segments of older versions can be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from struct import Struct, calcsize
from typing import Any
from zlib import crc32

from attrs import frozen

from ..names import boundedName
from .schema import OVERFLOW, ColumnType, Table

SLOT_BYTES = 256
"""
Divides a page, so that no record is ever half on the disk.  No version has smaller ones: what reading costs goes by the
number of slots, and not by the size of a file.
"""

TEXT_NUMBER = 255
"""The table number of records that define a code."""

LONGEST_TEXT_BYTES = 240

NO_TEXT_CODE = 0
OVERFLOW_CODE = 1
FIRST_CODE = 2

_TEXT_END = Struct("<HBB")
_TEXT_END_OFFSET = SLOT_BYTES - _TEXT_END.size

_NOT_KNOWN = {
    ColumnType.TEXT: str(NO_TEXT_CODE),
    ColumnType.FOREIGN_TEXT: str(NO_TEXT_CODE),
    ColumnType.SECONDS: "float('nan')",
    ColumnType.NUMBER: "float('nan')",
}
"""The source of unknown values by column type; all others are -1."""

# Beyond that, microseconds do not fit into 64 bits.
_MAX_SECONDS = 9e12

Pack = Callable[[Any, int, Mapping[str | None, int], Mapping[str | None, int], Any], None]
"""
Writes an event into a slot: given a buffer, the slot's offset, the codes of our texts, the codes of the clients' texts,
and the event.
"""


@frozen
class Field:
    """
    The place of a column in a record.

    @ivar name: of the column, like C{type}, C{code} and C{capacity}.
    @ivar offset: in the slot, in bytes.
    """

    name: str
    type: ColumnType
    code: str
    capacity: int
    offset: int


@frozen
class Layout:
    """
    The places of a table's columns in its records.

    @ivar name: of the table, like C{number}.
    """

    name: str
    number: int
    fields: Sequence[Field]

    @classmethod
    def of(cls, table: Table) -> Layout:
        """
        The current layout of C{table}'s records.

        @raise ValueError: if they do not fit into a slot.
        """
        lists = [column for column in table.recorded if column.type.isList]
        plain = [column for column in table.recorded if not column.type.isList]
        fields: list[Field] = []
        begin = 0
        for column in lists:
            fields.append(Field(column.name, column.type, column.code, column.capacity, begin))
            begin += 1 + column.capacity * calcsize("<" + column.code)
        end = SLOT_BYTES - 1
        for column in reversed(plain):
            end -= calcsize("<" + column.code)
            fields.append(Field(column.name, column.type, column.code, column.capacity, end))
        if end < begin:
            raise ValueError(f"a record of {table.name} takes {begin - end} bytes more than a slot has")
        return cls(table.name, table.number, fields)

    @classmethod
    def fromJson(cls, described: Mapping[str, Any]) -> Layout:
        """
        Read the result of L{toJson}, of this version or another.  Unknown types are left out.
        """
        known = {each.value for each in ColumnType}
        fields = [
            Field(name, ColumnType(type), code, capacity, offset)
            for name, type, code, capacity, offset in described["fields"]
            if type in known
        ]
        return cls(described["name"], described["number"], fields)

    def toJson(self) -> Mapping[str, Any]:
        fields = [[each.name, each.type.value, each.code, each.capacity, each.offset] for each in self.fields]
        return {"name": self.name, "number": self.number, "fields": fields}

    def reader(self, texts: Mapping[int, str]) -> Callable[[Any, int], dict[str, Any]]:
        """
        Make a function that reads records.

        @param texts: the texts by code; a missing one is read as L{OVERFLOW <admission.recording.schema.OVERFLOW>}.
        @return: given a buffer and the offset of a slot, it returns the values by column, as L{ColumnType} describes
            them.
        """
        codes, end = "<", 0
        conversions: list[tuple[str, Callable[..., Any], slice | int]] = []
        index = 0
        for each in sorted(self.fields, key=lambda each: each.offset):
            count = f"B{each.capacity}" if each.type.isList else ""
            codes += f"{each.offset - end}x{count}{each.code}"
            end = calcsize(codes)
            following = index + (1 + each.capacity if each.type.isList else 1)
            place = slice(index, following) if each.type.isList else index
            conversions.append((each.name, _conversion(each.type, texts), place))
            index = following
        structure = Struct(codes)

        def read(buffer: Any, offset: int) -> dict[str, Any]:
            values = structure.unpack_from(buffer, offset)
            return {name: convert(values[place]) for name, convert, place in conversions}

        return read


class TextCodes(dict[str | None, int]):
    """
    The codes of texts, for a bounded number of bounded texts: C{codes[text]} makes a code for a new one.

    @ivar overflows: how often a text got no code of its own.
    """

    def __init__(self, room: int, define: Callable[[str], int]) -> None:
        """
        @param room: the maximum number of texts.
        @param define: records a text, and returns its code.
        """
        super().__init__({None: NO_TEXT_CODE})
        self._room = room
        self._define = define
        self.overflows = 0

    def __missing__(self, text: str) -> int:
        name = boundedName(text)
        if name != text:
            # A name that is long is not kept, however often it comes.
            return self[name]
        if self._room <= 0:
            self.overflows += 1
            return OVERFLOW_CODE
        self._room -= 1
        code = self[text] = self._define(text)
        return code


def packer(table: Table, eventType: type[Any]) -> Pack:
    """
    Make the function that records events of one class in a table.  Columns that the class does not have, because other
    drivers have added them, are recorded as unknown.

    It is generated as source, as attrs does it: looking up each attribute by its name takes half as long again, and
    this runs for every request.
    """
    lists = [column for column in table.recorded if column.type.isList and hasattr(eventType, column.attribute)]
    plain = [column for column in table.recorded if not column.type.isList]
    offsets = {each.name: each.offset for each in Layout.of(table).fields}
    structure = Struct("<" + "".join(column.code for column in plain) + "B")
    codesOf = {ColumnType.TEXT: "own[event.{}]", ColumnType.FOREIGN_TEXT: "foreign[event.{}]"}
    values = [
        codesOf.get(column.type, "event.{}").format(column.attribute)
        if hasattr(eventType, column.attribute)
        else _NOT_KNOWN.get(column.type, "-1")
        for column in plain
    ]
    names: dict[str, Any] = {"packFields": structure.pack_into}
    lines = ["def pack(buffer, offset, own, foreign, event):"]
    for column in lists:
        names[f"pack_{column.name}"] = _listPacker(column.code, column.capacity)
        lines.append(f"    if event.{column.attribute}:")
        lines.append(f"        pack_{column.name}(buffer, offset + {offsets[column.name]}, event.{column.attribute})")
    lines.append(f"    packFields(buffer, offset + {SLOT_BYTES - structure.size}, {', '.join(values)}, {table.number})")
    exec("\n".join(lines), names)
    pack: Pack = names["pack"]
    return pack


def packText(buffer: Any, offset: int, code: int, text: str) -> None:
    """
    Record the text of C{code}, in the slot at C{offset}.  The end of a text that is too long is replaced, so that it
    still differs from others.
    """
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) > LONGEST_TEXT_BYTES:
        mark = f"...{crc32(raw):08x}".encode("ascii")
        raw = raw[: LONGEST_TEXT_BYTES - len(mark)].decode("utf-8", "ignore").encode("utf-8") + mark
    buffer[offset : offset + len(raw)] = raw
    _TEXT_END.pack_into(buffer, offset + _TEXT_END_OFFSET, code, len(raw), TEXT_NUMBER)


def unpackText(buffer: Any, offset: int, slotBytes: int) -> tuple[int, str]:
    """
    Read a record of L{packText}.

    @return: a code, and its text.
    """
    code, length, _ = _TEXT_END.unpack_from(buffer, offset + slotBytes - _TEXT_END.size)
    return code, bytes(buffer[offset : offset + length]).decode("utf-8", "replace")


def microseconds(seconds: float) -> int | None:
    """
    Seconds as whole microseconds, or L{None} for NaN.
    """
    return round(seconds * 1e6) if abs(seconds) < _MAX_SECONDS else None


def _listPacker(code: str, capacity: int) -> Callable[[Any, int, Sequence[float]], None]:
    structures = [Struct(f"<B{count}{code}") for count in range(capacity + 1)]

    def pack(buffer: Any, offset: int, values: Sequence[float]) -> None:
        kept = values[:capacity]
        structures[len(kept)].pack_into(buffer, offset, len(kept), *kept)

    return pack


def _conversion(type: ColumnType, texts: Mapping[int, str]) -> Callable[..., Any]:
    conversions: dict[ColumnType, Callable[..., Any]] = {
        ColumnType.SECONDS: microseconds,
        ColumnType.NUMBER: lambda value: None if math.isnan(value) else value,
        ColumnType.IDENTITY: lambda value: None if value == -1 else value,
        ColumnType.FLAG: lambda value: None if value < 0 else bool(value),
        ColumnType.INTEGERS: lambda values: list(values[1 : 1 + values[0]]),
        ColumnType.DURATIONS: lambda values: list(map(microseconds, values[1 : 1 + values[0]])),
    }
    if type.isText:
        return lambda code: None if code == NO_TEXT_CODE else texts.get(code, OVERFLOW)
    return conversions.get(type, lambda value: value)
