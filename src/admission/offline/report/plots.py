# -*- test-case-name: tests.offline.test_report -*-
"""
Plots, as SVG in the page: the same values make the same bytes, text stays text,
and colours are the page's own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from matplotlib import style as styles
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from twisted.web.template import Tag, tags

from .elements import absent, named, parsed
from .lines import Line
from .words import duration, plural, shown

MAX_LINES = 8
"""The most candidates in one plot; no more colours can be told apart."""

_MAX_MARKED = 40
_MIN_MARGIN = np.timedelta64(1, "m")
_INCHES = (5.0, 2.6)

_TEXT, _RULE, _GRID, _SURFACE = "#7e0001", "#7e0002", "#7e0003", "#7e0004"
_COLOURS: Sequence[str] = [f"#c0ff0{place}" for place in range(MAX_LINES)]
_DASHES: Sequence[Sequence[float]] = ((), (5, 1.5), (1.5, 1.5), (6, 1.5, 1.5, 1.5))

# Placeholders: the page replaces them with its own colours, light or dark.
_PAGE_COLOURS = {
    _TEXT: "var(--text)",
    _RULE: "var(--faint)",
    _GRID: "var(--line)",
    _SURFACE: "var(--surface)",
    **{colour: f"var(--c{place})" for place, colour in enumerate(_COLOURS)},
}

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
    "axes.edgecolor": _RULE,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "grid.color": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@frozen
class Style:
    """
    The look of a line.

    @ivar colour: a placeholder for one of the page's colours.
    @ivar dashes: the lengths of strokes and gaps, in line widths; empty if there are no gaps.
    @ivar width: in points.
    @ivar opacity: 1 if nothing shines through.
    """

    colour: str
    dashes: Sequence[float] = ()
    width: float = 1.8
    opacity: float = 1.0


_RECORDED = Style(_RULE, width=6.0, opacity=0.4)


@frozen(eq=False)
class Plot:
    """
    Some lines and their axes.

    @ivar name: unique on the page.
    @ivar title: what it shows.
    @ivar unit: of the values, in a few words.
    @ivar lines: the lines to draw.
    @ivar fact: makes a line's figures into text.
    @ivar isIndex: whether values, and so the axis, are from 0 to 1.
    @ivar isByDelay: whether places are delays in seconds, and values shares to be written as percentages; else places
        are moments.
    @ivar note: a further remark.
    """

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    fact: Callable[[Line], str]
    isIndex: bool = False
    isByDelay: bool = False
    note: str = ""
    drawn: Sequence[tuple[Line, Style]] = field(init=False)

    @drawn.default
    def _choose(self) -> Sequence[tuple[Line, Style]]:
        recorded = [(line, _RECORDED) for line in self.lines if line.isRecorded]
        candidates = [line for line in self.lines if not line.isRecorded][:MAX_LINES]
        looks = (Style(colour, _DASHES[place % len(_DASHES)]) for place, colour in enumerate(_COLOURS))
        return [*recorded, *zip(candidates, looks, strict=False)]

    def figure(self) -> Figure:
        """
        Draw it.  Each line has a C{gid}: the name of the plot, a colon and its
        label.
        """
        with styles.context(["default", _SETTINGS]):
            figure = Figure(figsize=_INCHES, layout="constrained")
            FigureCanvasSVG(figure)
            figure.patch.set_visible(False)
            axes = figure.subplots()
            axes.patch.set_visible(False)
            axes.grid(True, linewidth=0.6)
            axes.set_ylabel(self.unit)
            for line, style in self.drawn:
                axes.plot(
                    line.places,
                    line.values,
                    gid=f"{self.name}:{shown(line.label)}",
                    color=style.colour,
                    alpha=style.opacity,
                    linestyle=(0, tuple(style.dashes)) if style.dashes else "-",
                    linewidth=style.width,
                    marker=self._markerOf(line),
                    markersize=max(3.0, style.width),
                )
                if line.isPartial is not None:
                    axes.plot(
                        line.places[line.isPartial],
                        line.values[line.isPartial],
                        color=style.colour,
                        linestyle="none",
                        marker="o",
                        markersize=4.5,
                        markerfacecolor=_SURFACE,
                    )
            self._setScales(axes)
        return figure

    def tag(self) -> Tag:
        """
        The plot with its caption and legend, for the page.
        """
        leftOut = len(self.lines) - len(self.drawn)
        notes = [self.note] if self.note else []
        if leftOut:
            notes.append(f"{plural(leftOut, 'candidate is', 'candidates are')} left out for lack of colours.")
        legend = tags.ul(
            *(tags.li(_key(style), named(shown(line.label)), ": ", self.fact(line)) for line, style in self.drawn),
            class_="legend",
        )
        caption = tags.figcaption(tags.strong(self.title), legend, *(tags.p(note) for note in notes))
        return tags.figure(self._svg(), caption, id=f"plot-{self.name}")

    def _svg(self) -> Tag:
        written = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with styles.context(["default", {**_SETTINGS, "svg.hashsalt": self.name}]):
            self.figure().savefig(written, format="svg", metadata=metadata, transparent=True)
        text = written.getvalue()
        svg = parsed(text[text.index("<svg") :])
        _adapt(svg)
        del svg.attributes["width"], svg.attributes["height"]
        return svg(class_="plot", role="img", **{"aria-label": self.title})

    def _markerOf(self, line: Line) -> str:
        isMarked = len(line.places) <= _MAX_MARKED and not self.isByDelay and not line.isRecorded
        return "o" if isMarked or len(line.places) == 1 else ""

    def _setScales(self, axes: Axes) -> None:
        if self.isByDelay:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=8))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda part, _: f"{part * 100:.3g} %"))
        else:
            locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
            moments = [moment for line, _ in self.drawn for moment in line.places]
            if moments:
                # The axis around a single minute would span years.
                span = max(moments) - min(moments)
                margin = span / 20 if span else _MIN_MARGIN
                axes.set_xlim(min(moments) - margin, max(moments) + margin)
        if self.isIndex:
            axes.set_ylim(0, 1.05)
            axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        else:
            most = max((line.most for line, _ in self.drawn), default=0)
            axes.set_ylim(0, 1.05 * most or 1)


def scaled(lines: Sequence[Line]) -> tuple[list[Line], str, int]:
    """
    Lines of bytes, converted to a unit with short numbers.

    @return: the lines, the unit, and the bytes in it.
    """
    most = max((line.most for line in lines), default=0)
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = next(power for power in range(len(units)) if most < 1024 ** (power + 1) or power == len(units) - 1)
    factor = 1024**power
    return [evolve(line, values=line.values / factor) for line in lines], units[power], factor


def figures(plots: Sequence[Plot]) -> Iterator[Tag]:
    drawn = [plot.tag() for plot in plots if plot.drawn]
    if drawn:
        yield tags.div(drawn, class_="plots")
    for plot in plots:
        if not plot.drawn:
            yield absent(f"{plot.title}: there is nothing to show.")


def timeNote(lines: Sequence[Line]) -> str:
    step = max((line.stepSeconds for line in lines), default=60)
    words = f"Times are in UTC; each point is of {duration(step)}."
    if any(line.isPartial is not None and line.isPartial.any() for line in lines):
        words += " Hollow points are of less, since the recording begins or ends in them."
    return words


def _adapt(tag: Tag) -> None:
    """
    Make a stand-alone drawing a part of the page.
    """
    style = tag.attributes.pop("style", None)
    if style is not None:
        # The page sets the fonts.
        kept = [each.strip() for each in str(style).split(";") if "font-family" not in each]
        tag.attributes["style"] = "; ".join(map(_pageColoured, kept))
    identity = str(tag.attributes.get("id", ""))
    if ":" in identity:
        tag.attributes["data-line"] = identity
    if tag.tagName == "g":
        # Nothing refers to groups, and each plot has the same ones.
        tag.attributes.pop("id", None)
    # Styles in an SVG would apply to the whole page.
    tag.children = [each for each in tag.children if not _isStyle(each) and str(each).strip()]
    for child in _tagsOf(tag):
        _adapt(child)


def _tagsOf(tag: Tag) -> Iterator[Tag]:
    return (child for child in tag.children if isinstance(child, Tag))


def _isStyle(child: Any) -> bool:
    return isinstance(child, Tag) and child.tagName == "style"


def _pageColoured(declaration: str) -> str:
    name, _, value = declaration.partition(": ")
    return f"{name}: {_PAGE_COLOURS.get(value, value)}"


def _key(style: Style) -> Tag:
    """
    A piece of a line, for the legend.
    """
    dashes = " ".join(f"{length * style.width:g}" for length in style.dashes)
    attributes = {
        "x1": "0",
        "x2": "28",
        "y1": "4",
        "y2": "4",
        "style": f"stroke: {_PAGE_COLOURS[style.colour]}; stroke-width: {style.width:g}; opacity: {style.opacity:g}",
        **({"stroke-dasharray": dashes} if dashes else {}),
    }
    line = Tag("line")(**attributes)
    return Tag("svg")(line, class_="key", viewBox="0 0 28 8", **{"aria-hidden": "true"})
