"""The report in a real browser, opened as a file."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from attrs import define, field
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.report.writing import writeReport
from tests.kit.browser import consoleErrors, openBrowser, resize
from tests.kit.evaluated import FITTING, GENEROUS, HOSTILE, STRICT, writeEverything

_WIDE = 1280
_NARROW = 400
_WIDEST = 1920

_BOXES = """
return [...document.querySelectorAll('svg.plot')].map((plot) => {
  const {width, height} = plot.getBoundingClientRect();
  const lines = [...plot.querySelectorAll('[data-line] > path')].map((line) => {
    const box = line.getBoundingClientRect();
    return [line.parentElement.dataset.line, box.width, box.height, getComputedStyle(line).stroke];
  });
  const texts = [...plot.querySelectorAll('text')].map((text) => text.getBoundingClientRect().height);
  return {width, height, lines, smallestText: Math.min(...texts)};
})
"""
_WIDTHS = """
const parts = [...document.querySelectorAll('section, figure, .scroll')];
return [document.scrollingElement.scrollWidth, Math.max(...parts.map((part) => part.getBoundingClientRect().right))]
"""
_UNUSED = """
return [...document.querySelectorAll('section:has(table)')].map((section) => {
  const tables = [...section.querySelectorAll('table')].map((table) => table.getBoundingClientRect().right);
  return [section.id, section.getBoundingClientRect().right - Math.max(...tables)];
})
"""
_REQUESTED = "return performance.getEntriesByType('resource').map((each) => each.name)"
_GROUND = "return getComputedStyle(document.body).backgroundColor"


@define
class Findings:
    """
    What was to be seen.

    @ivar boxes: of each plot by the width of the window: how large it is, and
        its lines.
    @ivar widths: by the width of the window, that of the page and how far right
        anything reaches.
    @ivar unused: of each section with tables, how many pixels there are to the right of them, in a wide window.
    @ivar text: all that there is to read.
    @ivar requested: what the page has asked for.
    @ivar scripts: how many scripts there are.
    @ivar errors: what the browser complained about.
    @ivar grounds: the colour behind it all, by light and dark.
    @ivar dark: of each plot, in the dark.
    """

    boxes: dict[int, list[dict[str, Any]]] = field(factory=dict)
    widths: dict[int, tuple[float, float]] = field(factory=dict)
    unused: list[tuple[str, float]] = field(factory=list)
    text: str = ""
    requested: list[str] = field(factory=list)
    scripts: int = 0
    errors: list[str] = field(factory=list)
    grounds: dict[str, str] = field(factory=dict)
    dark: list[dict[str, Any]] = field(factory=list)


@cache
def findings() -> Findings:
    """Look at the page; one browser for all tests here."""
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="admission-report-") as scratch, openBrowser(_WIDE) as browser:
        directory = Path(scratch)
        writeEverything(directory)
        browser.get(writeReport(directory).as_uri())
        for width in (_WIDEST, _WIDE, _NARROW):
            resize(browser, width, 900)
            found.boxes[width] = browser.execute_script(_BOXES)
            found.widths[width] = tuple(browser.execute_script(_WIDTHS))
            if width == _WIDE:
                found.unused = browser.execute_script(_UNUSED)
        found.text = browser.find_element("css selector", "body").text
        found.requested = browser.execute_script(_REQUESTED)
        found.scripts = len(browser.find_elements("css selector", "script"))
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            found.grounds[scheme] = browser.execute_script(_GROUND)
        found.dark = browser.execute_script(_BOXES)
        found.errors = list(consoleErrors(browser))
    return found


class ReportPageTests(SynchronousTestCase):
    """Somebody opens the report."""

    def test_plots(self) -> None:
        """All plots are there with all their lines, be the window wide or narrow."""
        for width, boxes in findings().boxes.items():
            self.assertEqual(len(boxes), 4)
            drawn = {name for box in boxes for name, *_ in box["lines"]}
            for name in ("throttle", "fairness"):
                self.assertLessEqual({f"{name}:{label}" for label in ("recorded", FITTING, STRICT)}, drawn)
            self.assertLessEqual({f"delays:{FITTING}", "pool:recorded", "pool:bounded:16MiB"}, drawn)
            self.assertFalse({name for name in drawn if GENEROUS in name})
            for box in boxes:
                self.assertGreater(min(box["width"], box["height"]), 150)
                self.assertLess(box["width"], width)
                for name, lineWidth, _, stroke in box["lines"]:
                    self.assertGreater(lineWidth, box["width"] / 2, name)
                    self.assertRegex(stroke, r"rgb\(", name)

    def test_legible(self) -> None:
        """What is written in plots can be read on a telephone."""
        self.assertGreaterEqual(min(box["smallestText"] for box in findings().boxes[_NARROW]), 9)

    def test_fits(self) -> None:
        """The page needs no scrolling sideways, be the window wide or narrow, and uses all of its width."""
        for width, (pageWidth, right) in findings().widths.items():
            self.assertLessEqual(pageWidth, width)
            self.assertLessEqual(right, width)
            self.assertGreater(right, 0.95 * width)

    def test_tables(self) -> None:
        """Tables reach to the right of their section."""
        unused = findings().unused
        self.assertGreater(len(unused), 5)
        for section, pixels in unused:
            self.assertLess(pixels, 20, section)

    def test_alone(self) -> None:
        """It asks for nothing, runs nothing, and gives nothing to complain about."""
        self.assertEqual(findings().requested, [])
        self.assertEqual(findings().scripts, 0)
        self.assertEqual(findings().errors, [])

    def test_text(self) -> None:
        """Names are there as they are written, whatever they look like."""
        self.assertIn(HOSTILE[:29], findings().text)
        self.assertIn(f"Set {FITTING}: ", findings().text)

    def test_dark(self) -> None:
        """In the dark it is dark, lines included."""
        self.assertNotEqual(findings().grounds["light"], findings().grounds["dark"])
        strokes = [
            [line[3] for box in boxes for line in box["lines"]] for boxes in (findings().boxes[_WIDE], findings().dark)
        ]
        for light, dark in zip(*strokes, strict=True):
            self.assertNotEqual(light, dark)
