"""
The checks that a request must pass before kio decodes it.

kio 0.6 allocates memory for the number of elements that an array announces,
before it looks at how many bytes are left.  A frame of 21 bytes that announces
2^35 elements makes it ask for 274 GB, and the process is aborted: no exception,
no C{finally}.  So every request is walked here first, in the same order, by a
function that is generated from kio's own classes and creates nothing.

The walk refuses

  - an array that announces more elements than there are bytes for them,
  - text, bytes or a tagged field that goes on past the end,
  - null where the protocol does not allow it,
  - varints of more than five bytes,
  - tagged fields that kio does not know.  The protocol would have them skipped
    (KIP-482), but kio raises L{KeyError}.  Known fields are walked, and must
    have the length that they announce,
  - more elements than the API allows (L{admission.kafka.wire.versions.Api}).

Bytes after the last field are accepted, as Kafka accepts them: librdkafka 2.16
writes a null array as four bytes in flexible versions, where one would do.

kio refuses, by an ordinary exception, values that are invalid by themselves:
text that is not UTF-8, a boolean of 7, a time that no C{timedelta} holds.

Lengths are not compared one by one with the bytes that are left.  An offset only
grows, so a length that goes too far shows when the next read fails, or at the
latest when the last offset lies past the end.  Counts are compared at once,
because a loop follows.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from functools import cache
from typing import Any, NoReturn, TypeAlias

from attrs import frozen
from kio.index import load_request_schema
from kio.serial import _introspect as introspect
from kio.static.protocol import Entity

from .layouts import (
    ARRAY_LENGTH,
    COMPACT_LENGTH,
    fixedSizeBytes,
    indented,
    lengthSizeBytes,
    primitiveSizeBytes,
    untagged,
)
from .primitives import PAST_THE_END, Buffer, MalformedRequest, readUnsignedVarint
from .versions import Api

#: Given a body and the most elements allowed, returns how many it has or raises.
Walk: TypeAlias = Callable[[Buffer, int], int]


class GuardRefusal(MalformedRequest):
    """
    Decoding this request would not be safe.
    """


def countElements(api: Api, apiVersion: int, body: Buffer, maxElements: int | None = None) -> int:
    """
    Walk the body of a request.

    @param api: the API; one that is served in C{apiVersion}.
    @param apiVersion: the version in the request's header.
    @param body: the bytes after the header.
    @param maxElements: how many elements to allow; by default the limit of C{api}.
    @return: how many array elements, at all depths together, decoding would
        create: the weight of a decoded request beyond its own bytes.
    @raise GuardRefusal: if anything in the list above is found.
    @raise MalformedRequest: if a varint has more than five bytes.
    """
    walk = _walkFor(api.apiKey, api.name, apiVersion)
    try:
        return walk(body, api.maxElements if maxElements is None else maxElements)
    except PAST_THE_END:
        raise GuardRefusal(f"{api.name} v{apiVersion} ends before its fields do") from None


def countElementsOf(entityType: type[Entity], label: str, body: Buffer, maxElements: int) -> int:
    """
    Walk another message that kio is to decode: a response, or data that clients
    exchange inside of messages.

    @param entityType: kio's class.
    @param label: its name in a refusal.
    @return: as L{countElements}, which also says what is raised.
    """
    try:
        return _walkOf(entityType, label)(body, maxElements)
    except PAST_THE_END:
        raise GuardRefusal(f"{label} ends before its fields do") from None


@cache
def _walkFor(apiKey: int, apiName: str, apiVersion: int) -> Walk:
    return _walkOf(load_request_schema(apiKey, apiVersion), f"{apiName} v{apiVersion}")


@cache
def _walkOf(entityType: type[Entity], label: str) -> Walk:
    source = "\n".join(walkSource(entityType))
    namespace: dict[str, Any] = {
        "int8": struct.Struct(">b").unpack_from,
        "int16": struct.Struct(">h").unpack_from,
        "int32": struct.Struct(">i").unpack_from,
        "varint": readUnsignedVarint,
        "refuse": _Refusals(label),
    }
    exec(compile(source, f"<guard of {label}>", "exec"), namespace)
    walk: Walk = namespace["walk"]
    return walk


@frozen
class _Refusals:
    """
    The functions that a generated walk calls to refuse a message.
    """

    label: str

    def length(self, fieldName: str, length: int) -> NoReturn:
        what = "is null" if length == -1 else f"has a length of {length}"
        raise GuardRefusal(f"{self.label}: {fieldName} {what}")

    def count(self, fieldName: str, count: int, leftBytes: int, maxElements: int) -> NoReturn:
        raise GuardRefusal(
            f"{self.label}: {fieldName} announces {count} elements with {leftBytes} bytes left"
            f" and {maxElements} elements allowed in all"
        )

    def tag(self, structure: str, tag: int) -> NoReturn:
        raise GuardRefusal(f"{self.label}: {structure} has a tagged field {tag}, which is not known")

    def tags(self, structure: str, count: int, known: int) -> NoReturn:
        raise GuardRefusal(f"{self.label}: {structure} has {count} tagged fields where {known} are known")

    def tagSize(self, structure: str, tag: int) -> NoReturn:
        raise GuardRefusal(f"{self.label}: tagged field {tag} of {structure} is not as long as it says")

    def end(self) -> NoReturn:
        raise GuardRefusal(f"{self.label} ends before its fields do")


def walkSource(entityType: type[Entity]) -> Iterator[str]:
    """
    The source of the function C{walk(buffer, maxElements)} for one message, by
    lines; read it when in doubt about what is checked.

    @raise TypeError: if the message has a field of an unknown type.
    """
    yield "def walk(buffer, maxElements):"
    yield from indented(
        ["end = len(buffer)", "offset = elements = 0"],
        _structure(entityType),
        ["if offset > end: refuse.end()", "return elements"],
    )


def _structure(entityType: type[Entity]) -> Iterator[str]:
    """
    Walk one structure.  Neighbouring fields of fixed size make one step.
    """
    stepBytes = 0
    for member in untagged(entityType):
        fixedBytes = fixedSizeBytes(member)
        if fixedBytes is not None:
            stepBytes += fixedBytes
            continue
        if stepBytes:
            yield f"offset += {stepBytes}"
            stepBytes = 0
        yield from _varying(member, entityType.__flexible__, introspect.is_optional(member))
    if stepBytes:
        yield f"offset += {stepBytes}"
    if entityType.__flexible__:
        yield from _taggedFields(entityType)


def _varying(member: Field[Any], flexible: bool, nullable: bool) -> Iterator[str]:
    """
    Walk one field of variable size.
    """
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField):
        if nullable:
            yield from _presence(member.name)
            yield "if n > 0:"
            yield from indented(_structure(kind.type_))
        else:
            yield from _structure(kind.type_)
    elif isinstance(kind, introspect.PrimitiveField):
        yield from _length(member.name, lengthSizeBytes(member, flexible), nullable)
        yield "offset += n"
    else:
        yield from _length(member.name, COMPACT_LENGTH if flexible else ARRAY_LENGTH, nullable)
        yield "elements += n"
        yield f"if n * {_minElementBytes(member, flexible)} > end - offset or elements > maxElements:"
        yield f"    refuse.count({member.name!r}, n, end - offset, maxElements)"
        yield "for _ in range(n):"
        yield from indented(_element(member, flexible))


def _element(member: Field[Any], flexible: bool) -> Iterator[str]:
    """
    Walk one element of an array.
    """
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityTupleField):
        yield from _structure(kind.type_)
    elif (elementBytes := primitiveSizeBytes(member)) is not None:
        yield f"offset += {elementBytes}"
    else:
        yield from _length(member.name, lengthSizeBytes(member, flexible), nullable=False)
        yield "offset += n"


def _length(fieldName: str, lengthBytes: int, nullable: bool) -> Iterator[str]:
    """
    Read a length or a count into C{n}; null becomes zero where it may be.
    """
    if lengthBytes == COMPACT_LENGTH:
        yield from _varint("n")
        yield "n -= 1"
    else:
        yield f"(n,) = int{8 * lengthBytes}(buffer, offset)"
        yield f"offset += {lengthBytes}"
    if nullable:
        yield "if n < 0:"
        yield f"    if n != -1: refuse.length({fieldName!r}, n)"
        yield "    n = 0"
    else:
        yield f"if n < 0: refuse.length({fieldName!r}, n)"


def _presence(fieldName: str) -> Iterator[str]:
    """
    Read into C{n} whether a structure that may be null follows (KIP-893).
    """
    yield "(n,) = int8(buffer, offset)"
    yield "offset += 1"
    yield f"if n not in (-1, 1): refuse.length({fieldName!r}, n)"


def _varint(name: str) -> Iterator[str]:
    """
    Read an unsigned varint; nearly all have one byte, which saves the call.
    """
    yield f"{name} = buffer[offset]"
    yield "offset += 1"
    yield f"if {name} > 127: {name}, offset = varint(buffer, offset - 1)"


def _taggedFields(entityType: type[Entity]) -> Iterator[str]:
    """
    Walk the tagged fields that end a structure.

    Each is there at most once, so that two bytes do not make one more round of the loop.
    """
    name = entityType.__name__
    known = [(introspect.get_field_tag(member), member) for member in fields(entityType)]
    yield from _varint("n")
    if all(tag is None for tag, _ in known):
        yield f"if n: refuse.tag({name!r}, varint(buffer, offset)[0])"
        return
    knownCount = sum(tag is not None for tag, _ in known)
    yield f"if n > {knownCount}: refuse.tags({name!r}, n, {knownCount})"
    tagName, endName = f"tagOf{name}", f"endOf{name}"
    yield "for _ in range(n):"
    yield from indented(_varint(tagName), _varint("n"), [f"{endName} = offset + n"])
    branch = "if"
    for tag, member in known:
        if tag is not None:
            yield f"    {branch} {tagName} == {tag}:"
            yield from indented(indented(_tagged(member)))
            branch = "elif"
    yield f"    else: refuse.tag({name!r}, {tagName})"
    yield f"    if offset != {endName}: refuse.tagSize({name!r}, {tagName})"


def _tagged(member: Field[Any]) -> Iterator[str]:
    """
    Walk the value of one tagged field, which may be absent but not null.
    """
    fixedBytes = fixedSizeBytes(member)
    if fixedBytes is None:
        yield from _varying(member, flexible=True, nullable=False)
    else:
        yield f"offset += {fixedBytes}"


def _minElementBytes(member: Field[Any], flexible: bool) -> int:
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityTupleField):
        return _minBytes(kind.type_)
    return primitiveSizeBytes(member) or lengthSizeBytes(member, flexible)


def _minBytes(entityType: type[Entity]) -> int:
    """
    The size of a structure in which everything is empty.
    """
    flexible = entityType.__flexible__
    sizeBytes = 1 if flexible else 0
    for member in untagged(entityType):
        kind = introspect.classify_field(member)
        if isinstance(kind, introspect.EntityField):
            sizeBytes += 1 if introspect.is_optional(member) else _minBytes(kind.type_)
        elif isinstance(kind, introspect.PrimitiveField):
            sizeBytes += fixedSizeBytes(member) or lengthSizeBytes(member, flexible)
        else:
            sizeBytes += COMPACT_LENGTH if flexible else ARRAY_LENGTH
    return sizeBytes
