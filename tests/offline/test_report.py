"""Tests for L{admission.offline.report}, but for how the page looks in a browser."""

from __future__ import annotations

import atexit
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from matplotlib import rc_context
from pyarrow import parquet
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.evaluation import EVALUATION
from admission.offline.failures import ReportError
from admission.offline.outputtables import OUTPUTS
from admission.offline.report.answers import candidateRows
from admission.offline.report.differences import AT_LEAST, Differences, differencesOf
from admission.offline.report.elements import markup
from admission.offline.report.explanation import MAX_REASONS, reasonsOf, remediesOf
from admission.offline.report.lines import (
    MAX_POINTS,
    Line,
    Timeline,
    Times,
    busiestBytes,
    delayLines,
    fairnessLines,
    poolLines,
)
from admission.offline.report.plots import MAX_LINES, Plot, scaled
from admission.offline.report.resultfiles import Results
from admission.offline.report.terminal import summaryOf
from admission.offline.report.verdict import Trust, Verdict, passGate, reach
from admission.offline.report.words import client, count, duration, index, plural, share, shown, size
from admission.offline.report.writing import writeReport
from admission.offline.simulate.decisions import CLOSED, OPEN
from admission.offline.simulate.pool import TOTALS
from admission.offline.simulate.trials import BASELINE
from tests.kit.evaluated import (
    BEGIN,
    FITTING,
    GENEROUS,
    HOSTILE,
    MINUTE_COUNT,
    RECORDED_POLICY,
    STEP_SECONDS,
    STRICT,
    Row,
    at,
    decisionsOf,
    fidelityRow,
    replayTables,
    someDecisions,
    writeEverything,
    writeTables,
)

_WITHIN_WORDS = {"a", "bdi", "strong"}
_NUMBER = re.compile(r"([\d.]+)(?: %)?")
_POINT = re.compile(r"[ML] (\S+) (\S+)")


def pageIn(directory: Path) -> ElementTree.Element:
    """The report on a directory, as a browser would take it apart."""
    text = writeReport(directory).read_text("utf-8")
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def textOf(page: ElementTree.Element, name: str | None = None) -> str:
    """What there is to read, of one section or of all of the page."""
    root = page if name is None else page.find(f".//section[@id='{name}']")
    assert root is not None, name
    return " ".join("".join(_texts(root)).split())


def _texts(element: ElementTree.Element) -> Iterator[str]:
    yield element.text or ""
    for each in element:
        yield from _texts(each)
        yield ("" if each.tag in _WITHIN_WORDS else " ") + (each.tail or "")


def tableRows(page: ElementTree.Element, caption: str) -> dict[str, list[str]]:
    """The cells of the table with this caption, by what its rows are of."""
    for table in page.iter("table"):
        if "".join(table[0].itertext()) == caption:
            rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
            return {first: rest for first, *rest in rows[1:]}
    raise AssertionError(f"there is no table {caption!r}")


def drawnPoints(page: ElementTree.Element, line: str) -> list[tuple[float, float]]:
    """The points of a line in the coordinates of its SVG."""
    for group in page.iter():
        if group.get("data-line") == line:
            [path, *_] = (each for each in group if each.tag.endswith("path"))
            return [(float(x), float(y)) for x, y in _POINT.findall(path.get("d") or "")]
    raise AssertionError(f"there is no line {line!r}")


def verticalNumbers(page: ElementTree.Element, plot: str) -> list[tuple[float, float]]:
    """The numbers beside a plot, and how far down they stand."""
    figure = page.find(f".//figure[@id='plot-{plot}']")
    assert figure is not None, plot
    found = [
        (_NUMBER.fullmatch(each.text or ""), float(each.get("y") or 0))
        for each in figure.iter()
        if each.tag.endswith("}text") and "text-anchor: end" in (each.get("style") or "")
    ]
    return [(float(match[1]), place) for match, place in found if match is not None]


def resultsOf(directory: str, decisions: Sequence[Row], stepSeconds: int = STEP_SECONDS, **tables: Any) -> Results:
    """The results that follow from decisions, and others as they are given."""
    writeTables(Path(directory), {**replayTables(decisions, stepSeconds), **tables})
    return Results.open(directory)


_SAMPLED = (
    '"sample": "10%", "estimates": ['
    '{"candidate": "mine", "column": "throttle_s", "total": 12.5, "error": 0.2},'
    '{"candidate": "mine", "column": "throttled", "total": 7, "error": 0.61},'
    '{"candidate": "mine", "column": "refused", "total": 0, "error": null}]'
)


class WordsTests(SynchronousTestCase):
    """Numbers and names in words."""

    def test_durations(self) -> None:
        """Times have about three digits, whatever their size."""
        for seconds, words in (
            (None, "\N{EN DASH}"),
            (0, "0 s"),
            (0.0001, "less than 1 ms"),
            (0.0455, "45.5 ms"),
            (0.9996, "1 s"),
            (3.214, "3.21 s"),
            (-3.214, "\N{MINUS SIGN}3.21 s"),
            (99.96, "100 s"),
            (120, "2 min"),
            (725.4, "12 min 5 s"),
            (7199.6, "2 h"),
            (9000, "2 h 30 min"),
            (2 * 86_400 + 3600, "2 d 1 h"),
            (10_000 * 86_400, "10,000 d"),
        ):
            self.assertEqual(duration(seconds), words)

    def test_sizes(self) -> None:
        """Sizes are in the largest unit of which there is one."""
        for sizeBytes, words in (
            (None, "\N{EN DASH}"),
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (-1536, "\N{MINUS SIGN}1.5 KiB"),
            (123_456_789, "118 MiB"),
            (1024**3 - 1, "1 GiB"),
            (5000 * 1024**4, "5,000.0 TiB"),
        ):
            self.assertEqual(size(sizeBytes), words)

    def test_shares(self) -> None:
        """Nothing rounds to none or to all of it."""
        for part, words in (
            (None, "\N{EN DASH}"),
            (0, "0 %"),
            (0.0001, "less than 0.1 %"),
            (0.123456, "12.3 %"),
            (0.5, "50 %"),
            (0.99999, "more than 99.9 %"),
            (1, "100 %"),
            (1.4, "140 %"),
        ):
            self.assertEqual(share(part), words)

    def test_counts(self) -> None:
        """Counts have commas, nouns their number, and indexes three digits."""
        self.assertEqual([count(1234567), count(None)], ["1,234,567", "\N{EN DASH}"])
        self.assertEqual([plural(1, "batch", "batches"), plural(2, "batch", "batches")], ["1 batch", "2 batches"])
        self.assertEqual([index(1 / 3), index(None)], ["0.333", "\N{EN DASH}"])

    def test_names(self) -> None:
        """Names are one line of what prints, of bounded length."""
        self.assertEqual(shown("caf\xe9 \N{HORIZONTAL ELLIPSIS}"), "caf\xe9 \N{HORIZONTAL ELLIPSIS}")
        self.assertEqual(shown("a\n\x00\u202e\ud800\uffff"), "a\\n\\x00\\u202e\\ud800\\uffff")
        self.assertEqual(len(shown("x" * 10_000)), 81)
        self.assertEqual(len(shown("\n" * 10_000)), 81)
        self.assertEqual(client("alice", "app"), "app (alice)")
        self.assertEqual(client("", None), "no client id (no user)")


class ResultsTests(SynchronousTestCase):
    """What is read, and what is said of what cannot be."""

    def setUp(self) -> None:
        """A directory for results."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()

    def refusal(self) -> str:
        """Why there is no report."""
        message = str(self.assertRaises(ReportError, writeReport, self.directory))
        self.assertFalse((self.directory / "report.html").exists())
        return message

    def test_nothing(self) -> None:
        """Without results there is no report, whether there is a directory or not."""
        self.assertIn("there are no results in", self.refusal())
        self.directory = self.directory / "missing"
        self.assertIn("--out", self.refusal())

    def test_brokenEvaluation(self) -> None:
        """What was asked has to be an object in JSON."""
        for text, words in (("{", "cannot be read"), ("[1]", "is not an object"), ("\udcff", "cannot be read")):
            self.directory.joinpath("evaluation.json").write_text(text, "utf-8", "surrogateescape")
            self.assertIn(words, self.refusal())

    def test_brokenTable(self) -> None:
        """A file that is no Parquet is named."""
        self.directory.joinpath("top_clients.parquet").write_bytes(b"PAR1")
        self.assertIn("top_clients in", self.refusal())

    def test_missingColumn(self) -> None:
        """A table of another version is named with what it lacks."""
        writeTables(self.directory, {"top_clients": [{"measure": "bytes"}]})
        self.assertIn("has no column rank", self.refusal())

    def test_unwritable(self) -> None:
        """Where the page cannot be written, the report says so and leaves nothing."""
        writeEverything(self.directory)
        self.directory.joinpath("report.html").mkdir()
        message = str(self.assertRaises(ReportError, writeReport, self.directory))
        self.assertIn("cannot be written", message)
        self.assertEqual(list(self.directory.glob(".report*")), [])

    def test_tables(self) -> None:
        """A table is a file or a directory of files; what begins with a dot or an underscore is neither."""
        single, several = pa.table({"n": [1, 2]}), pa.table({"n": [3]})
        writeTables(self.directory, {"single": single, "_hidden": single, ".hidden": single})
        writeTables(self.directory / "several", {"part-1": several, "part-2": several, "_part": several})
        writeTables(self.directory / "own", {"own": several})
        results = Results.open(self.directory)
        files = [(each.name, each.rows, each.parquet, each.csv) for each in results.files()]
        self.assertEqual(
            files,
            [
                ("own", 1, "own/own.parquet", "own/own.csv"),
                ("several", 2, "several", None),
                ("single", 2, "single.parquet", "single.csv"),
            ],
        )
        self.assertEqual(results.rows("several", ["n"]), [{"n": 3}, {"n": 3}])
        self.assertIsNone(results.table("nothing", ["n"]))


class GateTests(SynchronousTestCase):
    """Whether answers are to be believed."""

    def trust(self, *rows: Row) -> tuple[Trust, str]:
        """What the gate says of these rows, and why."""
        directory = Path(self.mktemp())
        table = pa.Table.from_pylist([*rows], pa.Table.from_pylist([fidelityRow()]).schema)
        writeTables(directory, {"replay_fidelity": table})
        outcome = passGate(Results.open(directory))
        return outcome.trust, outcome.sentence

    def test_trusted(self) -> None:
        """Replays that agree are to be believed; the figures are there."""
        trust, sentence = self.trust(
            fidelityRow(), fidelityRow(boot_id="other", compared=3000, match_share=0.9995, mean_error_ms=0.02)
        )
        self.assertIs(trust, Trust.TRUSTED)
        for words in ("can be trusted", "more than 99.9 % of 4,000 decisions", "600 of which", "0.015 ms"):
            self.assertIn(words, sentence)

    def test_refuted(self) -> None:
        """One that does not agree, or leaves requests out, refutes all."""
        for values in ({"match_share": 0.998}, {"missing": 2}, {"compared": 0, "missing": 5}):
            trust, sentence = self.trust(fidelityRow(compared=10_000), fidelityRow(boot_id="other", **values))
            self.assertIs(trust, Trust.REFUTED)
            self.assertIn("cannot be trusted", sentence)
            self.assertIn("1 of 2 policies and runs", sentence)
        self.assertIs(self.trust(fidelityRow(compared=0, missing=5))[0], Trust.REFUTED)

    def test_missing(self) -> None:
        """What is missing is said first, and with more than one percent of it missing nothing is trusted."""
        for missing, trust, start in (
            (10, Trust.TRUSTED, "1 % of the recorded events are missing. The server dropped 10 events, because it had"),
            (11, Trust.REFUTED, "These answers cannot be trusted: 1.1 % of the recorded events are missing."),
        ):
            directory = Path(self.mktemp())
            writeTables(directory, {"replay_fidelity": [fidelityRow()]})
            facts = {"recordedEvents": 1000 - missing, "missingEvents": missing, "droppedEvents": missing}
            outcome = passGate(Results(directory, facts))
            self.assertIs(outcome.trust, trust)
            self.assertTrue(outcome.sentence.startswith(start), outcome.sentence)
            self.assertEqual("can be trusted" in outcome.sentence, trust is Trust.TRUSTED)
            self.assertEqual(bool(outcome.doubt), trust is Trust.REFUTED)

    def test_untested(self) -> None:
        """Where nothing was to be seen nothing is proven."""
        for rows in (
            [],
            [fidelityRow(throttled=0)],
            [fidelityRow(compared=0, match_share=0.0)],
            [fidelityRow(), fidelityRow(boot_id="other", compared=0, match_share=0.0)],
            [fidelityRow(mode=OPEN)],
        ):
            self.assertIs(self.trust(*rows)[0], Trust.UNTESTED, rows)

    def test_partly(self) -> None:
        """
        Where a policy is refuted that some candidates do not depend on, the answers about these are judged by the other
        policies; if none depends on it, all are.
        """
        rows = [fidelityRow(), fidelityRow(candidate="recorded own", match_share=0.5)]
        doubt = "the replay of own disagrees with the recording"
        agrees = "The replay of the other policies in force agrees with the recording in 100 % of 1,000 decisions"
        everything = (
            "hese answers cannot be trusted: the replay of the policies in force agrees with the recording in less "
            "than the required 99.9 % of the decisions for 1 of 2 policies and runs of a server"
        )
        part = f"he answers about a cannot be trusted: {doubt}"
        for untrusted, trust, refutal, start in (
            (["a"], Trust.TRUSTED, f"t{part}", f"T{part}. All other answers can be trusted. {agrees}"),
            ([], Trust.TRUSTED, "", f"These answers can be trusted. {agrees}"),
            (["a", "b"], Trust.REFUTED, f"t{everything}", f"T{everything}. "),
        ):
            directory = Path(self.mktemp())
            writeTables(directory, {"replay_fidelity": rows})
            facts = {"untrusted": untrusted, "candidates": [{"label": "a"}, {"label": "b"}]}
            gate = passGate(Results(directory, facts))
            self.assertEqual((gate.trust, gate.refutal), (trust, refutal))
            self.assertTrue(gate.sentence.startswith(start), gate.sentence)
            self.assertEqual(f"No answer depends on own: {doubt}." in gate.sentence, not untrusted)
            self.assertEqual(len(gate.fidelities), 2)
            # If too much is missing, nothing is trusted.
            gate = passGate(Results(directory, {**facts, "recordedEvents": 90, "missingEvents": 10}))
            self.assertEqual(gate.refutal, "these answers cannot be trusted: 10 % of the recorded events are missing")
            self.assertNotIn("can be trusted.", gate.sentence)


class ExplanationTests(SynchronousTestCase):
    """What is said of disagreements, and what to do."""

    FOUND = {
        "policy": "recorded own",
        "brokerId": "1",
        "bootId": "boot",
        "decisions": 1234,
        "compared": 5000,
        "missing": 0,
        "clients": [["alice", "app", 1000], [None, None, 34]],
        "clientCount": 4,
        "minutes": [["2024-01-01T12:03", 1234]],
        "minuteCount": 1,
        "first": "2024-01-01T12:03:01",
        "after": "2024-01-01T12:03:59",
        "cause": "it was so",
    }
    FACTS = {
        "recording": "/srv/my recording",
        "candidates": [{"label": FITTING, "description": FITTING}, {"label": "mine", "description": "own:1"}],
        "pools": [{"label": "bounded:8MiB", "description": "bounded:8MiB"}],
        "modes": [CLOSED],
        "sample": None,
        "since": None,
        "until": "2024-01-02",
        "untrusted": ["mine"],
        "disagreements": [FOUND],
        "narrower": None,
    }

    def results(self, **facts: Any) -> Results:
        """Results with these facts besides."""
        return Results(Path("out"), {**self.FACTS, **facts})

    def test_reasons(self) -> None:
        """Each disagreement has its policy, time, minutes, clients and cause, as far as there are any."""
        [reason] = reasonsOf(self.results())
        self.assertEqual(
            reason,
            "own, boot boot of broker 1: the replay disagrees in 1,234 of 5,000 decisions, about requests from "
            "2024-01-01T12:03:01 to 2024-01-01T12:03:59. By minute: 1,234 in 2024-01-01T12:03. By client: 1,000 of app "
            "(alice), 34 of before login, and 2 more. Likely cause: it was so.",
        )
        only = {**self.FOUND, "decisions": 0, "missing": 2, "first": "", "after": "", "cause": ""}
        reasons = reasonsOf(self.results(disagreements=[only] * (MAX_REASONS + 2)))
        self.assertEqual(
            reasons[0],
            "own, boot boot of broker 1: the replay disagrees in 0 of 5,000 decisions and does not come to 2 recorded "
            "ones. Why is not known.",
        )
        self.assertEqual(reasons[MAX_REASONS:], ["2 more policies and runs of a server: see evaluation.json."], reasons)
        self.assertEqual(reasonsOf(Results(Path("out"), {})), [])

    def test_remedies(self) -> None:
        """Commands ask the same of a part, or leave out candidates; there are none if they would not help."""
        start = "admission replay '/srv/my recording' --out out-part --candidate client-bytes:produce=4M"
        narrower = {"since": "2024-01-01T12:03:59", "until": "2024-01-02"}
        part, without = remediesOf(self.results(narrower=narrower, modes=[CLOSED, OPEN], sample="10%"))
        self.assertEqual(
            part[1],
            f"{start} --candidate mine=own:1 --pool bounded:8MiB --mode closed,open --sample 10% "
            "--from 2024-01-01T12:03:59 --to 2024-01-02",
        )
        self.assertEqual(without[0], "Or leave out mine: no other answer depends on what disagrees.")
        self.assertEqual(without[1], f"{start} --pool bounded:8MiB --mode closed,open --sample 10% --to 2024-01-02")
        [nothing] = remediesOf(self.results(untrusted=[FITTING, "mine"]))
        self.assertEqual(nothing[1], "")
        self.assertIn("No part before or after", nothing[0])
        facts: dict[str, Any]
        for facts in (
            {"untrusted": []},
            {"disagreements": []},
            {"narrower": narrower, "recordedEvents": 90, "missingEvents": 10},
        ):
            self.assertEqual(list(remediesOf(self.results(**facts))), [])

    def test_told(self) -> None:
        """
        The terminal and the page tell them at once; what is not trusted is labelled, and not advised, however good it
        looks.
        """
        rows = decisionsOf(BASELINE, 0.5) + decisionsOf(FITTING, 0.4) + decisionsOf("mine", 0.1)
        fidelities = [fidelityRow(), fidelityRow(candidate="recorded own", match_share=0.5)]
        results = resultsOf(self.mktemp(), rows, replay_fidelity=fidelities)
        results.directory.joinpath("evaluation.json").write_text(json.dumps(self.FACTS))
        results = Results.open(results.directory)
        verdict = reach(results, Times.of(results))
        self.assertTrue(verdict.advice.startswith(f"Set {FITTING}: "), verdict.advice)
        self.assertNotIn("mine", verdict.advice)
        said, page = summaryOf(results, verdict), pageIn(results.directory)
        [command] = [command for _, command in remediesOf(results) if command]
        for text in (said, textOf(page, "verdict")):
            for words in (*reasonsOf(results), command, "No part before or after"):
                self.assertIn(words, text)
            self.assertLess(text.index(reasonsOf(results)[0]), text.index("Throttled for"))
        self.assertIn("Under mine (untrusted)", said)
        self.assertIsNotNone(page.find(".//p[@class='trust partly']"))
        table = tableRows(page, "Candidates and what was recorded, closed loop")
        self.assertEqual(
            {name: cells[-1] for name, cells in table.items()},
            {BASELINE: "\N{EN DASH}", FITTING: "yes", "mine": "untrusted"},
        )
        self.assertIn("mine (untrusted)", textOf(page, "clients"))
        self.assertIn("mine: the answers about it cannot be trusted.", textOf(page, "verdict"))

    def test_hostile(self) -> None:
        """Whatever is in the file, it is written or left out, and nothing of it is markup or controls the terminal."""
        found: list[Any]
        for found in (
            [7, "x", None],
            [{}],
            [{"clients": [["a", "b"], 5, [1, [2], "3"], ["\x1b[31m", "<i>", 3]], "minutes": "ab", "decisions": "many"}],
            [
                {
                    **self.FOUND,
                    "cause": "<i>\x1b[31m" * 100,
                    "policy": HOSTILE,
                    "first": 5,
                    "after": {},
                    "minutes": [[1, 2]],
                }
            ],
        ):
            facts = {"disagreements": found, "narrower": {"since": ["\x1b"]}, "untrusted": ["\x1b", 5, {}]}
            results = self.results(**facts)
            words = [*reasonsOf(results), *(text for each in remediesOf(results) for text in each)]
            self.assertNotIn("\x1b", "".join(words))
            directory = Path(self.mktemp())
            writeTables(directory, {"replay_fidelity": [fidelityRow(match_share=0.5)]})
            directory.joinpath("evaluation.json").write_text(json.dumps({**self.FACTS, **facts}))
            self.assertEqual({each.tag for each in pageIn(directory).iter()} & {"i", "script"}, set())


class VerdictTests(SynchronousTestCase):
    """Which candidate is to be preferred."""

    def verdict(self, decisions: Sequence[Row], *fidelities: Row) -> Verdict:
        """The verdict on what follows from these decisions."""
        results = resultsOf(self.mktemp(), decisions, replay_fidelity=fidelities or [fidelityRow()])
        return reach(results, Times.of(results))

    def test_cheapest(self) -> None:
        """
        What to set is the candidate that throttles clients for the shortest time and has nothing against it; candidates
        without an estimate come last.
        """
        verdict = self.verdict(someDecisions())
        assert verdict.best is not None and verdict.recorded is not None
        self.assertEqual(verdict.best.label, FITTING)
        self.assertEqual([each.label for each in verdict.standings or ()], [FITTING, STRICT, GENEROUS])
        self.assertEqual(verdict.estimates, [FITTING, STRICT])
        throttled, recorded = (
            duration(sum(row["held_us"] for row in decisionsOf(label, seconds)) / 1e6)
            for label, seconds in ((FITTING, 0.4), (BASELINE, 0.5))
        )
        self.assertEqual(
            verdict.advice,
            f"Set {FITTING}: clients are throttled for {throttled} in all instead of {recorded}, and nobody is worse "
            f"off. Nothing can be said of {GENEROUS}: more than 5 % of the connections ran out of recorded requests. "
            "Record under a limit that throttles less to learn more.",
        )

    def test_keep(self) -> None:
        """
        If no candidate throttles clients less, what is set is kept, and nothing else is advised: that one lets less
        through is no reason to throttle clients more.
        """
        recorded = decisionsOf(BASELINE, 0.5, sizeBytes=100_000)
        strict = decisionsOf("strict", 1, sizeBytes=50_000)
        advice = self.verdict(recorded + strict).advice
        self.assertTrue(advice.startswith("Keep what is set: "), advice)
        self.assertNotIn("strict", advice)
        advice = self.verdict(recorded + decisionsOf("same", 0.5, sizeBytes=100_000)).advice
        self.assertNotIn("set same", advice)

    def test_generous(self) -> None:
        """One that throttles clients less and lets more through is offered first, for a server that can take that."""
        rows = decisionsOf(BASELINE, 0.5) + decisionsOf("wide", 0.1, sizeBytes=60_000)
        self.assertRegex(
            self.verdict(rows).advice,
            "^Set wide if the server can take more: clients are throttled .* Otherwise keep what is set: no candidate",
        )
        # It comes second where another can be set in any case.
        self.assertRegex(
            self.verdict(rows + decisionsOf("other", 0.2)).advice,
            "^Set other: .* Set wide if the server can take more: [^:]*$",
        )

    def test_sameRequests(self) -> None:
        """
        Where a client that matters ran out of recorded requests, and so may send more, a candidate is for a server that
        can take that; what is said of it is about the same requests.
        """
        rows = decisionsOf("wide", 0.1)
        rows[-1]["is_exhausted"] = True
        for row in rows[: -MINUTE_COUNT * 4]:
            # The others have many connections.
            row["is_first"] = True
        verdict = self.verdict(decisionsOf(BASELINE, 0.5) + rows)
        (standing,) = verdict.standings or ()
        self.assertTrue(standing.ranOut and not standing.isForecast)
        self.assertRegex(
            verdict.advice,
            "^Set wide if the server can take more: for the same requests, clients are throttled .* Otherwise keep",
        )
        self.assertIn("ran out of recorded requests, and may send more", standing.objections[0])

    def test_refusedLess(self) -> None:
        """
        Clients that are refused less may send more, so a candidate that refuses fewer requests is for a server that can
        take that, and is no forecast.
        """
        recording = decisionsOf(BASELINE, 0.5)
        for row in recording[1:8:2]:
            row["is_refused"] = True
        verdict = self.verdict(recording + decisionsOf("wide", 0.1))
        (standing,) = verdict.standings or ()
        self.assertEqual(
            standing.objections[-1],
            "it serves 4 requests that were refused as recorded, and clients that are refused less may send more",
        )
        self.assertRegex(
            verdict.advice, "^Set wide if the server can take more: for the same requests, .* refused instead"
        )
        self.assertEqual(list(candidateRows(verdict))[1][-1], "for the same requests")

    def test_losers(self) -> None:
        """The advice names who is worse off."""
        rows = decisionsOf("other", 0.1)
        rows[-1]["held_us"] = 5_000_000
        advice = self.verdict(decisionsOf(BASELINE, 0.5) + rows).advice
        self.assertRegex(advice, r"^Set other: .*, and .* is worse off\.$")

    def test_refusals(self) -> None:
        """Refused requests are told apart from throttled ones, whichever policy refused them."""
        rows = decisionsOf("refusing", 0.1)
        for row in rows[1:8:2]:
            row["is_refused"] = True
        rows[9]["is_barred"] = True
        verdict = self.verdict(decisionsOf(BASELINE, 0.1) + rows)
        [standing] = verdict.standings or ()
        self.assertEqual(standing.total["refused"], 5)
        isThrottled = [row["held_us"] > 0 and not (row["is_refused"] or row["is_barred"]) for row in rows]
        self.assertEqual(standing.total["throttled"], sum(isThrottled))

    def test_censored(self) -> None:
        """A candidate under which clients ran out of requests has no estimate, however cheap it seems."""
        verdict = self.verdict(decisionsOf(BASELINE, 1) + decisionsOf(GENEROUS, 0, exhaustedConnections=1))
        self.assertIsNone(verdict.best)
        [standing] = verdict.standings or ()
        [objection] = standing.objections
        self.assertIn("no point estimate: 25 % of its connections", objection)
        self.assertTrue(verdict.advice.startswith("Keep what is set"), verdict.advice)

    def test_busiest(self) -> None:
        """
        One that lets more through in the busiest minute is none to prefer, but
        a little more is what delays move from one minute to the next.
        """
        recorded = decisionsOf(BASELINE, 1, sizeBytes=100_000)
        for sizeBytes, isGood in ((100_500, True), (103_000, False)):
            verdict = self.verdict(recorded + decisionsOf("other", 0.1, sizeBytes=sizeBytes))
            self.assertEqual(verdict.best is not None, isGood)
        [standing] = verdict.standings or ()
        self.assertIn("in the busiest minute it lets", standing.objections[0])

    def test_servers(self) -> None:
        """The busiest minute is that of one server, and of all together only where they enforced limits together."""
        recorded = decisionsOf(BASELINE, 1, sizeBytes=100_000)
        spread = [decisionsOf("other", 0.1, sizeBytes=90_000, broker=broker) for broker in ("1", "2")]
        self.assertIsNotNone(self.verdict([*recorded, *spread[0], *spread[1]]).best)
        results = resultsOf(self.mktemp(), [*recorded, *spread[0], *spread[1]], replay_fidelity=[fidelityRow()])
        facts = {"sharedRuns": [{"runs": 2, "counted": 2, "isComplete": True}], "shared": ["other"]}
        (results.directory / EVALUATION).write_text(json.dumps(facts))
        results = Results.open(results.directory)
        self.assertIsNone(reach(results, Times.of(results)).best)

    def test_starved(self) -> None:
        """One that refuses a client everything for a minute is none to prefer."""
        rows = decisionsOf("refusing", 0.1)
        for row in rows[:4]:
            row["is_refused"] = True
        verdict = self.verdict(decisionsOf(BASELINE, 1) + rows)
        [standing] = verdict.standings or ()
        self.assertEqual(standing.starvedMinutes, 1)
        refuses, starves = standing.objections
        self.assertEqual(refuses, "it refuses 4 requests, and 0 were refused as recorded")
        self.assertIn("got nothing in 1 minute, and in 0 as recorded", starves)

    def test_noRecording(self) -> None:
        """Without what was recorded candidates are compared with nothing."""
        verdict = self.verdict(decisionsOf("small", 0.1, sizeBytes=30_000))
        self.assertIsNone(verdict.best)
        self.assertIn("is not known", (verdict.standings or ())[0].objections[0])
        self.assertIn("nothing to advise", verdict.advice)

    def test_refuted(self) -> None:
        """Nothing is preferred if replays are not to be believed, and with a doubt if that is not known."""
        refuted = self.verdict(someDecisions(), fidelityRow(match_share=0.5))
        self.assertIsNone(refuted.best)
        self.assertIn("nothing is advised", refuted.advice)
        untested = self.verdict(someDecisions(), fidelityRow(throttled=0))
        self.assertIn(f"which is not proven: Set {FITTING}: ", untested.advice)

    def test_nobody(self) -> None:
        """Without candidates there is none to prefer."""
        verdict = self.verdict(decisionsOf(BASELINE, 1))
        self.assertEqual(verdict.standings, [])
        self.assertIn("nothing to advise", verdict.advice)


class SharingTests(SynchronousTestCase):
    """What is said of servers that enforced limits together."""

    LABELS = (FITTING, STRICT)

    def results(self, *groups: Row, labels: Sequence[str] = LABELS) -> Results:
        """Results of candidates whose limits can be enforced so, with groups of runs."""
        directory = self.mktemp()
        results = resultsOf(directory, someDecisions(), replay_fidelity=[fidelityRow()])
        Path(directory, EVALUATION).write_text(json.dumps({"sharedRuns": groups, "shared": labels}))
        return Results.open(results.directory)

    def test_together(self) -> None:
        """How many runs were replayed together, and what is known of their clocks, at the terminal and on the page."""
        group = {"runs": 2, "counted": 2, "isComplete": True, "clocksDifferBySeconds": 0.04}
        results = self.results(group, {**group, "runs": 3, "clocksDifferBySeconds": None})
        said = summaryOf(results, reach(results, Times.of(results)))
        page = textOf(pageIn(results.directory))
        for words in (
            f"Under {FITTING} and {STRICT} 2 runs that enforced limits together were replayed together. By their "
            "clocks the same limit was set at all of them within 40 ms.",
            f"Under {FITTING} and {STRICT} 3 runs that enforced limits together were replayed together. How far their "
            "clocks differ is not known, since no limit was set while they ran.",
        ):
            self.assertIn(words, said)
            self.assertIn(words, page)
        self.assertIn("Their clocks are believed: if one is wrong by a second", page)
        self.assertIn("told what clients have taken at the others every 0.1 s", page)

    def test_incomplete(self) -> None:
        """Where servers are not in the recording that is said, and such a candidate is not what to set."""
        group = {"runs": 2, "counted": 3, "isComplete": False, "clocksDifferBySeconds": None}
        results = self.results(group)
        verdict = reach(results, Times.of(results))
        said = summaryOf(results, verdict)
        self.assertIn("Servers enforced limits together and counted 3, and the recording has 2 runs of them", said)
        self.assertNotIn("Their clocks are believed", textOf(pageIn(results.directory)))
        self.assertIsNone(verdict.best)
        objections = {each.label: each.objections for each in verdict.standings or ()}
        for label in self.LABELS:
            self.assertIn("servers that would enforce its limits, too, are not in the recording", objections[label])

    def test_alone(self) -> None:
        """A candidate that lacks what has servers enforce limits together is named."""
        directory = self.results().directory
        Path(directory, EVALUATION).write_text(json.dumps({"alone": [FITTING]}))
        results = Results.open(directory)
        said = summaryOf(results, reach(results, Times.of(results)))
        self.assertIn(f"Under {FITTING} each server enforces all of every limit alone", said)

    def test_others(self) -> None:
        """Nothing is said where no candidate's limits can be enforced so, or no server did it."""
        group = {"runs": 2, "counted": 3, "isComplete": False, "clocksDifferBySeconds": None}
        for results in (self.results(group, labels=()), self.results()):
            verdict = reach(results, Times.of(results))
            self.assertNotIn("together", summaryOf(results, verdict))
            assert verdict.best is not None
            self.assertEqual(verdict.best.label, FITTING)


class DifferenceTests(SynchronousTestCase):
    """The clients that gain and those that lose."""

    def differences(self, rows: Sequence[Row]) -> Differences:
        """What the candidate C{tried} changes."""
        found = differencesOf(resultsOf(self.mktemp(), rows), "tried")
        assert found is not None
        return found

    def test_order(self) -> None:
        """The largest difference is first, be it a gain or a loss, and clients without one are only counted."""
        recorded, tried = decisionsOf(BASELINE, 0.0), decisionsOf("tried", 0.0)
        recorded[0]["held_us"], tried[0]["held_us"] = 5_000_000, 4_000_000
        tried[MINUTE_COUNT * 4]["held_us"] = 3_000_000
        tried[2 * MINUTE_COUNT * 4]["is_refused"] = True
        differences = self.differences(recorded + tried)
        self.assertEqual(
            [(each.name.split()[-1], each.cells()[1:], each.gain) for each in differences.changed],
            [
                ("(mallory)", ("0 s", "3 s", "+3 s", "0", "0", "0"), -1),
                ("(alice)", ("5 s", "4 s", "\N{MINUS SIGN}1 s", "0", "0", "0"), 1),
                ("(bob)", ("0 s", "0 s", "0 s", "0", "1", "+1"), -1),
            ],
        )
        self.assertEqual(differences.inWords(), "1 client gains, 2 clients lose, and for 1 nothing changes.")
        self.assertEqual(differences.beyond(3), "")
        self.assertEqual(differences.beyond(1), "2 more clients with smaller differences: see replay_client.")

    def test_mixed(self) -> None:
        """
        A client whose time is shorter while more of its requests are refused neither gains nor loses, and a hundredth
        of the time is no difference.
        """
        recorded, tried = decisionsOf(BASELINE, 0.0), decisionsOf("tried", 0.0)
        recorded[0]["held_us"], tried[0]["held_us"], tried[1]["is_refused"] = 5_000_000, 4_000_000, True
        other = MINUTE_COUNT * 4
        recorded[other]["held_us"], tried[other]["held_us"] = 5_000_000, 5_040_000
        differences = self.differences(recorded + tried)
        self.assertEqual((differences.changed, differences.losersInWords()), ([], "nobody is worse off"))

    def test_ranOut(self) -> None:
        """Of a client that ran out of recorded requests it is said that more is not known."""
        recorded, tried = decisionsOf(BASELINE, 0.0), decisionsOf("tried", 0.0)
        recorded[0]["held_us"], tried[0]["held_us"], tried[0]["is_exhausted"] = 5_000_000, 4_000_000, True
        differences = self.differences(recorded + tried)
        (difference,) = differences.changed
        self.assertEqual(difference.cells()[2:4], (f"{AT_LEAST}4 s", f"{AT_LEAST}\N{MINUS SIGN}1 s"))
        self.assertIn("ran out of recorded requests", differences.ranOut)

    def test_beforeLogin(self) -> None:
        """Connections before their login are no client, whatever they call themselves."""
        rows = [*decisionsOf(BASELINE, 0.0, minutes=1), *decisionsOf("tried", 0.0, minutes=1)]
        for row in rows[-4:] + rows[12:16]:
            row.update(principal="ANONYMOUS", client_id="app", kind="SaslAuthenticate", is_refused=True)
        rows[-1]["kind"] = rows[15]["kind"] = "connection"
        rows[15]["is_refused"] = rows[-1]["is_refused"] = False
        rows[-1]["held_us"] = 9_000_000
        differences = self.differences(rows)
        self.assertEqual([each.name for each in differences.changed], ["before login"])
        self.assertEqual(differences.inWords(), "no client gains, no client loses, and for 3 nothing changes.")


class LinesTests(SynchronousTestCase):
    """What is plotted."""

    def timeline(self, *arguments: Any) -> Timeline:
        found = Timeline.over(*arguments)
        assert found is not None
        return found

    def test_steps(self) -> None:
        """Long times are taken in steps that begin with the hour, and nothing of sums is lost."""
        minutes = [7 + 13 * each for each in range(100)]
        table = pa.table({"begin": [at(each) for each in minutes], "n": [1.0] * 100})
        timeline = self.timeline([table, None])
        self.assertEqual(timeline.stepSeconds, 600)
        self.assertLessEqual(timeline.points, MAX_POINTS)
        self.assertEqual(str(timeline.moments[0]), "2024-01-01T12:00:00")
        self.assertEqual(timeline.values(table, "n", np.add, 0.0).sum(), 100)
        self.assertEqual(np.isnan(timeline.values(table, "n", np.fmax)[:3]).tolist(), [False, True, False])

    def test_years(self) -> None:
        """However long it is, there are not too many points."""
        table = pa.table({"begin": [BEGIN, BEGIN + timedelta(days=4000)]})
        timeline = self.timeline([table])
        self.assertLessEqual(timeline.points, MAX_POINTS + 1)
        self.assertIsNone(Timeline.over([None, table.slice(0, 0)]))

    def test_short(self) -> None:
        """
        A recording of some minutes is shown in steps of five seconds, of which the first and the
        last may be partial.
        """
        table = pa.table({"begin": [at(0), at(2)], "n": [1.0, 1.0]})
        begin = BEGIN.timestamp()
        timeline = self.timeline([table], 5, (begin + 2, begin + 121))
        self.assertEqual((timeline.stepSeconds, timeline.points), (5, 25))
        self.assertEqual(np.flatnonzero(timeline.isPartial).tolist(), [0, 24])
        timeline = self.timeline([table], 5, (begin, begin + 124.8))
        self.assertFalse(timeline.isPartial.any())

    def test_poolEnds(self) -> None:
        """A server's memory is shown from the first request to the last; a replay may go on for longer."""
        recorded = pa.table({"begin": [at(each) for each in range(60)], "used_max": [1.0] * 60})
        replays = pa.table({"candidate": ["a"] * 2, "begin": [at(30), at(32)], "used_max_bytes": [1.0] * 2})
        begin = BEGIN.timestamp()
        first, replayed = poolLines(["a"], replays, recorded, 60, (begin + 29.5 * 60, begin + 31.2 * 60))
        self.assertEqual([str(each)[11:16] for each in first.places], ["12:29", "12:30", "12:31", "12:32"])
        self.assertEqual(first.known.tolist(), [1.0] * 3)
        self.assertEqual(np.isnan(replayed.values).tolist(), [True, False, True, False])
        (whole,) = poolLines([], None, recorded)
        self.assertEqual(len(whole.places), 60)

    def test_busiestMinute(self) -> None:
        """The busiest minute is a minute, however short the steps are, and whatever the clock says when it begins."""
        found = []
        for shiftUs in (0, -31_000_000, 17_000_000):
            rows = decisionsOf("any", 0.0, minutes=4)
            for row in rows:
                row["wall_us"] += shiftUs
                # Half a minute with more than all others lies across two of the clock's.
                if 45_000_000 <= row["at_us"] < 90_000_000:
                    row["request_bytes"] *= 3
            times = evolve(Times.of(resultsOf(self.mktemp(), rows, 5)), stepSeconds=5)
            self.assertGreater(len(set(times.table["begin"].to_pylist())), 4)
            found.append(busiestBytes(times))
        busy = [row for row in rows if 45_000_000 <= row["at_us"] < 105_000_000]
        self.assertEqual(found, [{"any": sum(row["request_bytes"] for row in busy)}] * 3)

    def test_whole(self) -> None:
        """What is least or most of a line is that of whole steps, unless there are none."""
        values, isPartial = np.array([0.1, 0.7, np.nan, 0.9]), np.array([True, False, False, False])
        self.assertEqual(Line("any", values, values, isPartial).whole.tolist(), [0.7, 0.9])
        self.assertEqual(Line("any", values, values, np.ones(4, bool)).whole.tolist(), [0.1, 0.7, 0.9])
        self.assertEqual(Line("any", values, values).whole.tolist(), [0.1, 0.7, 0.9])

    def test_shortRecording(self) -> None:
        """Of a recording with few minutes all bytes are compared."""
        rows = decisionsOf("any", 0.0, minutes=2)
        times = evolve(
            Times.of(resultsOf(self.mktemp(), rows, 5)), covered=(BEGIN.timestamp(), BEGIN.timestamp() + 120.0)
        )
        self.assertEqual(busiestBytes(times), {"any": sum(row["request_bytes"] for row in rows)})

    def test_gaps(self) -> None:
        """A minute without rows has no extremes, and a sum of zero."""
        table = pa.table({"begin": [at(0), at(2), at(2)], "n": [3.0, None, 5.0]})
        timeline = self.timeline([table])
        most, least = timeline.values(table, "n", np.fmax), timeline.values(table, "n", np.fmin)
        self.assertEqual([np.isnan(most[1]), most[0], most[2], least[2]], [True, 3.0, 5.0, 5.0])
        self.assertEqual(timeline.values(table.slice(0, 1), "n", np.add, 0.0).tolist(), [3.0, 0.0, 0.0])

    def test_jain(self) -> None:
        """
        The index is of the clients that wanted something, on the least fair
        server; where nobody was admitted anything there is none.
        """
        rows = decisionsOf("any", 0, minutes=1)
        for row in rows:
            row["request_bytes"] = 100 if row["principal"] == "alice" else 0
            row["is_refused"] = False
        others = decisionsOf("any", 0, minutes=2, broker="2")
        for row in others:
            row["request_bytes"] = {"alice": 300, "bob": 100, "mallory": 100}.get(row["principal"], 0)
            row["is_refused"] = row["principal"] == "mallory" or row["at_us"] >= 60_000_000
        [line] = fairnessLines(["any"], Times.of(resultsOf(self.mktemp(), rows + others)))
        self.assertEqual(line.values[0], 400**2 / (3 * (300**2 + 100**2)))
        self.assertTrue(np.isnan(line.values[1]))

    def test_delays(self) -> None:
        """
        Each point is the share of requests that are throttled for longer, and
        nobody that is throttled means no line.
        """
        histogram = pa.table(
            {"candidate": ["a", "a", "a", "a", "b"], "bucket_us": [0, 2000, 1_000_000, None, 0], "n": [5, 2, 2, 1, 7]}
        )
        first, second = delayLines(["a", "b", "c"], histogram)
        self.assertEqual(first.places.tolist(), [0.002, 1.0])
        self.assertEqual(first.values.tolist(), [0.3, 0.1])
        self.assertEqual(second.values.tolist(), [0.0, 0.0])
        self.assertEqual(delayLines(["b"], histogram.slice(4)), [])
        self.assertEqual(delayLines(["a"], None), [])


class PlotTests(SynchronousTestCase):
    """How it is plotted."""

    def plot(self, labels: Sequence[str], points: int = 3, name: str = "plot") -> Plot:
        """Lines that rise."""
        moments = (np.arange(points) + 28_401_120).astype("datetime64[m]")
        lines = [Line(label, moments, np.arange(points) * (place + 1.0)) for place, label in enumerate(labels)]
        return Plot(name, "A title", "a unit", lines, lambda line: f"{line.most:g} at most")

    def test_size(self) -> None:
        """
        A plot of as many lines and points as there may be stays small, and has
        its text as text, its colours from the page and no identity twice.
        """
        text = markup(self.plot([f"candidate {each}" for each in range(MAX_LINES)], MAX_POINTS).tag())
        self.assertLess(len(text), 60_000)
        root = ElementTree.fromstring(text)
        texts = ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("}text")]
        self.assertIn("a unit", texts)
        self.assertEqual(set(re.findall(r"#[0-9a-f]{6}\b", text)), set())
        identities = re.findall(r'\bid="([^"]*)"', text)
        self.assertEqual(len(set(identities)), len(identities))
        self.assertNotIn("<style", text)

    def test_onePoint(self) -> None:
        """A single point is visible, and the axis has its minute and not years."""
        low, high = self.plot(["a"], points=1).figure().axes[0].get_xlim()
        self.assertAlmostEqual((high - low) * 24 * 60, 2)
        self.assertIn("<use", markup(self.plot(["a"], points=1).tag()).split('data-line="plot:a"')[1])

    def test_labels(self) -> None:
        """A label is text, whatever it looks like, and what there are too many of is said."""
        labels = ["$x$", "<b>", *map(str, range(MAX_LINES))]
        text = markup(self.plot(labels).tag())
        self.assertIn("$x$</bdi>: 2 at most", text)
        self.assertIn("&lt;b&gt;</bdi>: 4 at most", text)
        self.assertNotIn("<b>", text)
        self.assertIn("2 candidates are left out", text)

    def test_scaled(self) -> None:
        """Bytes are in the unit of the largest, and exactly so."""
        lines, unit, _ = scaled([Line("a", np.arange(2), np.array([1024.0**2, np.nan]))])
        self.assertEqual((lines[0].values[0], unit), (1.0, "MiB"))
        self.assertEqual(scaled([])[1], "B")


@cache
def everything() -> tuple[Path, ElementTree.Element]:
    """Results of every kind, and the report on them."""
    scratch = tempfile.TemporaryDirectory(prefix="admission-report-")
    atexit.register(scratch.cleanup)
    directory = Path(scratch.name)
    writeEverything(directory)
    return directory, pageIn(directory)


class PageTests(SynchronousTestCase):
    """The page on results of every kind."""

    def setUp(self) -> None:
        """One for all tests, none of which changes anything."""
        self.directory, self.page = everything()

    def rows(self, name: str, **wanted: Any) -> list[Row]:
        """The rows of a result, read without the report's own means."""
        rows = parquet.read_table(self.directory / f"{name}.parquet").to_pylist()
        return [row for row in rows if all(row[key] == value for key, value in wanted.items())]

    def check(self, plot: str, expected: dict[str, list[tuple[float, float]]], unit: float = 1) -> None:
        """
        The points of all lines are where these values are: there is one scale
        for each axis that takes all of them there, and along the vertical one
        numbers of this unit are written accordingly.
        """
        values, drawn = [], []
        for label, points in expected.items():
            found = drawnPoints(self.page, f"{plot}:{label}")
            self.assertEqual(len(found), len(points), label)
            values += points
            drawn += found
        for axis in (0, 1):
            given, placed = ([point[axis] for point in points] for points in (values, drawn))
            slope, offset = np.polyfit(given, placed, 1)
            self.assertGreater(abs(slope), 0)
            for value, place in zip(given, placed, strict=True):
                self.assertLess(abs(slope * value + offset - place), 0.01, (plot, value))
        written = verticalNumbers(self.page, plot)
        self.assertGreater(len(written), 3)
        for (value, place), (nextValue, nextPlace) in pairwise(written):
            self.assertLess(abs(slope * (nextValue - value) * unit - (nextPlace - place)), 0.01, (plot, value))

    def test_held(self) -> None:
        """The time throttled is drawn as it is in the results, as recorded and for each candidate with an estimate."""
        expected = {}
        for label in (BASELINE, FITTING, STRICT):
            throttled: dict[datetime, int] = defaultdict(int)
            for row in self.rows("replay_time", candidate=label, mode=CLOSED):
                throttled[row["begin"]] += row["throttle_us"]
            expected[label] = [((begin - BEGIN).seconds, throttled[begin] / 1e6) for begin in sorted(throttled)]
        self.check("throttle", expected)
        self.assertRaises(AssertionError, drawnPoints, self.page, f"throttle:{GENEROUS}")

    def test_delays(self) -> None:
        """So are the lengths of delays."""
        bounds = sorted({row["bucket_us"] for row in self.rows("replay_delay_hist", mode=CLOSED) if row["bucket_us"]})
        expected = {}
        for label in (BASELINE, FITTING, STRICT):
            rows = self.rows("replay_delay_hist", candidate=label, mode=CLOSED)
            total = sum(row["n"] for row in rows)
            longer = [sum(row["n"] for row in rows if row["bucket_us"] > bound) for bound in bounds]
            expected[label] = [(log10(bound), 100 * n / total) for bound, n in zip(bounds, longer, strict=True)]
        self.check("delays", expected)

    def test_fairness(self) -> None:
        """So is Jain's index."""
        expected = {}
        for label in (BASELINE, FITTING, STRICT):
            clients: dict[datetime, list[int]] = defaultdict(list)
            for row in self.rows("replay_time", candidate=label, mode=CLOSED):
                clients[row["begin"]].append(row["admitted_bytes"])
            expected[label] = [
                ((minute - BEGIN).seconds, sum(each) ** 2 / len(each) / sum(number**2 for number in each))
                for minute, each in sorted(clients.items())
            ]
        self.check("fairness", expected)

    def test_pool(self) -> None:
        """So is the memory taken."""
        rows = self.rows("replay_pool_time", candidate="bounded:16MiB")
        expected = {
            BASELINE: [((row["begin"] - BEGIN).seconds, row["used_max"]) for row in self.rows("pool_time")],
            "bounded:16MiB": [((row["begin"] - BEGIN).seconds, row["used_max_bytes"]) for row in rows],
        }
        self.check("pool", expected, 1024**2)
        self.assertRaises(AssertionError, drawnPoints, self.page, "pool:bounded:1GiB")

    def test_verdict(self) -> None:
        """
        The verdict comes first: whether to believe it, which to prefer, whom it
        costs what, and what is against the others.
        """
        sections = [each.get("id") for each in self.page.iter("section")]
        self.assertEqual(sections[0], "verdict")
        text = textOf(self.page, "verdict")
        self.assertIn("These answers can be trusted. ", text)
        self.assertIn("100 % of 1,000 decisions", text)
        self.assertIn(f"Set {FITTING}: ", text)
        self.assertIn(f"{GENEROUS}: no point estimate: 75 % of its connections ran out", text)

    def test_candidates(self) -> None:
        """Candidates stand beside what was recorded with their figures, and without any where there is no estimate."""
        rows = tableRows(self.page, "Candidates and what was recorded, closed loop")
        self.assertEqual(list(rows), [BASELINE, FITTING, STRICT, GENEROUS])
        [recorded] = self.rows("replay_summary", candidate=BASELINE, mode=CLOSED)
        for label, difference in ((BASELINE, "0 s"), (STRICT, None)):
            [total] = self.rows("replay_summary", candidate=label, mode=CLOSED)
            self.assertEqual(
                [*rows[label][:7], *rows[label][8:9]],
                [
                    duration(total["throttle_s"]),
                    difference or f"+{duration(total['throttle_s'] - recorded['throttle_s'])}",
                    duration(total["most_throttle_s"]),
                    duration(total["p99_throttle_s"]),
                    "192",
                    f"{total['throttled']} ({share(total['throttled'] / total['requests'])})",
                    "0 (0 %)",
                    "0 %",
                ],
            )
        self.assertEqual([row[-1] for row in rows.values()], ["\N{EN DASH}", "yes", "yes", "no"])
        self.assertEqual(rows[GENEROUS], ["no point estimate", *["\N{EN DASH}"] * 7, "75 %", "no"])

    def test_clients(self) -> None:
        """Under each candidate stand the clients that gain or lose, with what was recorded of them."""
        throttled, recorded = (
            {
                client(row["principal"], row["client_id"]): row["throttle_s"]
                for row in self.rows("replay_client", candidate=label, mode=CLOSED)
            }
            for label in (STRICT, BASELINE)
        )
        rows = tableRows(self.page, f"Clients that gain or lose under {STRICT}: the largest difference first")
        self.assertEqual(
            list(rows),
            sorted((name for name in throttled if throttled[name]), key=lambda name: recorded[name] - throttled[name]),
        )
        for name, cells in rows.items():
            self.assertEqual(cells[:2], [duration(recorded[name]), duration(throttled[name])])
        self.assertIn("No client gains, 3 clients lose, and for 1 nothing changes", textOf(self.page, "clients"))

    def test_terminal(self) -> None:
        """The terminal has the page's numbers, under the same names."""
        results = Results.open(self.directory)
        verdict = reach(results, Times.of(results))
        said = summaryOf(results, verdict)
        self.assertTrue(said.startswith(f"{verdict.gate.sentence}\n{verdict.advice}\n"), said)
        lines = [re.split(r" {2,}", line) for line in said.splitlines()]
        heads: dict[str, list[str]] = {}
        for caption, first in (
            ("Candidates and what was recorded, closed loop", "Candidate"),
            ("The pool as recorded, and others in its place", "Pool"),
        ):
            onPage = tableRows(self.page, caption)
            [place] = [place for place, line in enumerate(lines) if line[0] == first and place < len(lines) - 1][
                :1
            ] or [0]
            heads[first] = lines[place]
            allHeads = self.heads(caption)
            for line in lines[place + 1 : place + 1 + len(onPage)]:
                cells = [onPage[line[0]][allHeads.index(head) - 1] for head in lines[place][1:]]
                self.assertEqual(line[1:], cells)
        self.assertIn("Requests refused", heads["Candidate"])

    def heads(self, caption: str) -> list[str]:
        """The titles of the columns of a table."""
        [found] = [each for each in self.page.iter("table") if "".join(each[0].itertext()) == caption]
        return ["".join(cell.itertext()) for cell in next(found.iter("tr"))]

    def test_longest(self) -> None:
        """The longest time throttled is one number, wherever it stands."""
        longest = tableRows(self.page, "Candidates and what was recorded, closed loop")[STRICT][2]
        self.assertEqual(tableRows(self.page, "Fairness and starvation")[STRICT][2], longest)
        self.assertRegex(textOf(self.page, "throttling"), f"{re.escape(STRICT)}: [^:]*, the longest for {longest}")

    def test_fairnessTable(self) -> None:
        """How fair each candidate is stands beside the recording, but for those without a forecast."""
        rows = tableRows(self.page, "Fairness and starvation")
        self.assertEqual(list(rows), [BASELINE, FITTING, STRICT])
        longest = max(row["most_throttle_us"] for row in self.rows("replay_time", candidate=STRICT, mode=CLOSED))
        self.assertEqual(rows[STRICT][1:], ["0", duration(longest / 1e6)])

    def test_openLoop(self) -> None:
        """Open-loop figures stand apart, and are said to be none to rely on."""
        [total] = self.rows("replay_summary", candidate=STRICT, mode=OPEN)
        self.assertIn("The same offered arrivals This is no forecast.", textOf(self.page, "open-loop"))
        rows = tableRows(self.page, "Candidates for the same offered arrivals")
        self.assertEqual(rows[STRICT][0], duration(total["throttle_s"]))
        self.assertNotIn(duration(total["throttle_s"]), textOf(self.page, "verdict"))

    def test_checks(self) -> None:
        """What was recorded, audits, the gate, and what is missing are there with their figures."""
        self.assertEqual(tableRows(self.page, "Clients with the most requests")["app (alice)"], ["1,000", "40 %"])
        self.assertEqual(
            tableRows(self.page, "Clients with the most throttle time told")["batch (bob)"], ["5 min 33 s", "13.3 %"]
        )
        policies = tableRows(self.page, "What each policy said, shadow policies included")
        self.assertEqual(policies, {"client-bytes": ["162", "30 (18.5 %)", "12 (7.4 %)", "100 ms to 200 ms"]})
        audits = textOf(self.page, "audit")
        self.assertIn("Asked 150 times, the filter took 3 of 54 new producers for known (5.6 %)", audits)
        self.assertIn("quotas are exceeded by 2.3 % at most", audits)
        self.assertEqual(
            tableRows(self.page, "Memory of each run")["boot of broker 1"],
            ["40 MiB", "90 MiB", "45 MiB", "3 MiB", "5 MiB", "1 MiB"],
        )
        gate = tableRows(self.page, "The identity gate, closed loop: the worst first")
        self.assertEqual(gate[RECORDED_POLICY][1:4], ["yes", "100.000 %", "1,000"])
        missing = textOf(self.page, "missing")
        self.assertIn("3 of 195 rows of requests left out: it happened at no time.", missing)
        self.assertNotIn("it has no place", missing)
        asked = textOf(self.page, "asked")
        for words in (
            "Recording /srv/recording",
            f"Candidates {STRICT}",
            "Pools roomy: bounded:8MiB",
            "Notes a note",
            "evaluation.json has all of it",
        ):
            self.assertIn(words, asked)
        self.assertNotIn("seqGaps", asked)

    def test_pools(self) -> None:
        """Pools stand beside the recorded one, and whose wait was longest."""
        rows = tableRows(self.page, "The pool as recorded, and others in its place")
        self.assertEqual(rows[BASELINE][1:4], ["2.5 %", "192", str(4 * MINUTE_COUNT)])
        self.assertEqual(rows["bounded:16MiB"], ["16 MiB", "3.1 %", "192", "12", "120 ms", "150 ms", "0", "0", "0 %"])
        self.assertEqual(rows["bounded:1GiB"][0], "no point estimate")
        self.assertIn(f"the longest wait is that of {client('mallory', HOSTILE)}, 150 ms", textOf(self.page, "pool"))

    def test_files(self) -> None:
        """Every result is linked to, and every link leads to one."""
        links = {unquote(each.get("href") or "") for each in self.page.iter("a")}
        written = {path.name for path in self.directory.iterdir()} - {"report.html"}
        self.assertEqual(links, written)
        words = {table.name: table.words for table in OUTPUTS}
        rows = len(self.rows("top_clients"))
        self.assertIn(f"top_clients: {rows} rows, each {words['top_clients']}: ", textOf(self.page, "files"))

    def test_hostile(self) -> None:
        """A client id is text wherever it stands, and nothing else."""
        text = self.directory.joinpath("report.html").read_text("utf-8")
        self.assertGreater(text.count("&lt;script&gt;alert('x')"), 5)
        for each in ("<script", "\x1b", "\u202e", "y" * 81):
            self.assertNotIn(each, text)

    def test_nothingElse(self) -> None:
        """The page has no script and names nothing to be fetched, and tells the browser that it wants neither."""
        self.assertEqual([each.tag for each in self.page.iter() if each.tag in ("script", "img", "link", "iframe")], [])
        for each in self.page.iter():
            for name, value in each.attrib.items():
                if name.endswith(("href", "src")):
                    self.assertNotIn("//", value)
                self.assertFalse(name.startswith("on"), name)
        [policy] = [each.get("content") for each in self.page.iter("meta") if each.get("http-equiv")]
        self.assertIn("default-src 'none'", policy or "")
        self.assertNotIn("url(", "".join(self.page.find("head/style").itertext()))  # type: ignore[union-attr]

    def test_described(self) -> None:
        """
        Each plot has a name and a caption with its figures, each table a
        caption, and headings descend one at a time.
        """
        figures = list(self.page.iter("figure"))
        self.assertEqual(len(figures), 4)
        for figure in figures:
            [svg] = [each for each in figure if each.get("role") == "img"]
            self.assertTrue(svg.get("aria-label"))
            self.assertRegex(textOf(figure), r"recorded: .*\d|" + re.escape(FITTING) + r": .*\d")
        for table in self.page.iter("table"):
            self.assertEqual(table[0].tag, "caption")
        levels = [int(each.tag[1]) for each in self.page.iter() if re.fullmatch("h[1-6]", each.tag)]
        self.assertEqual(levels[0], 1)
        self.assertTrue(all(after - before <= 1 for before, after in pairwise(levels)))
        identities = [each.get("id") for each in self.page.iter() if each.get("id")]
        self.assertEqual(len(set(identities)), len(identities))

    def test_style(self) -> None:
        """The style sheet has nothing in it that would be escaped."""
        style = "".join(self.page.find("head/style").itertext())  # type: ignore[union-attr]
        self.assertEqual(set("<>&") & set(style), set())


class ChangedPageTests(SynchronousTestCase):
    """The page on results of which some are other ones."""

    def setUp(self) -> None:
        """A directory with results of every kind."""
        self.directory = Path(self.mktemp())
        writeEverything(self.directory)

    def test_poolRuns(self) -> None:
        """Runs of servers are added up; of waits the longest counts."""
        place = {"candidate": "bounded:1MiB", "boot_id": "boot", **dict.fromkeys(TOTALS.names, 0)}
        first = {"span_us": 100, "depleted_share": 0.5, "wait_max_us": 2000, "waits": 1, "requests": 10}
        second = {"span_us": 300, "depleted_share": 0.1, "wait_p99_us": None, "wait_max_us": None, "requests": 5}
        rows = [{**place, "broker_id": "1", **first}, {**place, "broker_id": "2", **second}]
        writeTables(self.directory, {"replay_pool": rows})
        page = pageIn(self.directory)
        cells = tableRows(page, "The pool as recorded, and others in its place")["bounded:1MiB"]
        self.assertEqual(cells[1:6], ["20 %", "15", "1", "0 s", "2 ms"])
        self.assertNotIn("What is called recorded", textOf(page, "pool"))

    def test_recordedPool(self) -> None:
        """A replay of the pool that was there is said to be that; where nobody waited for memory, that is said, too."""
        pools = parquet.read_table(self.directory / "replay_pool.parquet").to_pylist()
        minutes = parquet.read_table(self.directory / "fairness_minute.parquet").to_pylist()
        writeTables(
            self.directory,
            {
                "replay_pool": [{**row, "candidate": "recorded bounded"} for row in pools],
                "fairness_minute": [{**row, "pool_wait_max_us": 0, "pool_wait_p999_us": 0.0} for row in minutes],
            },
        )
        page = pageIn(self.directory)
        self.assertIn("What is called recorded NAME is the pool that was there", textOf(page, "pool"))
        self.assertIn("As recorded, nobody waited for memory.", textOf(page, "fairness"))

    def test_noSpark(self) -> None:
        """A report needs no Spark, be it installed or not."""
        program = (
            "import sys\n"
            "sys.modules['pyspark'] = None\n"
            "from admission.offline.report.writing import writeReport\n"
            "writeReport(sys.argv[1])\n"
        )
        subprocess.run([sys.executable, "-c", program, self.directory], check=True, timeout=120)
        self.assertTrue((self.directory / "report.html").exists())

    def test_gaps(self) -> None:
        """Events that are missing are told of, and the share of requests after them."""
        decisions = decisionsOf(RECORDED_POLICY, 1) + decisionsOf("other", 1)
        for row in decisions[-48:]:
            row["is_poisoned"] = True
        writeTables(self.directory, {**replayTables(decisions), "replay_fidelity": [fidelityRow(seq_gaps=2)]})
        text = textOf(pageIn(self.directory), "missing")
        self.assertIn("missing in 2 places", text)
        self.assertIn("Up to 25 % of a candidate's requests", text)

    def test_assumptions(self) -> None:
        """What is taken for granted is said."""
        text = textOf(pageIn(self.directory), "assumptions")
        for words in ("closed loops", "keep the delays and refusals", "cut off at the longest", "takes as long"):
            self.assertIn(words, text)

    def test_asked(self) -> None:
        """
        What depends on what was asked is said only then: that a sample of the clients was taken, that what policies
        say that follow requests is approximate, that a server enforced a share of its limits, and that there are more
        requests than policies were asked about.
        """
        plain = textOf(pageIn(self.directory))
        approximate = "Approximate, because they want to know which requests are under way"
        for facts, words, rest in (
            ('"sample": "10%"', "a sample of the clients was taken", " (10%)"),
            (_SAMPLED, "All clients, mine: throttled for 12.5 s ± 20 %", ", requests throttled: not known, since the"),
            (
                f'{_SAMPLED}, "largestLeftOut": 0.17',
                "say nothing of all clients",
                ", since one that is left out sent 17 %",
            ),
            ('"approximate": ["at-most:1", "<b>"]', approximate, ": at-most:1, <b>."),
            (
                '"recording": "a", "requests": 262',
                "(policies were asked about",
                " 192 of them; not about logins, for instance)",
            ),
            ('"runs": [{"limitShare": 0.5}, {"limitShare": 0.5}]', "limits are enforced by a share of", " 1/2"),
        ):
            self.assertNotIn(words, plain)
            self.directory.joinpath("evaluation.json").write_text(f"{{{facts}}}")
            self.assertIn(words + rest, textOf(pageIn(self.directory)))

    def test_hostileEvaluation(self) -> None:
        """So is whatever else comes from a file."""
        text = '{"recording": "<i>", "<b>": ["<u>"], "notes": ["<s>\\ud800"], "runs": [{"begin": 5}, 7]}'
        self.directory.joinpath("evaluation.json").write_text(text)
        page = pageIn(self.directory)
        self.assertEqual({each.tag for each in page.iter()} & {"i", "b", "u", "s"}, set())
        self.assertIn("Recording <i>", textOf(page, "asked"))
        self.assertIn("<s>\\ud800", textOf(page, "asked"))

    def test_deterministic(self) -> None:
        """The same results make the same bytes, whatever the user has set for plots."""
        first = writeReport(self.directory).read_bytes()
        with rc_context({"axes.facecolor": "red", "lines.linewidth": 9, "font.size": 30}):
            self.assertEqual(writeReport(self.directory).read_bytes(), first)
        self.assertLess(len(first), 150_000)

    def test_synthetic(self) -> None:
        """Whatever is of a server that does not exist says so at the top."""
        self.assertNotIn("Synthetic data", textOf(pageIn(self.directory)))
        fairness = parquet.read_table(self.directory / "fairness_minute.parquet").to_pylist()
        minutes = [{**row, "broker_id": "synthetic"} for row in fairness]
        writeTables(self.directory, {"fairness_minute": minutes})
        self.assertIn("Synthetic data", textOf(pageIn(self.directory)).partition("What to set")[0])

    def test_missing(self) -> None:
        """Whatever tables are missing or empty, there is a report."""
        paths = sorted(self.directory.glob("*.parquet"))
        tables = [parquet.read_table(path) for path in paths]
        # Of any two tables there is a round in which only the first is missing, and one for the second.
        for bit in range(len(paths).bit_length()):
            for isSet in (True, False):
                for place, (path, table) in enumerate(zip(paths, tables, strict=True)):
                    path.unlink(missing_ok=True)
                    if bool(place >> bit & 1) is isSet:
                        parquet.write_table(table, path)
                self.assertIn("What this takes for granted", textOf(pageIn(self.directory)))
        for path, table in zip(paths, tables, strict=True):
            parquet.write_table(table.slice(0, 0), path)
        self.assertIn("No filter was asked", textOf(pageIn(self.directory)))

    def test_nothing(self) -> None:
        """A report on what was asked alone says of each section that there is nothing in it."""
        for path in self.directory.glob("*.*"):
            if path.name != "evaluation.json":
                path.unlink()
        page = pageIn(self.directory)
        for name, words in {
            "verdict": "No candidate was replayed",
            "throttling": "there is nothing to show",
            "clients": "No candidate was replayed",
            "fairness": "there is nothing to show",
            "pool": "No other pool was replayed",
            "open-loop": "No candidate was replayed",
            "recorded": "was not summed up",
            "audit": "The filter was not audited. Quotas Quotas were not audited.",
            "gate": "The policies in force were not replayed",
            "files": "evaluation.json",
        }.items():
            self.assertIn(words, textOf(page, name))
