"""Parses one value of a header: a number, a duration, a date, or a reset of any of these forms."""

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from aiothrottle.headers.dates import parse_date
from aiothrottle.headers.server_clock import ServerClock

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
"""A number from here on is a timestamp, as no server asks for a wait of 31 years."""

_DAY = 86400.0
_LONGEST_RESET = 366 * _DAY
_FARTHEST_EPOCH = 400 * _DAY
# Seconds, milli-, micro- and nanoseconds since 1970. The ranges cannot overlap before 5138.
_EPOCHS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))

# ASCII on purpose: int() and float() accept what no server means ("²", "1_000", "NaN").
_FRACTION = re.compile(r"[0-9]+\.[0-9]+")
_LONGEST_NUMBER = _LONGEST_DURATION = 64
# Longer than any real list.
_LONGEST_LIST = 8192
MOST_ITEMS = 64
"""The most items of a list that are read: more than any real list has."""
_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3,
    "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY,
}  # fmt: skip
# Not from the middle of a number: a match would be tried from each of its digits.
_PART = re.compile(r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?)(ns|us|µs|μs|ms|s|m|h|d)")
# The comma after a weekday does not end an item.
_ITEM = re.compile(
    r"(?:[ \t]*(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},)?[^,]+", re.IGNORECASE | re.ASCII
)


class Clock:
    """The time by the clock of the server: its Date and Age, or else the local time.

    Both timestamps of a difference are then of one clock, so that a wrong one does no harm. The
    Date is parsed at its first use, since most responses contain no other timestamp.

    Args:
        now: The local time.
        date: The Date of the response.
        age: The Age of the response.
        server: What earlier responses have shown of the server's clock.
    """

    __slots__ = ("_age", "_date", "_server", "_timestamp", "dates_resets", "now")

    def __init__(
        self,
        now: datetime,
        date: str | None = None,
        age: float = 0.0,
        server: ServerClock | None = None,
    ) -> None:
        self.now: datetime = now
        #: Whether a reset was a timestamp.
        self.dates_resets: bool = False
        self._date = date
        self._age = age
        self._server = server
        self._timestamp: float | None = None

    @property
    def timestamp(self) -> float:
        """Seconds since 1970."""
        if self._timestamp is None:
            date = None if self._date is None else parse_date(self._date, self.now)
            at = self.now.timestamp() if date is None else date.timestamp() + self._age
            if date is not None and self._server is not None and not self._age:
                at = self._server.earliest(at, self.now.timestamp())
            self._timestamp = at
        return self._timestamp

    def until(self, date: str) -> float | None:
        """Return the seconds until the date, 0.0 if it has passed, None if it is no date."""
        parsed = parse_date(date, self.now)
        return None if parsed is None else max(0.0, parsed.timestamp() - self.timestamp)


def items(text: str) -> Iterator[str]:
    """Split at commas, but not inside a date."""
    if "," not in text or len(text) > _LONGEST_LIST:
        yield text
        return
    for match in islice(_ITEM.finditer(text), MOST_ITEMS):
        yield match[0].strip(" \t")


def read_number(text: str) -> float | None:
    """Parse digits, with or without a fraction."""
    if text.isdecimal() and text.isascii():
        # More digits make no difference, and cost time.
        return float(text[:_LONGEST_NUMBER])
    if not text[-1:].isdecimal() or len(text) > _LONGEST_NUMBER or not _FRACTION.fullmatch(text):
        return None
    return float(text)


def in_seconds(text: str) -> str:
    """Convert a number of milliseconds to seconds; return any other text unchanged."""
    number = read_number(text)
    return text if number is None or number >= EPOCHS_FROM else f"{number / 1000:.6f}"


def read_count(text: str) -> float | None:
    """Parse a limit or a remainder, with its fraction; None if it has more than 18 digits."""
    if text.isdecimal() and text.isascii():
        return int(text) if len(text) <= 18 else None
    whole, _, fraction = text.partition(".")
    if len(whole) > 18 or len(fraction) > 18 or not _FRACTION.fullmatch(text):
        return None
    return float(text)


def read_duration(text: str) -> float | None:
    """Parse a duration as Go writes it: ``1h2m3.5s``, ``12ms``. Returns seconds, at most `CAP`."""
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
    """Parse the length of a window, a number of that unit or a duration; never 0."""
    number = read_number(text)
    seconds = read_duration(text) if number is None else number * unit
    return seconds if seconds is not None and 0.0 < seconds < CAP else None


def read_reset(text: str, clock: Clock) -> float | None:
    """Parse a reset: seconds, an epoch, a date or a duration. Returns seconds.

    The value decides which of them it is, since the names of headers do not. None is returned for
    what cannot be parsed, and for times that no server means: its clock or unit must be wrong.
    """
    if text[-1:].isalpha():
        seconds = read_duration(text)
    else:
        seconds = read_number(text)
        if seconds is not None and seconds >= EPOCHS_FROM:
            clock.dates_resets = True
            return _until_epoch(seconds, clock)
    if seconds is not None:
        return seconds if seconds <= _LONGEST_RESET else None
    seconds = clock.until(text)
    if seconds is None or seconds > _FARTHEST_EPOCH:
        return None
    clock.dates_resets = True
    return seconds


def _until_epoch(number: float, clock: Clock) -> float | None:
    for below, scale in _EPOCHS:
        if number < below:
            ahead = number / scale - clock.timestamp
            return max(0.0, ahead) if -_DAY <= ahead <= _FARTHEST_EPOCH else None
    return None
