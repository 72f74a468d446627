"""
How the plots of the manual look: 800 pixels across with a title that is a sentence, on white, in colours and strokes
that the colour-blind tell apart, and each line with its name beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PLAIN = "plain"
PROTECTED = "protected"

_INCHES_ACROSS = 8.0
_PIXELS_PER_INCH = 200
"""Twice as many as are shown, for screens that have them."""

# Of the palette of Okabe and Ito.
_STYLES = {
    PLAIN: ("#d55e00", (0, (5, 1.5))),
    "plain, looks for hang-ups": ("#e69f00", (0, (1.5, 1))),
    PROTECTED: ("#0072b2", "solid"),
}


def figureOf(title: str, inches: float) -> Figure:
    """
    An empty figure.

    @param title: a sentence, or several, in lines.
    @param inches: how high it is; 8 are its width.
    """
    figure = Figure(figsize=(_INCHES_ACROSS, inches), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold")
    return figure


def plotLine(axes: Axes, name: str, places: Sequence[float], values: Sequence[float], label: float) -> None:
    """
    Draw a line of what C{name} is known for everywhere.

    @param label: where its name stands to the right of it, as a value.
    """
    colour, stroke = _STYLES[name]
    axes.plot(places, values, color=colour, linestyle=stroke, linewidth=1.8, label=name)
    axes.annotate(
        name.replace(", ", ",\n"),
        (1.0, label),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6, 0),
        textcoords="offset points",
        color=colour,
        fontsize=12,
        fontweight="bold",
        va="center",
    )


def finish(axes: Axes, title: str) -> None:
    """Say above axes what is drawn, and in what unit; leave out what says nothing."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.tick_params(labelsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: str) -> None:
    """Write it as PNG."""
    figure.savefig(path, dpi=_PIXELS_PER_INCH, metadata={"Software": None})
