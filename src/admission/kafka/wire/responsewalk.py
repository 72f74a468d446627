# -*- test-case-name: tests.unit.kafka.wire.test_responsewalk -*-
"""
Where the fields are that a gateway replaces in a response.

A walk is a generator function made from kio's classes, as those of
L{admission.kafka.wire.guard} are, and like them it creates nothing.  It is sent the
body in chunks of any size, and keeps no byte of them: lengths are read byte by byte,
and everything else is skipped by its length.  So the same walk serves for a response
that was received whole, for the beginning of one, and for one that is passed on as it
is received.

Tagged fields that kio does not know are skipped.  A count cannot be trusted, but each
round of a loop reads a byte or more, so the end of the body stops a lie.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import Field, fields
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from attrs import frozen
from kio.index import load_response_schema
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
from .primitives import MAX_TAGS, MalformedResponse
from .relayedapis import RELAYED_BY_KEY

#: The L{Span.name} of the number of a tagged field that is found.
TAG_NUMBER: Final = "tag number"

MAX_ADDRESSES: Final = 10_000
"""
How many addresses of nodes, three spans each, a response may have that is looked through whole; they take a tenth of a
second, and half a kilobyte each while they are known.  The shortest address has 11 bytes.
"""

_SLICE_BYTES: Final = 64 << 10
"""How much is walked through before the fields that were found are counted."""

_VARINT_SHIFTS: Final = range(0, 35, 7)


class Span(NamedTuple):
    """
    Where a field is; positions count from the beginning of the body, and may lie beyond what was received.

    @ivar name: kio's name of the field, or L{TAG_NUMBER}.
    @ivar lengthAt: where its length is, which ends at C{begin}; the same as C{begin} if it has none.
    @ivar begin: where its value begins.
    @ivar end: where its value ends.
    """

    name: str
    lengthAt: int
    begin: int
    end: int


#: Takes the list to add spans to; is sent chunks, and returns the position behind the last field wanted, once all bytes
#: up to there were sent.
Walk: TypeAlias = Callable[[list[Span]], Generator[None, bytes, int]]

#: Where a walk is: the chunk it was sent, the size of all chunks before it, and an offset in it that may lie beyond its
#: end.
_Place: TypeAlias = tuple[bytes, int, int]


@cache
def walkFor(apiKey: int, apiVersion: int, wanted: tuple[str, ...]) -> Walk:
    """
    The walk through the body of a response up to the last field that is wanted.

    A field of fixed size is added to the spans before its bytes are needed, a varying one as soon as its length is
    known.  Of a tagged field that contains wanted ones first its number is added, then the field as a whole; what it
    contains is left to L{taggedWalkFor}.

    @param wanted: kio's names of the fields.
    @raise MalformedResponse: by the walk, if a length makes no sense.
    """
    return _compiled(apiKey, apiVersion, _message(load_response_schema(apiKey, apiVersion), wanted))


@cache
def taggedWalkFor(apiKey: int, apiVersion: int, wanted: tuple[str, ...]) -> Walk:
    """
    The same for the value of the tagged field of a response that contains wanted fields.
    """
    member = _taggedWith(load_response_schema(apiKey, apiVersion), wanted)
    assert member is not None
    return _compiled(apiKey, apiVersion, _varying(member, True, wanted))


def walked(walk: Walk, body: bytes, spans: list[Span]) -> int | None:
    """
    Walk through a body, or the beginning of one.

    @return: what the walk returns, or L{None} if it needs more bytes.
    @raise MalformedResponse: also if there are more than L{MAX_ADDRESSES}.
    """
    steps = walk(spans)
    next(steps)
    try:
        for begin in range(0, len(body), _SLICE_BYTES):
            steps.send(body[begin : begin + _SLICE_BYTES])
            if len(spans) > 3 * MAX_ADDRESSES:
                raise MalformedResponse(f"a response has more than {MAX_ADDRESSES} addresses")
    except StopIteration as over:
        end: int = over.value
        return end
    return None


def labelOf(apiKey: int, apiVersion: int) -> str:
    """
    What the messages of exceptions call a response.
    """
    return f"a response to {RELAYED_BY_KEY[apiKey].name} v{apiVersion}"


def endsEarly(apiKey: int, apiVersion: int) -> MalformedResponse:
    """
    The exception for a response that ends before a walk through it does.
    """
    return MalformedResponse(f"{labelOf(apiKey, apiVersion)} ends before its fields do")


@frozen
class _Reader:
    """
    What a walk does more rarely than to read one byte.
    """

    label: str

    def refuse(self, what: str) -> NoReturn:
        raise MalformedResponse(f"{self.label} {what}")

    def limitTags(self, count: int) -> None:
        if count > MAX_TAGS:
            self.refuse(f"has a count of {count} tagged fields where {MAX_TAGS} may be")

    def next(self, chunk: bytes, base: int, offset: int) -> Generator[None, bytes, _Place]:
        """
        Wait until there is a byte at C{offset}.
        """
        while offset >= len(chunk):
            base += len(chunk)
            offset -= len(chunk)
            chunk = yield
        return chunk, base, offset

    def varint(self, chunk: bytes, base: int, offset: int) -> Generator[None, bytes, tuple[int, *_Place]]:
        """
        Read an unsigned varint.
        """
        n = 0
        for shift in _VARINT_SHIFTS:
            chunk, base, offset = yield from self.next(chunk, base, offset)
            byte = chunk[offset]
            offset += 1
            n |= (byte & 0x7F) << shift
            if byte < 0x80:
                return n, chunk, base, offset
        self.refuse("has a varint of more than five bytes")

    def number(
        self, sizeBytes: int, chunk: bytes, base: int, offset: int
    ) -> Generator[None, bytes, tuple[int, *_Place]]:
        """
        Read a length of two or four bytes; null becomes zero.
        """
        encoded = bytearray()
        for _ in range(sizeBytes):
            chunk, base, offset = yield from self.next(chunk, base, offset)
            encoded.append(chunk[offset])
            offset += 1
        n = int.from_bytes(encoded, "big", signed=True)
        if n < -1:
            self.refuse(f"has a length of {n}")
        return max(n, 0), chunk, base, offset

    def tags(self, count: int, chunk: bytes, base: int, offset: int) -> Generator[None, bytes, _Place]:
        """
        Skip tagged fields.
        """
        self.limitTags(count)
        for _ in range(count):
            _, chunk, base, offset = yield from self.varint(chunk, base, offset)
            sizeBytes, chunk, base, offset = yield from self.varint(chunk, base, offset)
            offset += sizeBytes
        return chunk, base, offset


def _compiled(apiKey: int, apiVersion: int, lines: Iterator[str]) -> Walk:
    label = labelOf(apiKey, apiVersion)
    source = "\n".join(_walkSource(lines))
    namespace: dict[str, Any] = {"Span": Span, "reader": _Reader(label)}
    exec(compile(source, f"<walk through {label}>", "exec"), namespace)
    walk: Walk = namespace["walk"]
    return walk


def _walkSource(lines: Iterator[str]) -> Iterator[str]:
    yield "def walk(spans):"
    yield from indented(
        ["chunk = b''", "base = offset = 0"],
        lines,
        # The last byte has to be there, not one more.
        ["chunk, base, offset = yield from reader.next(chunk, base, offset - 1)", "return base + offset + 1"],
    )


def _message(entityType: type[Entity], wanted: Collection[str]) -> Iterator[str]:
    """
    Walk through the message itself.
    """
    members = untagged(entityType)
    tagged = _taggedWith(entityType, wanted)
    if tagged is None:
        while not _contains(members[-1], wanted):
            members.pop()
    yield from _members(members, entityType.__flexible__, wanted)
    if tagged is not None:
        yield from _wantedTag(tagged)


def _structure(entityType: type[Entity], wanted: Collection[str]) -> Iterator[str]:
    """
    Walk through a structure inside of a message.
    """
    yield from _members(untagged(entityType), entityType.__flexible__, wanted)
    if entityType.__flexible__:
        yield from _varint("n")
        yield "if n: chunk, base, offset = yield from reader.tags(n, chunk, base, offset)"


def _members(members: Iterable[Field[Any]], flexible: bool, wanted: Collection[str]) -> Iterator[str]:
    """
    Walk through neighbouring fields.  Those of fixed size make one step.
    """
    stepBytes = 0
    for member in members:
        sizeBytes = fixedSizeBytes(member)
        isWanted = member.name in wanted
        if stepBytes and (sizeBytes is None or isWanted):
            yield f"offset += {stepBytes}"
            stepBytes = 0
        if sizeBytes is None:
            yield from _varying(member, flexible, wanted)
        else:
            if isWanted:
                yield f"spans.append(Span({member.name!r}, base + offset, base + offset, base + offset + {sizeBytes}))"
            stepBytes += sizeBytes
    if stepBytes:
        yield f"offset += {stepBytes}"


def _varying(member: Field[Any], flexible: bool, wanted: Collection[str]) -> Iterator[str]:
    """
    Walk through one field of variable size.

    @raise TypeError: for a structure that may be null; no walk comes across one so far.
    """
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField):
        if introspect.is_optional(member):
            raise TypeError(f"{member.name} is a structure that may be null, which no walk knows")
        yield from _structure(kind.type_, wanted)
    elif isinstance(kind, introspect.PrimitiveField):
        if member.name in wanted:
            yield "lengthAt = base + offset"
        yield from _length(lengthSizeBytes(member, flexible))
        if member.name in wanted:
            yield f"spans.append(Span({member.name!r}, lengthAt, base + offset, base + offset + n))"
        yield "offset += n"
    else:
        yield from _length(COMPACT_LENGTH if flexible else ARRAY_LENGTH)
        elementBytes = _elementBytes(member, wanted)
        if elementBytes is None:
            yield "for _ in range(n):"
            yield from indented(_element(member, flexible, wanted))
        else:
            yield f"offset += {elementBytes} * n"


def _elementBytes(member: Field[Any], wanted: Collection[str]) -> int | None:
    """
    The size of an element of an array, if it is the same for all and nothing in it is wanted.
    """
    kind = introspect.classify_field(member)
    if not isinstance(kind, introspect.EntityTupleField):
        return primitiveSizeBytes(member)
    sizes = [fixedSizeBytes(nested) for nested in fields(kind.type_)]
    if kind.type_.__flexible__ or _contains(member, wanted) or None in sizes:
        return None
    return sum(filter(None, sizes))


def _element(member: Field[Any], flexible: bool, wanted: Collection[str]) -> Iterator[str]:
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityTupleField):
        yield from _structure(kind.type_, wanted)
    else:
        yield from _length(lengthSizeBytes(member, flexible))
        yield "offset += n"


def _length(sizeBytes: int) -> Iterator[str]:
    """
    Read a length or a count into C{n}; null becomes zero.
    """
    if sizeBytes == COMPACT_LENGTH:
        yield from _varint("n")
        yield "if n: n -= 1"
    else:
        yield f"n, chunk, base, offset = yield from reader.number({sizeBytes}, chunk, base, offset)"


def _varint(name: str) -> Iterator[str]:
    """
    Read an unsigned varint; nearly all have one byte.
    """
    yield "if offset >= len(chunk): chunk, base, offset = yield from reader.next(chunk, base, offset)"
    yield f"{name} = chunk[offset]"
    yield "offset += 1"
    yield f"if {name} > 127: {name}, chunk, base, offset = yield from reader.varint(chunk, base, offset - 1)"


def _wantedTag(member: Field[Any]) -> Iterator[str]:
    """
    Walk through the tagged fields that end a message, and find one of them.
    """
    tag = introspect.get_field_tag(member)
    yield from _varint("n")
    yield "reader.limitTags(n)"
    yield "for _ in range(n):"
    yield from indented(
        ["numberAt = base + offset"],
        _varint("tag"),
        [
            f"if tag == {tag}:",
            "    if base + offset != numberAt + 1: reader.refuse('has a tag number of more bytes than it takes')",
            f"    spans.append(Span({TAG_NUMBER!r}, numberAt, numberAt, numberAt + 1))",
            "lengthAt = base + offset",
        ],
        _varint("n"),
        [
            f"if tag == {tag}: spans.append(Span({member.name!r}, lengthAt, base + offset, base + offset + n))",
            "offset += n",
        ],
    )


def _taggedWith(entityType: type[Entity], wanted: Collection[str]) -> Field[Any] | None:
    """
    The tagged field of a message that contains wanted fields.
    """
    for member in fields(entityType):
        if introspect.get_field_tag(member) is not None and _contains(member, wanted):
            return member
    return None


def _contains(member: Field[Any], wanted: Collection[str]) -> bool:
    """
    Whether a field is wanted, or contains one that is.
    """
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField | introspect.EntityTupleField):
        return any(_contains(nested, wanted) for nested in fields(kind.type_))
    return member.name in wanted
