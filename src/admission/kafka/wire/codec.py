"""
Every message but Produce and the Fetch response: requests through the guard
and kio, responses from one dictionary for all versions.
"""

import datetime
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from attrs import frozen
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import _introspect as introspect, entity_reader, entity_writer
from kio.serial.readers import tz_aware_from_i64
from kio.static.primitive import i64
from kio.static.protocol import Entity

from .guard import countElements
from .primitives import Buffer, MalformedRequest
from .versions import API_VERSIONS, Api, served

#: Parts from this size on are left alone; smaller neighbours are joined.
_LARGE_PART_BYTES: Final = 4096

#: How many small parts are kept before they are joined, and arrays with how many elements are built at once.
_SMALL_PARTS: Final = 512
_SMALL_ARRAYS: Final = 16

_THROTTLE_TIME: Final = struct.Struct(">i")

_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def decodeRequest(api: Api, apiVersion: int, body: Buffer) -> tuple[Any, int]:
    """
    Decode the body of a request.

    @param api: the API; one that is served in C{apiVersion}.
    @param apiVersion: the version in the request's header.
    @param body: the bytes after the header.  Nothing in the result
        refers to it.
    @return: kio's entity for this version, whose durations are C{timedelta},
        and its number of array elements.
    @raise MalformedRequest: if the guard or kio refuse it.
    """
    elementCount = countElements(api, apiVersion, body)
    return decodeCounted(api, apiVersion, body), elementCount


def decodeCounted(api: Api, apiVersion: int, body: Buffer) -> Any:
    """
    L{decodeRequest} for a body whose elements L{countElements} has counted.
    """
    read = _readerFor(api.apiKey, apiVersion)
    try:
        # kio does not accept writable buffers.
        entity, _ = read(memoryview(body).toreadonly(), 0)
    except Exception as refusal:
        # kio reports bad values by half a dozen unrelated exceptions.
        raise MalformedRequest(f"{api.name} v{apiVersion} has a field that makes no sense: {refusal}") from refusal
    return entity


@cache
def _readerFor(apiKey: int, apiVersion: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    return entity_reader(load_request_schema(apiKey, apiVersion))


def encodeResponse(apiKey: int, apiVersion: int, response: Mapping[str, Any]) -> list[bytes]:
    """
    Encode the body of a response.

    A handler gives the same dictionary for all versions: its keys are the
    names of Kafka's schema in snake case, of all versions together
    (C{"throttle_time_ms"}, C{"error_code"}).  Fields that a version lacks are left
    out; missing keys get the schema's default or else zero, empty or null.
    Arrays are sequences, structures are dictionaries of the same kind, times
    are integer milliseconds, error codes integers, topic ids C{UUID}s.

    ApiVersions in a version that is not served is answered in version 0 with
    C{UNSUPPORTED_VERSION}, so that the client can choose again (KIP-511).

    @return: parts to be written one after another, small ones joined already.
    @raise struct.error: if a number does not fit its field.
    """
    if apiKey == API_VERSIONS and served(apiKey, apiVersion) is None:
        apiVersion, response = 0, {**response, "error_code": ErrorCode.unsupported_version}
    return encodeEntity(_responseType(apiKey, apiVersion), response)


@cache
def _responseType(apiKey: int, apiVersion: int) -> type[Entity]:
    return load_response_schema(apiKey, apiVersion)


T = TypeVar("T")


class Rows(Sequence[Any], Generic[T]):
    """
    An array of a response, each element of which is described only when it is encoded: a small request may
    ask for a large answer, and so the answer is never there as dictionaries.
    """

    __slots__ = ("_describe", "_things")

    def __init__(self, things: Sequence[T], describe: Callable[[T], Mapping[str, Any]]) -> None:
        """
        @param describe: makes the structure for one of C{things}; may be called more than once for the same.
        """
        self._things = things
        self._describe = describe

    def __len__(self) -> int:
        return len(self._things)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._describe(thing) for thing in self._things[index]]
        return self._describe(self._things[index])


def isSmallResponse(apiKey: int, apiVersion: int, response: Mapping[str, Any]) -> bool:
    """
    Whether L{encodeResponse} encodes it in no time.
    """
    return _planFor(_responseType(apiKey, apiVersion)).isSmall(response)


def encodeInSteps(apiKey: int, apiVersion: int, response: Mapping[str, Any]) -> Generator[int, None, list[bytes]]:
    """
    Do what L{encodeResponse} does, in steps of less than a millisecond.

    @return: yields the size of what is encoded so far, in bytes, and returns the parts.
    """
    output = _Output()
    for _ in _writeInSteps(_responseType(apiKey, apiVersion), response, output):
        yield output.sizeBytes
    return output.parts()


def withThrottleTime(apiKey: int, apiVersion: int, parts: list[bytes], throttleTimeMs: int) -> list[bytes] | None:
    """
    Put a throttle time into a response that was encoded without one.

    @return: L{None} if it has no throttle time at a place that is known.
    """
    position = _throttleTimePosition(_responseType(apiKey, apiVersion))
    if position is None:
        return None
    first = bytearray(parts[0])
    _THROTTLE_TIME.pack_into(first, position, throttleTimeMs)
    return [bytes(first), *parts[1:]]


@cache
def _throttleTimePosition(entityType: type[Entity]) -> int | None:
    position = 0
    for member in fields(entityType):
        if member.name == "throttle_time":
            return position
        isPrimitive = isinstance(introspect.classify_field(member), introspect.PrimitiveField)
        if not isPrimitive or introspect.get_schema_field_type(member) != "error_code":
            return None
        position += 2
    return None


class _Output:
    """
    What has been encoded, small parts joined from time to time.
    """

    def __init__(self) -> None:
        self.sizeBytes = 0
        self._joined: list[bytes] = []
        self._small = _Parts()

    def add(self, parts: list[bytes]) -> None:
        self.sizeBytes += sum(map(len, parts))
        self._small += parts
        if len(self._small) >= _SMALL_PARTS:
            self._joined += self._small.joined()
            self._small = _Parts()

    def parts(self) -> list[bytes]:
        return [*self._joined, *self._small.joined()]


class _Later:
    """
    An array that tells kio's writer its length only, and notes where its elements belong.
    """

    def __init__(self, values: Sequence[Any], elementType: type[Entity], written: "_Parts") -> None:
        self.values = values
        self.elementType = elementType
        self.position = 0
        self._written = written

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        self.position = len(self._written)
        return iter(())


def _writeInSteps(entityType: type[Entity], values: Mapping[str, Any], output: _Output) -> Generator[None, None, None]:
    plan, write = _writerFor(entityType)
    written = _Parts()
    if plan.isSmall(values):
        write(written, plan.build(values))
        output.add(written)
        yield
        return
    arrays: list[_Later] = []

    def later(elements: Sequence[Any], nested: _Plan) -> Any:
        array = _Later(elements, nested.entityType, written)
        arrays.append(array)
        return array

    write(written, plan.build(values, later))
    position = 0
    for array in sorted(arrays, key=attrgetter("position")):
        output.add(written[position : array.position])
        position = array.position
        for element in array.values:
            yield from _writeInSteps(array.elementType, element, output)
    output.add(written[position:])
    yield


def encodeEntity(entityType: type[Entity], values: Mapping[str, Any]) -> list[bytes]:
    """
    Encode any of kio's entities from a dictionary as L{encodeResponse} takes it.

    @return: parts to be written one after another, small ones joined already.
    @raise struct.error: if a number does not fit its field.
    """
    plan, write = _writerFor(entityType)
    parts = _Parts()
    write(parts, plan.build(values))
    return parts.joined()


@cache
def _writerFor(entityType: type[Entity]) -> "tuple[_Plan, Callable[[Any, Any], None]]":
    return _planFor(entityType), entity_writer(entityType)


class _Parts(list[bytes]):
    """
    The output of kio's writers, which only call C{write}.
    """

    __slots__ = ()

    write = list.append

    def joined(self) -> list[bytes]:
        """
        The same bytes in fewer parts.
        """
        if max(map(len, self), default=0) < _LARGE_PART_BYTES:
            return [b"".join(self)]
        # A large part comes alone, behind its length, and joining one part does not copy it.
        return [b"".join(run) for _, run in groupby(self, lambda part: len(part) >= _LARGE_PART_BYTES)]


@frozen
class _Member:
    """
    How one field of one version is filled.

    @ivar key: the handlers' name for it.
    @ivar name: kio's name for it.
    @ivar convert: converts a handler's value to kio's type, if they differ.
    @ivar nested: the plan of the structure or structures in it, if any.
    @ivar isArray: whether it is an array of structures, and no tagged field.
    """

    key: str
    name: str
    convert: Callable[[Any], Any] | None
    nested: "_Plan | None"
    isArray: bool = False


@frozen
class _Plan:
    """
    How a structure of one version is filled from a handler's dictionary.

    @ivar entityType: kio's class.
    @ivar defaults: for the fields that have no default in kio.
    @ivar members: all its fields.
    """

    entityType: type[Entity]
    defaults: dict[str, Any]
    members: tuple[_Member, ...]

    def isSmall(self, values: Mapping[str, Any]) -> bool:
        """
        Whether it is built in no time.
        """
        for member in self.members:
            if member.isArray and member.key in values:
                assert member.nested is not None
                count = len(values[member.key] or ())
                if count > _SMALL_ARRAYS or (count and any(each.isArray for each in member.nested.members)):
                    return False
        return True

    def build(self, values: Mapping[str, Any], later: "Callable[[Sequence[Any], _Plan], Any] | None" = None) -> Entity:
        """
        Create kio's entity.

        @param later: makes what stands for an array of structures that is not to be built.
        """
        arguments = self.defaults.copy()
        for member in self.members:
            if member.key in values:
                value = values[member.key]
                if later is not None and member.isArray and value is not None:
                    assert member.nested is not None
                    arguments[member.name] = later(value, member.nested)
                else:
                    arguments[member.name] = value if member.convert is None else member.convert(value)
        return self.entityType(**arguments)


@cache
def _planFor(entityType: type[Entity]) -> _Plan:
    members = tuple(_memberFor(member) for member in fields(entityType))
    defaults = {member.name: _implicitDefault(member) for member in fields(entityType) if member.default is MISSING}
    return _Plan(entityType, defaults, members)


def _memberFor(member: Field[Any]) -> _Member:
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField):
        plan = _planFor(kind.type_)
        build = _orNull(plan.build) if introspect.is_optional(member) else plan.build
        return _Member(member.name, member.name, build, plan)
    if isinstance(kind, introspect.EntityTupleField):
        plan = _planFor(kind.type_)
        isTagged = introspect.get_field_tag(member) is not None
        return _Member(
            member.name, member.name, _arrayOf(plan.build, introspect.is_optional(member)), plan, not isTagged
        )
    kafkaType = introspect.get_schema_field_type(member)
    convert = _CONVERSIONS.get(kafkaType)
    # kio drops the unit from the names of times, because it makes objects of them.
    key = f"{member.name}_ms" if kafkaType in _TIMES else member.name
    if isinstance(kind, introspect.PrimitiveTupleField):
        convert = _arrayOf(convert, introspect.is_optional(member))
    return _Member(key, member.name, convert, None)


def _orNull(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _arrayOf(convert: Callable[[Any], Any] | None, nullable: bool) -> Callable[[Any], Any]:
    def convertAll(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
        if values is None:
            # kio would write it.
            if not nullable:
                raise TypeError("an array is null that must not be")
            return None
        return tuple(values) if convert is None else tuple(map(convert, values))

    return convertAll


def _timestamp(timestampMs: int) -> datetime.datetime | None:
    return None if timestampMs < 0 else tz_aware_from_i64(i64(timestampMs))


_TIMES: Final = frozenset(("timedelta_i32", "timedelta_i64", "datetime_i64"))
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "error_code": ErrorCode,
    "timedelta_i32": _MILLISECOND.__mul__,
    "timedelta_i64": _MILLISECOND.__mul__,
    "datetime_i64": _timestamp,
}
_IMPLICIT_DEFAULTS: Final[Mapping[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": 0 * _MILLISECOND,
    "timedelta_i64": 0 * _MILLISECOND,
    "datetime_i64": _EPOCH,
}


def _implicitDefault(member: Field[Any]) -> Any:
    """
    The value of a field if neither the handler nor the schema give one.
    """
    if introspect.is_optional(member):
        return None
    kind = introspect.classify_field(member)
    if kind.is_array:
        return ()
    if isinstance(kind, introspect.EntityField):
        return _planFor(kind.type_).build({})
    return _IMPLICIT_DEFAULTS.get(introspect.get_schema_field_type(member), 0)
