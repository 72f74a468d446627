# -*- test-case-name: tests.unit.kafka.serving.test_quotalimits -*-
"""
The limits of quota policies, and how they are changed while the broker runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, Protocol

from attrs import asdict, frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from admission.clock import wholeMicroseconds
from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.names import canonicalAddress
from admission.policyfailure import FAILURES
from admission.quotas.limits import UNLIMITED, kindOf

from ..storage.itable import LONGEST_KEY_BYTES, CommitCallback, ITable, LogRefusal

MAX_ENTITIES: Final = 10_000
"""How many entities may have limits that were set at run time."""

_VERSION: Final = 1
"""The version of the stored form."""

_TOLERANCE: Final = 1e-6
"""How far a limit that must be a whole number may be from one."""

_NO_LIMIT: Final = 2**31 - 1
"""The smallest of Kafka's numbers for no limit."""

Limits = Mapping[str, float]
"""The limits of one entity, by name."""


KAFKA_LIMITS: Final = frozenset({"producer_byte_rate", "consumer_byte_rate", "producer_ids_rate"})
"""What operators of Kafka call limits that are called otherwise on other servers."""


READERS: Final = {
    "received_byte_rate": "client-bytes",
    "sent_byte_rate": "client-bytes",
    "producer_byte_rate": "client-bytes",
    "consumer_byte_rate": "client-bytes",
    "request_percentage": "request-time",
    "new_identity_rate": "producer-ids",
    "producer_ids_rate": "producer-ids",
    "connection_creation_rate": "connections",
    "concurrent_requests": "concurrency",
    "request_rate": "requests",
}
"""The limits of the policies that come with us, by all their names, with the policy that reads each."""


class LimitRefused(LogRefusal):
    """
    A limit is impossible, or no policy has it for that entity.
    """

    errorCode: ClassVar[int] = ErrorCode.invalid_request.value


@frozen
class Alteration:
    """
    Changes for one entity: all of them are made or none.

    @ivar changes: new limits by name; L{None} removes a limit.
    """

    entity: QuotaEntity
    changes: Mapping[str, float | None]


class LimitStore(Protocol):
    """
    Where limits are kept, and who is known; an L{ILog} is one.
    """

    def table(self, name: str, isFlushed: bool = False) -> ITable: ...

    def whenFlushed(self, callback: CommitCallback) -> None: ...

    def producers(self) -> Iterator[tuple[str, int]]: ...


class QuotaLimits:
    """
    Two layers of limits.  The lower layer has the limits that the broker was started
    with; the upper one is set at run time and survives restarts.  When a limit is
    removed from the upper layer, the one below it holds again.

    @ivar onAltered: called for each entity whose limits of the upper layer were altered, with all that it has there,
        and who did it.
    @ivar onEnforced: called for each entity whose limits have just been put in
        force, with the entity, the limits that have changed (L{None} for removed
        ones), who changed them, and the time that the policies were given.
    """

    _log = Logger()

    def __init__(
        self,
        log: LimitStore,
        control: AdmissionControl,
        static: Mapping[QuotaEntity, Limits],
        seconds: Callable[[], float],
        maxEntities: int = MAX_ENTITIES,
        share: float = 1.0,
    ) -> None:
        """
        Put the stored limits in force.  A limit that no policy knows is logged
        and kept, in case a later configuration has such a policy.

        @param log: stores the limits.
        @param control: has the policies.
        @param static: the limits that the policies were built with.
        @param seconds: the monotonic clock of the policies.
        @param maxEntities: how many entities may have limits of the upper layer.
        @param share: see L{AdmissionControl}.
        @raise LogRefusal: if the stored limits cannot be read.
        """
        self.onAltered: Callable[[QuotaEntity, Limits, str], object] = lambda *_: None
        self.onEnforced: Callable[[QuotaEntity, Mapping[str, float | None], str, float], object] = lambda *_: None
        self._whenFlushed = log.whenFlushed
        self._producers = log.producers
        self._table = log.table("quotas", isFlushed=True)
        self._control = control
        self._seconds = seconds
        self._maxEntities = maxEntities
        self._static: dict[QuotaEntity, Limits] = {entity: dict(limits) for entity, limits in static.items()}
        self._dynamic: dict[QuotaEntity, Limits] = {}
        # Entities that will have limits of the upper layer after the next commit.
        self._uncommitted: set[QuotaEntity] = set()
        control.enforceShare(share, seconds())
        for key, value in self._table.items():
            self._restore(key, value)
        self._memory = log.table("policies")
        control.resume(self.kept(), seconds())
        control.restore(control.limitNames, self._producers(), seconds())

    def kept(self) -> dict[str, dict[str, float]]:
        """
        What policies are told after a restart: numbers by key, by the name of the policy.
        """
        kept: dict[str, dict[str, float]] = {}
        for place, value in self._memory.items():
            try:
                name, key = json.loads(place.decode("utf-8", "surrogatepass"))
                kept.setdefault(name, {})[key] = float(value)
            except ValueError as error:
                self._log.error("what a policy knew as {place!r} is lost: {error}", place=place, error=error)
        return kept

    def keep(self) -> None:
        """
        Store what policies are to know after a restart; call it regularly, and when there are no more requests.
        """
        try:
            for name, numbers in self._control.takeChanges(self._seconds()).items():
                for key, number in numbers.items():
                    self._keep(name, key, number)
        except LogRefusal as error:
            self._log.error("what policies know now will not be known after a restart: {error}", error=error)

    def _keep(self, name: str, key: str, number: float) -> None:
        place = json.dumps([name, key], ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(place) > LONGEST_KEY_BYTES:
            self._log.error("the policy {name} has too long a key, so it is not stored: {key!r}", name=name, key=key)
        elif number > 0:
            self._memory.put(place, repr(float(number)).encode("ascii"))
        else:
            self._memory.delete(place)

    def describe(self, wanted: Mapping[str, str | None], strict: bool) -> Iterator[tuple[QuotaEntity, Limits]]:
        """
        The limits of the matching entities, sorted by name.

        @param wanted: the attributes of L{QuotaEntity} that an entity must have, with
            their values, or L{None} for any value.
        @param strict: whether an entity must have no other attributes.
        """
        entities = self._static.keys() | self._dynamic.keys()
        for entity in sorted(entities, key=_sortKey):
            named = _namesOf(entity)
            if strict and len(named) != len(wanted):
                continue
            if all(each in named and value in (None, named[each]) for each, value in wanted.items()):
                yield entity, {**self._static.get(entity, {}), **self._dynamic.get(entity, {})}

    def alter(
        self, alterations: Sequence[Alteration], validateOnly: bool, by: str
    ) -> Deferred[list[LogRefusal | None]]:
        """
        Change limits, independently for each entity.  They are stored first, and
        come into force once the disk has them.

        @param alterations: in the order in which they are to be made.
        @param validateOnly: whether to change nothing and only say what would
            be refused.
        @param by: who changes them, for the log.
        @return: fires with the error of each alteration, or L{None}; never with a
            failure.
        """
        verdicts: list[LogRefusal | None] = []
        accepted: dict[int, tuple[QuotaEntity, Limits]] = {}
        for alteration in alterations:
            try:
                entity, limits = self._limitsAfter(alteration)
                if not validateOnly:
                    self._write(entity, limits)
                    accepted[len(verdicts)] = entity, limits
            except LogRefusal as refusal:
                verdicts.append(refusal)
            else:
                verdicts.append(None)
        if validateOnly:
            return succeed(verdicts)
        done: Deferred[list[LogRefusal | None]] = Deferred()
        self._whenFlushed(partial(self._committed, done, verdicts, accepted, by))
        if accepted:
            done.addCallback(self._altered, accepted, by)
        return done

    def _altered(
        self, verdicts: list[LogRefusal | None], accepted: Mapping[int, tuple[QuotaEntity, Limits]], by: str
    ) -> list[LogRefusal | None]:
        for index, (entity, limits) in accepted.items():
            if verdicts[index] is None:
                self.onAltered(entity, limits, by)
        return verdicts

    def adopt(self, entity: QuotaEntity, limits: Limits, by: str) -> None:
        """
        Take over the limits of the upper layer that an entity was given at another server.  What no policy here takes
        is logged, and so is an entity too many.
        """
        try:
            entity = _checkEntity(entity)
            if limits == self._stored(entity):
                return
            isNew = entity not in self._dynamic and entity not in self._uncommitted
            if limits and isNew and len(self._dynamic) + len(self._uncommitted) >= self._maxEntities:
                raise LimitRefused(f"{self._maxEntities} entities have limits of their own, and there may be no more")
            self._write(entity, {name: _checkLimit(name, limit) for name, limit in limits.items()})
        except LogRefusal as refusal:
            self._notAdopted(entity, by, refusal)
            return

        def committed(verdicts: list[LogRefusal | None]) -> None:
            if verdicts[0] is not None:
                self._notAdopted(entity, by, verdicts[0])

        done: Deferred[list[LogRefusal | None]] = Deferred()
        done.addCallback(committed)
        self._whenFlushed(partial(self._committed, done, [None], {0: (entity, limits)}, by))

    def _notAdopted(self, entity: QuotaEntity, by: str, refusal: LogRefusal) -> None:
        self._log.error(
            "limits of {entity} that {by} has set at another server are not in force: {refusal}",
            entity=describeEntity(entity),
            by=by,
            refusal=refusal,
        )

    def setStatic(self, static: Mapping[QuotaEntity, Limits], by: str) -> bool:
        """
        Put other limits in the place of those that the server was started with.  Those that were set at run time stay
        above them.

        @param by: who changes them, for the log.
        @return: whether any limit has changed.
        """
        enforced: dict[QuotaEntity, set[str]] = {}
        hasChanged = False
        for entity in sorted(self._static.keys() | static.keys(), key=_sortKey):
            limits = dict(static.get(entity, {}))
            if limits == self._static.get(entity, {}):
                continue
            hasChanged = True
            try:
                enforced[entity] = self._enforce(entity, limits, self._dynamic.get(entity, {}), by)
            except FAILURES:
                # A policy that was built with these limits just now refuses them.
                self._log.failure("limits of {entity} stay as they were", entity=describeEntity(entity))
        self._restoreEstablished({entity: names for entity, names in enforced.items() if names})
        return hasChanged

    def _restore(self, key: bytes, value: bytes) -> None:
        try:
            entity, limits = _decode(key, value)
        except ValueError as error:
            self._log.error("stored limits of {key!r} are not in force: {error}", key=key, error=error)
            return
        self._dynamic[entity] = limits
        for name, limit in limits.items():
            try:
                if name not in self._control.limitNames:
                    raise LimitRefused("no policy knows it")
                self._control.configure(entity, self._shared({name: limit}), self._seconds())
            except (LimitRefused, ValueError) as refusal:
                self._log.warn(
                    "{name} of {entity} is stored and not in force: {refusal}",
                    name=name,
                    entity=describeEntity(entity),
                    refusal=refusal,
                )

    def _shared(self, limits: Mapping[str, float | None]) -> dict[str, float | None]:
        """
        What the policies enforce of some limits.
        """
        return {name: None if limit is None else limit * self._control.limitShare for name, limit in limits.items()}

    def _limitsAfter(self, alteration: Alteration) -> tuple[QuotaEntity, Limits]:
        """
        @return: the entity of an alteration and its limits after it.
        """
        entity = _checkEntity(alteration.entity)
        changes = {self._control.limitNamed(name): limit for name, limit in alteration.changes.items()}
        if len(changes) < len(alteration.changes):
            raise LimitRefused(f"two of {', '.join(sorted(alteration.changes))} are the same limit")
        self._checkWithPolicies(entity, changes)
        limits = self._stored(entity)
        for name, limit in changes.items():
            if limit is None:
                limits.pop(name, None)
            else:
                limits[name] = _checkLimit(name, limit)
        isNew = entity not in self._dynamic and entity not in self._uncommitted
        if limits and isNew and len(self._dynamic) + len(self._uncommitted) >= self._maxEntities:
            raise LimitRefused(f"{self._maxEntities} entities have limits of their own, and there may be no more")
        return entity, limits

    def _checkWithPolicies(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
        present = {**self._static.get(entity, {}), **self._dynamic.get(entity, {})}
        new = [
            name
            for name, limit in changes.items()
            if name not in present or (limit is not None and name not in self._control.limitNames)
        ]
        try:
            # Removing a limit that is not set changes nothing, but is refused where the limit could not be set either.
            self._control.configure(entity, dict.fromkeys(new), self._seconds())
        except ValueError as refusal:
            missing = [name for name in new if name in READERS and name not in self._control.limitNames]
            policies = " ".join(dict.fromkeys(f"--quota {READERS[name]}" for name in missing))
            raise LimitRefused(f"{refusal}{f'; start with {policies}' if policies else ''}") from refusal

    def _stored(self, entity: QuotaEntity) -> dict[str, float]:
        """
        The limits that were written last, even if they are not in force yet.
        Empty if they cannot be read; they will then be replaced.
        """
        key = _encodeEntity(entity)
        value = self._table.get(key)
        try:
            return {} if value is None else _decode(key, value)[1]
        except ValueError:
            return {}

    def _write(self, entity: QuotaEntity, limits: Limits) -> None:
        if limits == self._stored(entity):
            return
        key = _encodeEntity(entity)
        if limits:
            self._table.put(key, json.dumps({"version": _VERSION, "limits": dict(limits)}).encode("ascii"))
            if entity not in self._dynamic:
                self._uncommitted.add(entity)
        else:
            self._table.delete(key)

    def _committed(
        self,
        done: Deferred[list[LogRefusal | None]],
        verdicts: list[LogRefusal | None],
        accepted: Mapping[int, tuple[QuotaEntity, Limits]],
        by: str,
        error: Exception | None,
    ) -> None:
        enforced: dict[QuotaEntity, set[str]] = {}
        for index, (entity, limits) in accepted.items():
            self._uncommitted.discard(entity)
            try:
                if error is None:
                    enforced[entity] = self._enforce(entity, self._static.get(entity, {}), limits, by)
                else:
                    assert isinstance(error, LogRefusal)
                    verdicts[index] = error
                    # Almost always unchanged; but a turn that writes very much commits in between.
                    stored = self._stored(entity)
                    enforced[entity] = self._enforce(entity, self._static.get(entity, {}), stored, by)
            except LogRefusal as refusal:
                verdicts[index] = refusal
            except FAILURES as refusal:
                if not isinstance(refusal, ValueError):
                    self._log.failure("limits of {entity} cannot be put in force", entity=describeEntity(entity))
                verdicts[index] = LimitRefused(str(refusal))
                self._rollBack(entity)
        self._restoreEstablished({entity: names for entity, names in enforced.items() if names})
        done.callback(verdicts)

    def _restoreEstablished(self, limited: Mapping[QuotaEntity, set[str]]) -> None:
        """
        Tell policies who had which identity before there was a limit: once for all entities, and only of their users,
        since there may be many.

        @param limited: the names of the limits that some may have now and had not before.
        """
        if not limited:
            return
        users = {entity.user for entity in limited}
        established: Iterable[tuple[str, int]] = self._producers()
        if not users & {None, DEFAULT}:
            established = (each for each in established if each[0] in users)
        self._control.restore(set().union(*limited.values()), established, self._seconds())

    def _enforce(self, entity: QuotaEntity, static: Limits, limits: Limits, by: str) -> set[str]:
        """
        @param static: the limits of the lower layer from now on.
        @param limits: those of the upper one.
        @return: the names of the limits that clients may have now and had not before.
        @raise ValueError: if a policy refuses one; then nothing has changed.
        """
        dynamic = self._dynamic.get(entity, {})
        before, after = {**self._static.get(entity, {}), **dynamic}, {**static, **limits}
        # What only one policy was built with goes to all that know it once it is set, even if it is the same limit.
        changed = [
            name
            for name in sorted(before | after)
            if before.get(name) != after.get(name) or dynamic.get(name) != limits.get(name)
        ]
        known = self._shared({name: after.get(name) for name in changed if name in self._control.limitNames})
        if known:
            # A recording counts whole microseconds, and a replay gives its policies the recorded time.
            now = wholeMicroseconds(self._seconds())
            self._control.configure(entity, known, now)
            self.onEnforced(entity, known, by, now)
        for layer, present in ((self._static, static), (self._dynamic, limits)):
            if present:
                layer[entity] = present
            else:
                layer.pop(entity, None)
        for name in changed:
            self._log.info(
                "{by} changed {name} of {entity} from {before} to {after}",
                by=by,
                name=name,
                entity=describeEntity(entity),
                before=_formatLimit(before.get(name)),
                after=_formatLimit(after.get(name)),
            )
        return {name for name in known if after.get(name) is None or before.get(name, _NO_LIMIT) >= _NO_LIMIT}

    def _rollBack(self, entity: QuotaEntity) -> None:
        try:
            self._write(entity, self._dynamic.get(entity, {}))
        except LogRefusal as refusal:
            self._log.error(
                "limits of {entity} that no policy wants stay stored: {refusal}",
                entity=describeEntity(entity),
                refusal=refusal,
            )


def describeEntity(entity: QuotaEntity) -> str:
    words = {"user": "user", "clientId": "client id", "ip": "address"}
    return ", ".join(
        f"the default {words[kind]}" if name == DEFAULT else f"{words[kind]} {name!r}"
        for kind, name in _namesOf(entity).items()
    )


def _formatLimit(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:.15g}"


def _namesOf(entity: QuotaEntity) -> dict[str, str]:
    return asdict(entity, filter=lambda attribute, name: name is not None)


def _sortKey(entity: QuotaEntity) -> tuple[str, str, str]:
    return (entity.user or "", entity.clientId or "", entity.ip or "")


def _checkEntity(entity: QuotaEntity) -> QuotaEntity:
    """
    Normalize an entity to the form that policies use.

    @raise LimitRefused: if the entity is impossible.
    """
    try:
        kindOf(entity)
        if entity.ip not in (None, DEFAULT):
            entity = QuotaEntity(ip=canonicalAddress(entity.ip))
    except ValueError as refusal:
        raise LimitRefused(str(refusal)) from refusal
    if len(_encodeEntity(entity)) > LONGEST_KEY_BYTES:
        raise LimitRefused(f"the names are too long: they may have about {LONGEST_KEY_BYTES} bytes together")
    return entity


def _checkLimit(name: str, limit: float) -> float:
    """
    Check a limit, and convert it to the stored form.

    @raise LimitRefused: if the limit makes no sense.
    """
    if not (math.isfinite(limit) and limit > 0):
        raise LimitRefused(f"{name} must be a positive number, not {_formatLimit(limit)}")
    if limit > UNLIMITED:
        raise LimitRefused(f"{name} is {_formatLimit(limit)}, and may be {2**63 - 1}, which means no limit")
    if name.endswith("_byte_rate") or name == "connection_creation_rate":
        whole = round(limit)
        if whole < 1 or abs(limit - whole) > _TOLERANCE:
            raise LimitRefused(f"{name} must be a whole number, not {_formatLimit(limit)}")
        return float(whole)
    return limit


def _encodeEntity(entity: QuotaEntity) -> bytes:
    names = [entity.user, entity.clientId, entity.ip]
    return json.dumps(names, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _decode(key: bytes, value: bytes) -> tuple[QuotaEntity, dict[str, float]]:
    """
    Read a row of the table.

    @raise ValueError: if it has another form.
    """
    try:
        stored = json.loads(value)
        version, limits = stored["version"], stored["limits"]
        if version != _VERSION:
            raise ValueError(f"they are written in form {version!r}, and {_VERSION} is known")
        user, clientId, ip = json.loads(key.decode("utf-8", "surrogatepass"))
        return QuotaEntity(user, clientId, ip), {name: float(limit) for name, limit in limits.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"they make no sense ({error!r})") from error
