"""Draws what a server saw: bars of the arrivals, and their count against the limit."""

# matplotlib leaves the types of its keyword arguments open.
# pyright: reportUnknownMemberType=false

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from aiothrottle._checks import number
from aiothrottle.rate import Rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The valid endings of a picture's name.
SUFFIXES = (".png", ".svg")

# Bars per period, and in total: more would be too narrow to see.
_BARS, _MOST_BARS = 10, 400


@dataclass(frozen=True, slots=True)
class Panel:
    """The requests of one crawl, as the server saw them.

    Attributes:
        arrivals: The time of each arrival, in seconds since the start, and whether the request
            was throttled.
        seconds: The length of the crawl.
        rate: The rate limit of the server.
    """

    title: str
    arrivals: Sequence[tuple[float, bool]]
    seconds: float
    rate: Rate

    @property
    def edges(self) -> list[float]:
        """The edges of the bars."""
        width = max(self.rate.period / _BARS, self.seconds / _MOST_BARS)
        return [bar * width for bar in range(int(self.seconds / width) + 2)]

    def rolling_count(self) -> tuple[list[float], list[int]]:
        """Give the instants at which the count of the last period changes, and to what."""
        arrivals = [at for at, _ in self.arrivals]
        leaves = [at + self.rate.period for at in arrivals]
        # At the same instant the old leave first: the window is half-open.
        changes = sorted(
            [*((at, 1) for at in arrivals), *((at, -1) for at in leaves if at < self.seconds)]
        )
        counts = accumulate((change for _, change in changes), initial=0)
        return [0.0, *(at for at, _ in changes)], list(counts)


def matplotlib_is_missing() -> bool:
    """Return whether matplotlib cannot be imported."""
    try:
        _figure_class()
    except ImportError:
        return True
    return False


def save(panels: Sequence[Panel], title: str, picture: Path, messages: TextIO) -> bool:
    """Draw the panels below each other into the file, and return success.

    Its path is printed to `messages`, an error to the standard error.
    """
    figure = _figure_class()(figsize=(10, 1 + 2.7 * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for panel, axes in zip(panels, rows, strict=True):
        _draw_panel(panel, axes)
    rows[-1].set_xlabel("seconds since the beginning")
    figure.suptitle(title)
    try:
        figure.savefig(picture, dpi=150)
    except OSError as error:
        print(f"The picture cannot be written: {error}.", file=sys.stderr)
        return False
    print(f"The picture is in {picture}.", file=messages)
    return True


def _figure_class() -> "type[Figure]":
    from matplotlib.figure import Figure  # large, and only for the picture

    return Figure


def _draw_panel(panel: Panel, axes: "Axes") -> None:
    rate, edges = panel.rate, panel.edges
    instants, counts = panel.rolling_count()
    kinds = ("admitted", "throttled")
    axes.hist(
        [[at for at, throttled in panel.arrivals if throttled == kind] for kind in (False, True)],
        edges,
        stacked=True,
        color=["#0072b2", "#d55e00"],
        label=[f"{kind} per {number(edges[1], 3)} s" for kind in kinds],
    )
    axes.step(
        instants, counts, "#555555", where="post", label=f"sent in the last {number(rate.period)} s"
    )
    axes.axhline(
        rate.limit,
        color="#009e73",
        linestyle="--",
        label=f"the limit, {number(rate.limit)} in {number(rate.period)} s",
    )
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel("requests")
    axes.set_ylim(0, 1.15 * max(rate.limit, *counts))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
