"""The progress of a run, measured and put into words. Pure: the time is an argument."""

import math
from dataclasses import dataclass

from aiothrottle.cli.display import Part
from aiothrottle.cli.fetch.results.tally import percentiles
from aiothrottle.cli.suggestion import written
from aiothrottle.metrics.growth import Growth
from aiothrottle.rate import Rate

__all__ = ["Meter", "Pauses", "Progress"]

# Seconds over which the rate is averaged: a pause shows, a single slow response does not.
_RATE_OVER = 10.0
# Seconds over which the time left is estimated.
_LEFT_OVER = 30.0
_DAY = 86400

#: The number of paused limiters, and the seconds left of the longest pause.
Pauses = tuple[int, float]


class Meter:
    """Measures the rate of the requests, and estimates the time left.

    Args:
        limit: The rate limit to compare with; None: there is none.
    """

    def __init__(self, limit: Rate | None = None) -> None:
        self.limit = limit
        # Whole periods: a limit may be used up at the beginning of each.
        period = 1.0 if limit is None else limit.period
        self._requests = Growth(period * math.ceil(_RATE_OVER / period))
        self._fraction = Growth(_LEFT_OVER)
        self._done = 0.0

    def mark(self, now: float, requests: int, fraction: float | None) -> None:
        """Record the progress at a time in seconds."""
        self._done = fraction or 0.0
        self._requests.mark(now, requests)
        self._fraction.mark(now, self._done)

    @property
    def rate(self) -> float:
        """Requests per period of the limit, never above a limit that is kept; else per second."""
        requests, seconds = self._requests.amount, self._requests.seconds
        if self.limit is None:
            return requests / seconds if seconds else 0.0
        return requests / max(1, math.ceil(seconds / self.limit.period))

    @property
    def left(self) -> float | None:
        """Seconds until all is done; None if unknown."""
        growth = self._fraction.amount
        return (1.0 - self._done) * self._fraction.seconds / growth if growth > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run at one time.

    Attributes:
        done: What is done, as a text.
        fraction: The finished part of the list, from 0 to 1; None: its length is unknown.
        left: Seconds until the end; None: unknown.
        rate: Requests per period of the limit, or per second.
        limit: The rate limit of all requests; None: there is none.
        latency: The median and the 95th percentile of the seconds from a request to the headers of
            its response; None: there was no response.
    """

    done: str
    failed: int = 0
    throttled: int = 0
    fraction: float | None = None
    left: float | None = None
    rate: float = 0.0
    limit: Rate | None = None
    latency: tuple[float, float] | None = None
    pauses: Pauses = (0, 0.0)

    def parts(self) -> list[Part]:
        """Return its texts with their styles, all but the fraction and the time left."""
        parts = [(self.done, "bold")]
        if self.failed:
            parts.append((f"{self.failed} failed", "red"))
        if self.throttled:
            parts.append((f"{self.throttled} throttled", "yellow"))
        rate = f"{self.rate:.1f}" if self.rate < 100 else f"{self.rate:.0f}"
        parts.append(
            (f"{rate}/s" if self.limit is None else f"{rate} of {written(self.limit)}", "")
        )
        if self.latency is not None:
            parts.append((f"latency {percentiles(self.latency)}", ""))
        count, seconds = self.pauses
        if count:
            hosts = f"{count} hosts " if count > 1 else ""
            parts.append((f"{hosts}paused for {_clock(math.ceil(seconds))}", "yellow"))
        return parts

    def time_left(self) -> str:
        """Return the time left as a text; "" if unknown."""
        return "" if self.left is None else f"{_clock(int(self.left))} left"

    def line(self) -> str:
        """Return all in one line."""
        percent = [] if self.fraction is None else [f"{int(100 * self.fraction)} %"]
        texts = [*percent, *(text for text, _ in self.parts()), self.time_left()]
        return "  ".join(filter(None, texts))


def _clock(seconds: int) -> str:
    """Format a duration as a clock does.

    >>> _clock(59), _clock(3661), _clock(200_000)
    ('0:59', '1:01:01', '2 d 7 h')
    """
    minutes, hours = seconds // 60, seconds // 3600
    if seconds >= _DAY:
        return f"{seconds // _DAY} d {hours % 24} h"
    if hours:
        return f"{hours}:{minutes % 60:02}:{seconds % 60:02}"
    return f"{minutes}:{seconds % 60:02}"
