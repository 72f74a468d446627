"""What Prometheus and the manual ask of the names of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from admission.metrics.prometheusnames import Naming
from tests.kit.checkout import ROOT

_MANUAL = ROOT / "docs" / "operate.md"

_UNITS = {
    *("milliseconds", "microseconds", "minutes", "hours", "days", "percent", "bits"),
    *("kilobytes", "megabytes", "kibibytes", "mebibytes", "grams", "millis", "ms", "us", "ns", "kb", "mb"),
}
"""Units that are not base units, and abbreviations."""


def lint(naming: Naming) -> Iterator[str]:
    """What C{promtool check metrics} would complain of, and a help text that is no sentence."""
    name, words = naming.name, naming.name.split("_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        yield f"{name} is not in snake case"
    if wrong := _UNITS.intersection(words):
        yield f"{name}: use base units, not {wrong}"
    if wrong := {"gauge", "counter", "histogram", "summary"}.intersection(words):
        yield f"{name} includes a type, {wrong}"
    if words[-1] in ("count", "sum", "bucket"):
        yield f"{name} ends as the rows of a histogram do"
    for label in re.findall(r"\?P<(\w+)>", naming.sensors):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", label):
            yield f"{name}: the label {label} is not in snake case"
    if not re.fullmatch(r"[A-Z1].*\.", naming.help):
        yield f"{name}: its help is no sentence: {naming.help}"


def missingRows(namings: Iterable[Naming]) -> list[str]:
    """The rows that the manual should have, and has not."""
    text = _MANUAL.read_text(encoding="utf-8")
    rows = (f"| `{each.name}` | {each.help} |" for each in namings)
    return [row for row in rows if row not in text]
