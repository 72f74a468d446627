"""What tests of commands have in common."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.cli import AdmissionOptions
from admission.commands.kafka.doctormachine import Finding, Level
from admission.interfaces import DEFAULT, QuotaEntity


class StandInConnection:
    """
    A connection to a broker that keeps limits in a dictionary.

    @ivar requests: what it was asked.
    @ivar refusal: what it refuses alterations with, if anything.
    """

    def __init__(self, limits: Mapping[QuotaEntity, Mapping[str, float]] | None = None) -> None:
        self.limits = {entity: dict(values) for entity, values in (limits or {}).items()}
        self.requests: list[tuple[str, Any]] = []
        self.refusal: tuple[ErrorCode, str | None] | None = None
        self.unknownKind: str | None = None
        self.isClosed = False

    def close(self) -> Deferred[None]:
        """Close at once."""
        self.isClosed = True
        return succeed(None)

    def request(self, apiName: str, fields: Mapping[str, Any]) -> Deferred[Any]:
        """Answer as a broker would."""
        self.requests.append((apiName, fields))
        code, message = self.refusal or (ErrorCode.none, None)
        if apiName == "DescribeClientQuotas":
            entries = [self._entry(entity, values) for entity, values in self.limits.items()]
            return succeed(SimpleNamespace(error_code=code, error_message=message, entries=None if code else entries))
        for entry in fields["entries"]:
            if not code and not fields["validate_only"]:
                self._alter(entry)
        return succeed(SimpleNamespace(entries=[SimpleNamespace(error_code=code, error_message=message)]))

    def _entry(self, entity: QuotaEntity, values: Mapping[str, float]) -> Any:
        kinds = {"user": entity.user, "client-id": entity.clientId, self.unknownKind or "ip": entity.ip}
        return SimpleNamespace(
            entity=[
                SimpleNamespace(entity_type=kind, entity_name=None if name == DEFAULT else name)
                for kind, name in kinds.items()
                if name is not None
            ],
            values=[SimpleNamespace(key=name, value=value) for name, value in values.items()],
        )

    def _alter(self, entry: Mapping[str, Any]) -> None:
        attributes = {"user": "user", "client-id": "clientId", "ip": "ip"}
        names = {attributes[each["entity_type"]]: each["entity_name"] or DEFAULT for each in entry["entity"]}
        limits = self.limits.setdefault(QuotaEntity(**names), {})
        for op in entry["ops"]:
            if op["remove"]:
                limits.pop(op["key"], None)
            else:
                limits[op["key"]] = op["value"]


class CommandTestCase(SynchronousTestCase):
    """A test of commands."""

    def parse(self, *arguments: str) -> Any:
        """
        Parse a command line.

        @return: the options of the command proper.
        """
        options: Any = AdmissionOptions()
        options.parseOptions(list(arguments))
        return options.subOptions

    def assertMistakes(self, mistakes: Sequence[tuple[str, str]]) -> None:
        """Each command line is refused with a sentence in which these words are."""
        for line, words in mistakes:
            error = self.assertRaises(UsageError, self.parse, *shlex.split(line))
            self.assertIn(words, str(error), line)
            self.assertNotIn("\n", str(error))

    def file(self, content: bytes) -> str:
        """Write a file."""
        path = Path(self.mktemp())
        path.write_bytes(content)
        return str(path)


class FindingTestCase(SynchronousTestCase):
    """A test of checks."""

    def assertFinds(self, finding: Finding, level: Level, *words: str) -> None:
        """A check came to that, in these words, and with a remedy if one is needed."""
        self.assertIs(finding.level, level, finding)
        for word in words:
            self.assertIn(word, f"{finding.what} -> {finding.remedy}")
        if level in (Level.WARN, Level.FAIL):
            self.assertNotEqual(finding.remedy, "")
