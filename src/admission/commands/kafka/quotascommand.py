# -*- test-case-name: tests.unit.commands.kafka.test_quotascommand -*-
"""
The command C{admission quotas}: the limits of a running broker, through
Kafka's requests for them (KIP-546).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, TextIO

from attrs import asdict
from twisted.internet.defer import Deferred
from twisted.python.usage import UsageError

from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.client.clientconnection import ClientConnection
from admission.kafka.client.errors import BrokerRefused
from admission.kafka.serving.quotalimits import READERS
from admission.plaintext import table

from ..console import ArgumentOptions, CommandFailed, CommandGroup
from ..limitsyntax import ATTRIBUTES, asArguments, componentsOf, limitColumns, limitTitles, parseAmount
from ..statusport import Fetch, askStatus, enforcedShare, fetch, parseStatus
from .brokerconnection import ConnectionOptions, Question, ask

Limits = Mapping[str, float]

_EXACTLY = 0
_DEFAULT = 1


class EntityOptions(ConnectionOptions):
    """
    The entity whose limits are read or changed.

    After parsing, C{entity} is a key as well.
    """

    optParameters = [
        ["user", "u", None, "A user, by the name of the login."],
        ["client-id", "c", None, "A client, by the name that it gives itself."],
        ["ip", None, None, "An address that clients connect from."],
    ]
    optFlags = [
        ["user-default", None, "Each user that has no limit of its own."],
        ["client-id-default", None, "Each client id that has no limit of its own."],
        ["ip-default", None, "Each address that has no limit of its own."],
    ]

    def postOptions(self) -> None:
        """
        @raise UsageError: also if the entity is impossible.
        """
        super().postOptions()
        names: dict[str, str] = {}
        for kind, attribute in ATTRIBUTES.items():
            name, isDefault = self[kind], self[f"{kind}-default"]
            if name is not None and isDefault:
                raise UsageError(f"--{kind} and --{kind}-default are both given; keep one")
            if name in ("", DEFAULT):
                raise UsageError(f"--{kind} takes a name; --{kind}-default is for all that have no limit of their own")
            if name is not None or isDefault:
                names[attribute] = DEFAULT if isDefault else name
        if "ip" in names and len(names) > 1:
            raise UsageError("limits are for an address or for a user and a client id, not for both")
        self["entity"] = QuotaEntity(**names)


class DescribeOptions(EntityOptions):
    synopsis = "[options]"
    longdesc = (
        "Shows the limits that are set, including the ones that the broker was started with: all of them, or only the "
        "limits of a user, client id or address, alone or together with others."
    )
    optParameters = [
        ["status", None, None, "The status port of a gateway, which says how much of each limit that gateway enforces."]
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]
    examples = (
        "quotas describe",
        "quotas describe --client-id-default",
        "quotas describe --user alice --json",
        "quotas describe --status http://127.0.0.1:9090",
    )

    def postOptions(self) -> None:
        super().postOptions()
        if self["status"] is not None:
            self["url"] = parseStatus(self["status"])


class AlterOptions(ArgumentOptions, EntityOptions):
    """
    What C{set} and C{remove} have in common.
    """

    optFlags = [["dry-run", None, "Only ask the broker whether it would do it."]]

    def postOptions(self) -> None:
        """
        @raise UsageError: also if no entity is named.
        """
        super().postOptions()
        if self["entity"] == QuotaEntity():
            raise UsageError(
                "say whose limits: --user, --client-id, both, or --ip, or --client-id-default and the like"
            )


class SetOptions(AlterOptions):
    """
    After parsing, C{limits} is a key as well.
    """

    synopsis = "[options] NAME=VALUE ..."
    longdesc = (
        "Sets limits; they hold at once, and after a restart of the broker.  Limits: producer_byte_rate and "
        "consumer_byte_rate (bytes per second, as 4M or 64KiB or 1G/1h), request_percentage (of one core's time), "
        "producer_ids_rate (new producer ids of a user in a window), connection_creation_rate (of an address, per "
        "second), concurrent_requests (in progress at a time), request_rate (requests of a client or an address, per "
        "second), and what further policies know."
    )
    examples = (
        "quotas set --client-id-default producer_byte_rate=4M consumer_byte_rate=8M",
        "quotas set --user alice --client-id reports request_percentage=50",
        "quotas set --dry-run --user-default producer_ids_rate=100",
        "quotas set --ip 192.0.2.1 connection_creation_rate=10",
    )

    def parseArgs(self, *assignments: str) -> None:
        """
        @param assignments: NAME=VALUE each.
        """
        limits: dict[str, float] = {}
        for assignment in assignments:
            name, equals, value = assignment.partition("=")
            if not (name and equals):
                raise UsageError(f"{assignment}: write NAME=VALUE, as in producer_byte_rate=4M")
            if name in limits:
                raise UsageError(f"{name} is given twice; keep one")
            try:
                limits[name] = parseAmount(name, value, READERS)
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from error
        if not limits:
            raise UsageError("say which limits, as in producer_byte_rate=4M")
        self["limits"] = limits


class RemoveOptions(AlterOptions):
    """
    After parsing, C{names} is a key as well.
    """

    synopsis = "[options] [NAME ...]"
    longdesc = (
        "Removes limits that were set while the broker ran; all of them if none is named.  Limits that the broker was "
        "started with stay."
    )
    examples = (
        "quotas remove --client-id reports producer_byte_rate",
        "quotas remove --user alice --client-id-default",
    )

    def parseArgs(self, *names: str) -> None:
        """
        @param names: of limits.
        """
        for name in names:
            if "=" in name:
                raise UsageError(f"{name}: write the limit's name alone to remove it")
        self["names"] = list(dict.fromkeys(names))


class QuotasOptions(CommandGroup):
    """
    C{quotas describe|set|remove}.
    """

    longdesc = (
        "See and change limits while the broker runs: of a user, of a client id, of a client id of one user, of an "
        "address, or of all that have none of their own."
    )
    subCommands = [
        ["describe", None, DescribeOptions, "Show the limits that are set."],
        ["set", None, SetOptions, "Set limits."],
        ["remove", None, RemoveOptions, "Remove limits."],
    ]


def run(
    options: QuotasOptions,
    stdin: TextIO,
    stdout: TextIO,
    ask: Callable[[ConnectionOptions, Question], Any] = ask,
    fetch: Fetch = fetch,
) -> None:
    """
    @param ask: as L{admission.commands.kafka.brokerconnection.ask}.
    @param fetch: as L{admission.commands.statusport.fetch}.
    """
    given: Any = options.subOptions
    entity = given["entity"]
    if isinstance(given, DescribeOptions):
        # Kafka's answer has no place for it.
        share = None if given["status"] is None else askStatus(given, "quotas", enforcedShare, fetch)
        found = ask(given, lambda connection: describe(connection, entity, isExact=False))
        if given["json"]:
            rows = [{**asdict(each), "limits": limits} for each, limits in found.items()]
            enforced = {} if share is None else {"limitShare": share}
            stdout.write(json.dumps({**enforced, "quotas": rows}, indent=2) + "\n")
        else:
            stdout.write(_described(found, share or 1.0) or "no limits are set there\n")
        return

    isDryRun = bool(given["dry-run"])

    def question(connection: ClientConnection) -> Generator[Deferred[Any], Any, dict[QuotaEntity, Limits]]:
        changes = dict(given["limits"]) if isinstance(given, SetOptions) else dict.fromkeys(given["names"])
        if not changes:
            found = yield from describe(connection, entity, isExact=True)
            changes = {name: None for limits in found.values() for name in limits}
        if changes:
            yield from alter(connection, entity, changes, isDryRun)
        return (yield from describe(connection, entity, isExact=True))

    left = ask(given, question)
    if isDryRun:
        stdout.write("the broker would do it; nothing was changed\n")
    else:
        stdout.write(_described(left) or f"no limits are set for {asArguments(entity)}\n")


def describe(
    connection: ClientConnection, entity: QuotaEntity, isExact: bool
) -> Generator[Deferred[Any], Any, dict[QuotaEntity, Limits]]:
    """
    Ask a broker for limits.

    @param isExact: whether to leave out entities that have more attributes than C{entity}.
    """
    components = [
        {
            "entity_type": kind,
            "match_type": _DEFAULT if name == DEFAULT else _EXACTLY,
            "match": None if name == DEFAULT else name,
        }
        for kind, name in componentsOf(entity).items()
    ]
    answer = yield connection.request("DescribeClientQuotas", {"components": components, "strict": isExact})
    if answer.error_code:
        raise BrokerRefused(answer.error_code, "DescribeClientQuotas", answer.error_message)
    return {_entityOf(entry): {each.key: each.value for each in entry.values} for entry in answer.entries or ()}


def alter(
    connection: ClientConnection, entity: QuotaEntity, changes: Mapping[str, float | None], isDryRun: bool
) -> Generator[Deferred[Any], Any, None]:
    """
    Have a broker set or (with L{None}) remove limits of one entity.

    @param isDryRun: whether the broker changes nothing, and only says whether it would.
    """
    answer = yield connection.request(
        "AlterClientQuotas",
        {
            "entries": [
                {
                    "entity": [
                        {"entity_type": kind, "entity_name": None if name == DEFAULT else name}
                        for kind, name in componentsOf(entity).items()
                    ],
                    "ops": [
                        {"key": name, "value": value or 0.0, "remove": value is None} for name, value in changes.items()
                    ],
                }
            ],
            "validate_only": isDryRun,
        },
    )
    for entry in answer.entries:
        if entry.error_code:
            raise BrokerRefused(entry.error_code, "AlterClientQuotas", entry.error_message)


def _described(found: Mapping[QuotaEntity, Limits], share: float = 1.0) -> str:
    rows = [
        (asArguments(entity), *limitColumns({name: limit * share for name, limit in limits.items()}, share))
        for entity, limits in found.items()
        if limits
    ]
    return table([("For", *limitTitles("Limits", share)), *rows]) if rows else ""


def _entityOf(entry: Any) -> QuotaEntity:
    names: dict[str, str] = {}
    for component in entry.entity:
        attribute = ATTRIBUTES.get(component.entity_type)
        if attribute is None:
            raise CommandFailed(f"the broker has limits for a {component.entity_type!r}, which is not known here")
        names[attribute] = DEFAULT if component.entity_name is None else component.entity_name
    return QuotaEntity(**names)
