"""The entities that tests feed to kio's encoder, of every message that is served."""

import dataclasses
import datetime
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings, strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import _introspect as introspect
from kio.serial.readers import tz_aware_from_i64
from kio.static.primitive import i64

from admission.kafka.wire import versions

#: The same few examples in every run: what is tested is a table, and no run may be luckier than another.  A failure is
#: shrunk but not explained, which takes minutes with entities of this size.
fewExamples = settings(
    max_examples=4,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

#: The same for what is one thing in one version.
manyExamples = settings(fewExamples, max_examples=100)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _durations(bits: int) -> st.SearchStrategy[datetime.timedelta]:
    # No timedelta holds all of 64 bits.
    return _integers(min(bits, 40)).map(lambda ms: datetime.timedelta(milliseconds=ms))


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    # The empty one and that of the tests' topic mean something.
    "string": st.sampled_from(("", "events")) | st.text(max_size=8) | st.text("x", min_size=126, max_size=129),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8) | st.just(bytes(300)),
    # kio reads the UUID of all zeros as None and writes None as all zeros.
    "uuid": st.none() | st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": _durations(32),
    "timedelta_i64": _durations(64),
    "datetime_i64": st.integers(0, 2**41).map(lambda ms: tz_aware_from_i64(i64(ms))),
}


@cache
def entities(entityType: Any) -> st.SearchStrategy[Any]:
    """Entities of one of kio's classes that come back from the wire as they were."""
    return st.builds(entityType, **{member.name: _values(member) for member in dataclasses.fields(entityType)})


def _values(member: "dataclasses.Field[Any]") -> st.SearchStrategy[Any]:
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField | introspect.EntityTupleField):
        values = entities(kind.type_)
    else:
        values = PRIMITIVES[introspect.get_schema_field_type(member)]
    if kind.is_array:
        values = st.lists(values, max_size=3).map(tuple)
    return st.none() | values if introspect.is_optional(member) else values


def arrayElements(value: Any) -> int:
    """How many array elements an entity consists of, at all depths together."""
    if isinstance(value, tuple):
        return len(value) + sum(map(arrayElements, value))
    if dataclasses.is_dataclass(value):
        return sum(arrayElements(getattr(value, member.name)) for member in dataclasses.fields(value))
    return 0


def damaged(body: bytes, random: Random) -> bytes:
    """Change one byte to three, preferably to what means something in a length, or leave some bytes out."""
    changed = bytearray(body)
    for _ in range(random.randrange(1, 4) if body else 0):
        changed[random.randrange(len(changed))] = random.choice((0, 1, 2, 127, 128, 255, random.randrange(256)))
    if body and random.random() < 0.2:
        del changed[random.randrange(len(changed)) :]
    return bytes(changed)


def everyVersion() -> Iterator[tuple[versions.Api, int]]:
    """Every version of every API that is served."""
    for api in versions.APIS:
        for apiVersion in range(api.minVersion, api.maxVersion + 1):
            yield api, apiVersion
