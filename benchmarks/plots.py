"""The plots of docs/project/benchmarks, which `benchmarks/all.py --write` draws from its charts.

Horizontal bars, one below the other, each with its value: ours, peers and yardsticks have a colour
each. The same chart is the same file.
"""

# matplotlib leaves the types of its keyword arguments open.
# pyright: reportUnknownMemberType=false

import math
from io import StringIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from measure import Chart
from pictures import FOLDER, PALETTES, Palette

__all__ = ["draw"]

# In pixels, 3/4 of a point each in matplotlib. On a phone it is as wide as the page.
WIDTH, PITCH, AROUND, POINTS = 440, 16, 84, 0.75
#: The share of the axis for the values, to the right of the longest bar.
ROOM = 0.27
#: An axis is logarithmic above this ratio of the greatest value to the smallest.
FAR_APART = 20
#: For light paper and dark.
GREY = "#808b98"
MISSING = "too long"
METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw(chart: Chart, folder: Path = FOLDER) -> None:
    """Write the pictures of a chart, on light paper and on dark."""
    for shade, palette in PALETTES.items():
        (folder / chart.file(shade)).write_text(picture(chart, palette), encoding="utf-8")


def picture(chart: Chart, palette: Palette) -> str:
    """Return the SVG of a chart."""
    places, titles, bottom = laid_out(chart)
    inches = WIDTH / 96, (AROUND + PITCH * bottom) / 96
    with mpl.rc_context(
        {
            "svg.fonttype": "none",  # text stays text
            "svg.hashsalt": "aiothrottle",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 12 * POINTS,
        }
    ):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(inches, layout=layout, facecolor=palette.paper)
        axes = figure.add_subplot(facecolor=palette.paper)
        left = scale(axes, chart, palette)
        axes.set_ylim(bottom, 0)
        for title, down in titles.items():
            axes.text(left, down, title, va="center", weight="bold", color=palette.text)
        for group, name, down in places:
            value = chart.groups[group][name]
            colours = colour(chart, name, palette), palette.text
            bar(axes, value, left=left, down=down, colours=colours, text=value_text(value, chart))
        axes.set_yticks([down for *_, down in places], [name for _, name, _ in places])
        axes.tick_params(length=0, colors=palette.text)
        axes.spines[:].set_visible(False)
        legend(figure, chart, palette)
        svg = StringIO()
        figure.savefig(svg, format="svg", metadata=METADATA)
    return svg.getvalue()


def laid_out(chart: Chart) -> tuple[list[tuple[str, str, float]], dict[str, float], float]:
    """Return the place of each bar, by group and name; of each title; and of the bottom."""
    places: list[tuple[str, str, float]] = []
    titles: dict[str, float] = {}
    down = 0.0
    for title, group in chart.groups.items():
        if title:
            titles[title] = down + 0.7
            down += 1.2
        for name in group:
            places.append((title, name, down + 0.5))
            down += 1
    return places, titles, down + 0.2


def scale(axes: Axes, chart: Chart, palette: Palette) -> float:
    """Set up the axis of values; return where bars begin."""
    values = [it for group in chart.groups.values() for it in group.values() if it is not None]
    least, most = min(filter(None, values)), max(values)  # 0 has no logarithm
    left, unit = 0.0, chart.unit
    axis = axes.xaxis
    if chart.share:
        most = 1.0
        axis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    elif most > FAR_APART * least:
        # A power of ten that the smallest value is at least twice, so that its bar is visible.
        left = 10.0 ** math.floor(math.log10(least / 2))
        axes.set_xscale("log")
        axis.set_major_locator(LogLocator())
        axis.set_minor_locator(NullLocator())
        unit = f"{unit} (logarithmic)"
    else:
        axis.set_major_locator(MaxNLocator(4))
    if left:
        axes.set_xlim(left, left * (most / left) ** (1 / (1 - ROOM)))
    else:
        axes.set_xlim(left, most / (1 - ROOM))
    axis.set_major_formatter(FuncFormatter(percent if chart.share else short))
    axis.grid(visible=True, color=palette.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(unit, color=palette.text)
    return left


def percent(value: float, _: int | None = None) -> str:
    """Write a value of an axis of shares."""
    return f"{value:.0%}"


def short(value: float, _: int | None = None) -> str:
    """Write a value of another axis."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,g}"


def bar(
    axes: Axes,
    value: float | None,
    *,
    left: float,
    down: float,
    colours: tuple[str, str],
    text: str,
) -> None:
    """Draw one bar, and its value at the end of it."""
    fill, ink = colours
    end = max(value or 0.0, left)
    if end > left:
        axes.barh(down, end - left, 0.7, left, color=fill, clip_on=False)
    axes.annotate(
        text,
        (end, down),
        (3, 0),
        textcoords="offset points",
        va="center",
        color=ink,
        style="italic" if value is None else "normal",
    )


def colour(chart: Chart, name: str, palette: Palette) -> str:
    """Return the colour of ours, of a yardstick or of a peer."""
    if name in chart.ours:
        return palette.dot
    return GREY if name in chart.yardsticks else palette.cross


def value_text(value: float | None, chart: Chart) -> str:
    """Write a value: a share as per cent, others with at least three significant digits."""
    if value is None:
        return MISSING
    if chart.share:
        return f"{value:.1%}"
    digits = 2 - math.floor(math.log10(value)) if value else 0
    return f"{value:,.{max(0, digits)}f}"


def legend(figure: Figure, chart: Chart, palette: Palette) -> None:
    """Draw the legend of the colours, above the bars."""
    names = {name for group in chart.groups.values() for name in group}
    kinds = {palette.dot: "aiothrottle", palette.cross: "others", GREY: "yardsticks"}
    drawn = {colour(chart, name, palette) for name in names}
    figure.legend(
        handles=[Patch(color=it, label=kind) for it, kind in kinds.items() if it in drawn],
        loc="outside upper left",
        ncols=3,
        frameon=False,
        labelcolor=palette.text,
        borderpad=0,
        handlelength=1,
        handleheight=0.8,
        handletextpad=0.5,
        columnspacing=1.5,
    )
