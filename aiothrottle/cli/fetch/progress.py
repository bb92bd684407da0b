"""Formats the progress of a run as a line. Pure: the time is an argument."""

from collections import deque
from datetime import datetime

from aiothrottle.cli.fetch.tally import Tally

__all__ = ["Pace", "Pauses", "progress_line"]

# Seconds over which the speed is averaged: a pause shows, a single slow response does not.
_REMEMBERED = 30.0
_BAR = 20
_DAY = 86400

#: The number of paused limiters, and the seconds left of the longest pause.
Pauses = tuple[int, float]


class Pace:
    """Measures the current speed, and estimates the time left."""

    def __init__(self) -> None:
        self._marks = deque[tuple[float, int, float]]()

    def mark(self, now: float, done: int, fraction: float | None) -> None:
        """Record the progress at a time."""
        self._marks.append((now, done, fraction or 0.0))
        while self._marks[0][0] < now - _REMEMBERED:
            self._marks.popleft()

    @property
    def speed(self) -> float:
        """URLs per second."""
        (since, before, _), (now, done, _) = self._marks[0], self._marks[-1]
        return (done - before) / (now - since) if now > since else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until all is done; None if unknown."""
        (since, _, before), (now, _, fraction) = self._marks[0], self._marks[-1]
        if not fraction > before:
            return None
        return (1.0 - fraction) * (now - since) / (fraction - before)


def progress_line(
    tally: Tally, pace: Pace, fraction: float | None, pauses: Pauses, now: datetime
) -> str:
    """Return the progress as a line."""
    parts = [] if fraction is None else [_bar(fraction)]
    parts += [f"{tally.done} done", f"{pace.speed:.1f}/s"]
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    if tally.throttled:
        parts.append(f"{tally.throttled} throttled")
    count, seconds = pauses
    if count:
        until = datetime.fromtimestamp(now.timestamp() + seconds, now.tzinfo)
        several = f"{count} hosts " if count > 1 else ""
        parts.append(f"{several}paused until {until:%H:%M:%S}")
    if fraction is not None and fraction < 1 and pace.left is not None:
        parts.append(f"{_duration(pace.left)} left")
    return "  ".join(parts)


def _bar(fraction: float) -> str:
    full = int(_BAR * fraction)
    return f"[{'#' * full:.<{_BAR}}] {int(100 * fraction):3} %"


def _duration(seconds: float) -> str:
    """Format a duration as a clock does.

    >>> _duration(59), _duration(3661), _duration(200_000)
    ('0:59', '1:01:01', '2 d 7 h')
    """
    whole = int(seconds)
    minutes, hours = whole // 60, whole // 3600
    if whole >= _DAY:
        return f"{whole // _DAY} d {hours % 24} h"
    if hours:
        return f"{hours}:{minutes % 60:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"
