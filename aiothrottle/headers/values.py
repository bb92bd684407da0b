"""One value of a header: a number, a duration, a date, or a reset that may be any of these."""

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from aiothrottle.headers.dates import parse_date

__all__ = [
    "CAP",
    "EPOCHS_FROM",
    "MOST_ITEMS",
    "Clock",
    "in_seconds",
    "items",
    "read_count",
    "read_duration",
    "read_number",
    "read_reset",
    "read_window",
]

CAP = 2.0**31
"""Seconds. No duration is longer (RFC 9111, section 1.2.2)."""
EPOCHS_FROM = 1e9
"""A number from here on is an instant: nobody waits for 31 years."""

_DAY = 86400.0
_LONGEST_RESET = 366 * _DAY
_FARTHEST_EPOCH = 400 * _DAY
# Seconds, milli-, micro- and nanoseconds since 1970. The bands can't overlap before 5138.
_EPOCHS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))

# ASCII on purpose: int() and float() read more than any server means ("²", "1_000", "NaN").
_FRACTION = re.compile(r"[0-9]+\.[0-9]+")
_LONGEST_NUMBER = _LONGEST_DURATION = 64
# Longer than any honest list.
_LONGEST_LIST = 8192
MOST_ITEMS = 64
"""So many items of a list are read, more than any honest one has."""
_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3,
    "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY,
}  # fmt: skip
# Not from the middle of a number: that would be tried from each of its digits.
_PART = re.compile(r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?)(ns|us|µs|μs|ms|s|m|h|d)")
# The comma after a weekday does not end an item.
_ITEM = re.compile(
    r"(?:[ \t]*(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},)?[^,]+", re.IGNORECASE | re.ASCII
)


class Clock:
    """What time it is where the response comes from: its own Date (and Age), or else ours.

    Both stamps of a difference are then of one clock, so that a wrong one does no harm. It is
    found out when it is first needed: most responses hold no instant.
    """

    __slots__ = ("_age", "_date", "_instant", "now")

    def __init__(self, now: datetime, date: str | None = None, age: float = 0.0) -> None:
        self.now: datetime = now
        self._date = date
        self._age = age
        self._instant: float | None = None

    @property
    def instant(self) -> float:
        """Seconds since 1970."""
        if self._instant is None:
            date = None if self._date is None else parse_date(self._date, self.now)
            at = self.now.timestamp() if date is None else date.timestamp() + self._age
            self._instant = at
        return self._instant

    def until(self, date: str) -> float | None:
        """Seconds until the date, 0.0 if it has passed; None: it is no date."""
        moment = parse_date(date, self.now)
        return None if moment is None else max(0.0, moment.timestamp() - self.instant)


def items(text: str) -> Iterator[str]:
    """Split at the commas, but not inside a date."""
    if "," not in text or len(text) > _LONGEST_LIST:
        yield text
        return
    for match in islice(_ITEM.finditer(text), MOST_ITEMS):
        yield match[0].strip(" \t")


def read_number(text: str) -> float | None:
    """Read digits, with a fraction or without."""
    if text.isdecimal() and text.isascii():
        # More digits than these change nothing that we could use, and cost time.
        return float(text[:_LONGEST_NUMBER])
    if not text[-1:].isdecimal() or len(text) > _LONGEST_NUMBER or not _FRACTION.fullmatch(text):
        return None
    return float(text)


def in_seconds(text: str) -> str:
    """Give a number of milliseconds as one of seconds; what else it may be stays as it is."""
    number = read_number(text)
    return text if number is None or number >= EPOCHS_FROM else f"{number / 1000:.6f}"


def read_count(text: str) -> float | None:
    """Read a limit or a remainder, with its fraction; None for what has more than 18 digits."""
    if text.isdecimal() and text.isascii():
        return int(text) if len(text) <= 18 else None
    whole, _, fraction = text.partition(".")
    if len(whole) > 18 or len(fraction) > 18 or not _FRACTION.fullmatch(text):
        return None
    return float(text)


def read_duration(text: str) -> float | None:
    """Read a duration as Go writes it: ``1h2m3.5s``, ``12ms``. Gives seconds, at most `CAP`."""
    if len(text) > _LONGEST_DURATION or not text:
        return None
    seconds, length = 0.0, 0
    for number, unit in _PART.findall(text):
        seconds += float(number) * _UNITS[unit]
        length += len(number) + len(unit)
    if length != len(text):
        return None
    return seconds if seconds < CAP else CAP


def read_window(text: str, unit: float = 1.0) -> float | None:
    """Read the length of a window, a number of that unit or a duration; never 0."""
    number = read_number(text)
    seconds = read_duration(text) if number is None else number * unit
    return seconds if seconds is not None and 0.0 < seconds < CAP else None


def read_reset(text: str, clock: Clock) -> float | None:
    """Read when there will be more: seconds, an epoch, a date or a duration. Gives seconds.

    Which of them it is is told by the value, since the names of the headers don't tell. None is
    what can't be read, and what no service means: the clock isn't set, or the unit is another.
    """
    if text[-1:].isalpha():
        seconds = read_duration(text)
    else:
        seconds = read_number(text)
        if seconds is not None and seconds >= EPOCHS_FROM:
            return _until_epoch(seconds, clock)
    if seconds is not None:
        return seconds if seconds <= _LONGEST_RESET else None
    seconds = clock.until(text)
    return seconds if seconds is not None and seconds <= _FARTHEST_EPOCH else None


def _until_epoch(number: float, clock: Clock) -> float | None:
    for below, scale in _EPOCHS:
        if number < below:
            ahead = number / scale - clock.instant
            return max(0.0, ahead) if -_DAY <= ahead <= _FARTHEST_EPOCH else None
    return None
