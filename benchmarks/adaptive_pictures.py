"""Draws docs/concepts/adaptive.md: `uv run benchmarks/adaptive_pictures.py [--png FOLDER]`.

The rate over time, and the requests that the server admitted and throttled, by real limiters in
virtual time: the same on every machine. They go into docs/pictures/; `--png` puts them elsewhere,
for viewing.
"""

# matplotlib leaves the types of its keyword arguments open.
# pyright: reportUnknownMemberType=false

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import matplotlib as mpl
from adaptive import RATES, WORKERS, per_second
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aiothrottle import AdaptiveRate, RateLimiter
from aiothrottle.adaptive.rate import RateState
from aiothrottle.rate import Rate
from aiothrottle.simulation import Arrival, Server, simulate
from aiothrottle.testing.algorithms import AlgorithmName

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
# Readable on white and on black: the background is left out.
GREY, ADMITTED, THROTTLED, LIMIT, OURS = "#808080", "#56a0d3", "#d55e00", "#009e73", "#b05fc0"
CLIENTS = ("#56a0d3", "#d55e00", "#b05fc0", "#c09a2c")


class Watched(AdaptiveRate):
    """An adaptive rate that records its changes and their times."""

    seen: list[tuple[float, float]]

    def __init__(self, initial: float, truth: float) -> None:
        super().__init__(initial, minimum=truth / 100, maximum=20 * truth)
        object.__setattr__(self, "seen", [(0.0, initial)])  # frozen

    def succeeded(self, state: RateState, now: float, sent_at: float, cost: float = 1.0) -> None:
        super().succeeded(state, now, sent_at, cost)
        self._see(now, state.rate)

    def throttled(self, state: RateState, now: float, sent_at: float, pause: float = 0.0) -> None:
        super().throttled(state, now, sent_at, pause)
        self._see(now, state.rate)

    def _see(self, now: float, rate: float) -> None:
        if abs(rate - self.seen[-1][1]) > 0.003 * rate:
            self.seen.append((now, rate))


@dataclass(frozen=True)
class Run:
    """One simulation, to be drawn: the limits by the instants from which they hold.

    Without a start, as a part of the limit, the limiter has no rate.
    """

    title: str
    limits: Mapping[float, Rate]
    algorithm: AlgorithmName
    start: float | None
    seconds: float
    bar: float
    clients: int = 1
    learn_rate: bool = True

    def simulate(self) -> tuple[list[list[tuple[float, float]]], tuple[Arrival, ...]]:
        """Return the rates of each client, and the arrivals of all."""
        (_, rate), *changes = self.limits.items()
        truth = per_second(rate)
        if self.start is None:
            plain = partial(RateLimiter, concurrency_limit=8, learn_rate=self.learn_rate)
            server = Server(rate, self.algorithm)
            return [], simulate(plain, server, workers=WORKERS, seconds=self.seconds).arrivals
        watched = [Watched(self.start * truth, truth) for _ in range(self.clients)]
        to_make = iter(watched)
        outcome = simulate(
            lambda: RateLimiter(next(to_make)),
            Server(rate, self.algorithm),
            clients=self.clients,
            workers=WORKERS,
            seconds=self.seconds,
            changes={at: Server(new, self.algorithm) for at, new in changes},
        )
        return [it.seen for it in watched], outcome.arrivals


def draw(run: Run, axes: Axes) -> None:
    """Draw one run."""
    rates, arrivals = run.simulate()
    limit = max(per_second(rate) for rate in run.limits.values())
    if run.clients == 1:
        draw_arrivals(run, arrivals, axes)
    begins = [*run.limits, run.seconds]
    limits = [per_second(rate) / run.clients for rate in run.limits.values()]
    label = "the limit" if run.clients == 1 else "a quarter"
    axes.step(begins, [*limits, limits[-1]], LIMIT, where="post", linestyle="--", label=label)
    for number, seen in enumerate(rates):
        instants, values = zip(*seen, (run.seconds, seen[-1][1]), strict=True)
        color = OURS if run.clients == 1 else CLIENTS[number]
        label = "its rate" if run.clients == 1 else f"client {number + 1}"
        axes.step(instants, values, color, where="post", linewidth=1.4, label=label)
    axes.set_title(run.title, loc="left", color=GREY, fontsize=9, pad=20)
    axes.set_ylabel("requests/s", color=GREY, fontsize=9)
    axes.set_ylim(0, 2.2 * limit / (run.clients if run.clients > 1 else 1.0))
    axes.set_xlim(0, run.seconds)
    axes.tick_params(colors=GREY, labelsize=9)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    # Above, and not beside: on a phone the picture is as wide as the screen.
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 0.98),
        borderaxespad=0,
        ncols=len(axes.get_legend_handles_labels()[1]),
        frameon=False,
        labelcolor=GREY,
        fontsize=8,
        columnspacing=0.9,
        handlelength=1.4,
        handletextpad=0.4,
    )


def draw_arrivals(run: Run, arrivals: tuple[Arrival, ...], axes: Axes) -> None:
    """Draw the traffic at the server as bars: throttled requests on top of admitted ones."""
    counts = Counter((int(it.at / run.bar), it.throttled) for it in arrivals)
    bars = range(round(run.seconds / run.bar))
    edges = list(accumulate([run.bar] * len(bars), initial=0.0))
    admitted = [counts[bar, False] / run.bar for bar in bars]
    both = [low + counts[bar, True] / run.bar for bar, low in zip(bars, admitted, strict=True)]
    axes.stairs(admitted, edges, fill=True, color=ADMITTED, alpha=0.6, label="admitted")
    axes.stairs(both, edges, baseline=admitted, fill=True, color=THROTTLED, label="throttled")


PICTURES = {
    "unknown": [
        Run(
            "20/s in a rolling window, RateLimiter(concurrency_limit=8)",
            {0.0: Rate(20, 1)},
            "sliding-window-log",
            None,
            60,
            1,
        ),
        Run(
            "the same with learn_rate=False: pauses alone",
            {0.0: Rate(20, 1)},
            "sliding-window-log",
            None,
            60,
            1,
            learn_rate=False,
        ),
    ],
    "search": [
        Run(
            "10/s in a rolling window, begun at 40/s",
            {0.0: RATES[0]},
            "sliding-window-log",
            4,
            60,
            1,
        ),
        Run("10/s in a fixed window, begun at 1/s", {0.0: RATES[0]}, "fixed-window", 0.1, 60, 1),
        Run("10/s in a token bucket, begun at 1/s", {0.0: RATES[0]}, "token-bucket", 0.1, 60, 1),
    ],
    "minutes": [
        Run(
            "500/min in a fixed window, begun 4 times too fast",
            {0.0: RATES[2]},
            "fixed-window",
            4,
            600,
            10,
        ),
    ],
    "changes": [
        Run(
            "10/s in a rolling window, halved and doubled again",
            {0.0: Rate(10, 1), 200.0: Rate(5, 1), 400.0: Rate(10, 1)},
            "sliding-window-log",
            1,
            800,
            5,
        ),
    ],
    "four": [
        Run(
            "10/s in a token bucket, four clients, each begun at 10/s",
            {0.0: RATES[0]},
            "token-bucket",
            1,
            600,
            5,
            4,
        ),
    ],
}


def main() -> None:
    """Draw them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="where to put PNGs, not SVGs")
    options = parser.parse_args()
    folder: Path = options.png or FOLDER
    folder.mkdir(exist_ok=True)
    # Text stays text, and the same picture is the same file.
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "aiothrottle"
    for name, runs in PICTURES.items():
        figure = Figure(figsize=(5, 0.5 + 2.1 * len(runs)), layout="constrained")
        rows = figure.subplots(len(runs), sharex=True, squeeze=False)[:, 0]
        for run, axes in zip(runs, rows, strict=True):
            axes.patch.set_visible(False)
            draw(run, axes)
        rows[-1].set_xlabel("seconds", color=GREY, fontsize=9)
        if options.png:
            figure.savefig(folder / f"adaptive-{name}.png", dpi=80, transparent=False)
        else:
            metadata = {"Date": None}
            figure.savefig(folder / f"adaptive-{name}.svg", transparent=True, metadata=metadata)


if __name__ == "__main__":
    main()
