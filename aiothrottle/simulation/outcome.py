"""The outcome of a simulation, and a table of several."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aiothrottle._checks import number


class Arrival(NamedTuple):
    """One request as the server saw it.

    Args:
        at: When it arrived, in seconds.
        client: The number of the client that sent it.
        throttled: Whether the server throttled it.
    """

    at: float
    client: int
    throttled: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the requests waited in the client, in seconds; NaN if none was admitted.

    Attributes:
        mean: The mean.
        p50: The median.
        p99: The wait that 1 % of the requests exceeded.
    """

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a simulation, as the server saw it.

    The server is observed for the given seconds, from when the first request could have arrived.

    Attributes:
        sent: Requests that arrived, throttled or not; every attempt counts.
        throttled: Requests that were throttled.
        utilisation: Admitted requests, as a part of the most that the algorithm could have admitted
            in the time; 1.0 if it could have admitted none.
        waits: Of the admitted requests, until their last attempt was sent.
        fairness: Jain's index over the admitted requests x of the n clients,
            ``sum(x)**2 / (n * sum(x**2))``: 1 if all got the same, 1/n if one got everything.
            (R. Jain, D. Chiu, W. Hawe: "A Quantitative Measure Of Fairness And Discrimination For
            Resource Allocation In Shared Computer Systems", DEC Research Report TR-301, 1984.)
        greatest_count: The most arrivals, throttled or not, in any window of the server's period.
        given_up: Requests that were throttled in every attempt.
        turned_away: Requests that were never sent, since the limiter rejected them: its queue was
            full, for example.
        arrivals: Every arrival, in order.
    """

    sent: int
    throttled: int
    utilisation: float
    waits: Waits
    fairness: float
    greatest_count: int
    given_up: int = 0
    turned_away: int = 0
    arrivals: tuple[Arrival, ...] = field(default=(), repr=False)

    @property
    def admitted(self) -> int:
        """Requests that arrived and were not throttled."""
        return self.sent - self.throttled

    @property
    def throttled_share(self) -> float:
        """Throttled requests, as a part of those that were sent."""
        return self.throttled / self.sent if self.sent else 0.0

    def __str__(self) -> str:
        """Return a summary in one line."""
        return (
            f"{self.sent} sent, {self.throttled_share:.2%} throttled, {self.utilisation:.1%} used, "
            f"waited {number(self.waits.mean, 3)} s (p99 {number(self.waits.p99, 3)} s), "
            f"at most {self.greatest_count} in a period, fairness {self.fairness:.3f}"
        )


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Return a table in Markdown, one named outcome per row.

    Args:
        outcomes: The outcomes by name.

    >>> from aiothrottle import RateLimiter
    >>> from aiothrottle.simulation import simulate
    >>> print(table({"exact": simulate(lambda: RateLimiter(20), 20, jitter=0.0)}))
    |       | sent | throttled |    used | mean wait | p99 wait | in a period | fairness |
    | ----- | ---: | --------: | ------: | --------: | -------: | ----------: | -------: |
    | exact | 1200 |    0.00 % | 100.0 % |   0.893 s |  0.900 s |          20 |    1.000 |
    """
    align, end = str.ljust, "-"  # the names are on the left, the numbers on the right
    columns: list[list[str]] = []
    for column in zip(*cells(outcomes), strict=True):
        width = max(3, *map(len, column))
        head, *others = [align(cell, width) for cell in column]
        columns.append([head, end.rjust(width, "-"), *others])
        align, end = str.rjust, ":"
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))


def cells(outcomes: Mapping[str, Outcome]) -> list[list[str]]:
    """Return the cells of the table: its head, and a row for each outcome."""
    head = ["", "sent", "throttled", "used", "mean wait", "p99 wait", "in a period", "fairness"]
    rows = [
        [
            name,
            f"{it.sent}",
            f"{it.throttled_share * 100:.2f} %",
            f"{it.utilisation * 100:.1f} %",
            f"{it.waits.mean:.3f} s",
            f"{it.waits.p99:.3f} s",
            f"{it.greatest_count}",
            f"{it.fairness:.3f}",
        ]
        for name, it in outcomes.items()
    ]
    return [head, *rows]


def waits_of(waits: Sequence[float]) -> Waits:
    """Return mean and percentiles of the waits, in seconds."""
    if not waits:
        return Waits(math.nan, math.nan, math.nan)
    ordered = sorted(waits)

    def percentile(part: float) -> float:  # the nearest rank
        return ordered[math.ceil(part * len(ordered)) - 1]

    return Waits(math.fsum(waits) / len(waits), percentile(0.50), percentile(0.99))


def fairness(admitted: Sequence[int]) -> float:
    """Return Jain's index, as `Outcome` defines it."""
    squares = sum(count**2 for count in admitted)
    return sum(admitted) ** 2 / (len(admitted) * squares) if squares else 1.0
