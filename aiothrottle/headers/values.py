"""Parses one value of a header: a number, a duration, a date, or a reset of any of these forms.

Invariant: the time is linear in the length of the value, and a value that means nothing is None.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar

CAP = 2.0**31
"""Seconds. No duration is longer (RFC 9111, section 1.2.2)."""
EPOCHS_FROM = 1e9
"""A number from here on is a timestamp, as no server asks for a wait of 31 years."""

_ONE_DAY = 86400.0
_LONGEST_RESET = 366 * _ONE_DAY
_FARTHEST_EPOCH = 400 * _ONE_DAY
# Seconds, milli-, micro- and nanoseconds since 1970. The ranges cannot overlap before 5138.
_EPOCHS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))

# ASCII on purpose: int() and float() accept what no server means ("²", "1_000", "NaN").
_FRACTION = re.compile(r"[0-9]+\.[0-9]+")
_LONGEST_NUMBER = _LONGEST_DURATION = 64
MOST_ITEMS = 64
"""The most items of a list that are read: more than any real list has."""
_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3,
    "s": 1.0, "m": 60.0, "h": 3600.0, "d": _ONE_DAY,
}  # fmt: skip
# Not from the middle of a number: a match would be tried from each of its digits.
_PART = re.compile(r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?)(ns|us|µs|μs|ms|s|m|h|d)")
# The comma after a weekday does not end an item.
_ITEM = re.compile(
    r"(?:[ \t]*(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},)?[^,]+", re.IGNORECASE | re.ASCII
)

# Clocks drift apart by less than that, in seconds per second.
_DRIFT = 1e-4
# Seconds. No Date is that much behind the others, unless a clock was set back or it is of another
# server: two seconds are from the cut and the renewal, the rest is latency.
_SET_BACK = 3.0

# Servers use few names repeatedly, but a hostile one may invent any number, of any length.
_MOST_KEYS = 1024
_LONGEST_KEY = 64

Key = TypeVar("Key", bound=Sequence[str])
Meaning = TypeVar("Meaning")


class Memo(dict[Key, Meaning]):
    """A dict that computes a missing value by a function. A hit costs no more than in any dict.

    >>> lengths = Memo(len)
    >>> lengths["four"], list(lengths)
    (4, ['four'])
    """

    __slots__ = ("_function", "_longest", "_most")

    def __init__(
        self,
        function: Callable[[Key], Meaning],
        most: int = _MOST_KEYS,
        longest: int = _LONGEST_KEY,
    ) -> None:
        super().__init__()
        self._function = function
        self._most = most
        self._longest = longest

    def __missing__(self, key: Key) -> Meaning:
        """Compute the value, and keep it if the key is no longer than a real server's."""
        meaning = self._function(key)
        size = len(key) if isinstance(key, str) else sum(map(len, key))
        if size <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[key] = meaning
        return meaning


class ServerClock:
    """How far a server's clock is ahead of the local one, at least.

    >>> clock = ServerClock()
    >>> dates = {5.7: 1000.0, 5.9: 1000.0, 6.0: 1001.0, 6.5: 1001.0}
    >>> [round(clock.earliest(date, now), 2) for now, date in dates.items()]
    [1000.0, 1000.2, 1001.0, 1001.5]
    """

    __slots__ = ("_ahead", "_seen_at")

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._seen_at = 0.0

    def earliest(self, date: float, now: float) -> float:
        """Return the earliest time that the server's clock can show now.

        Args:
            date: The Date of a response that has just arrived, in seconds since 1970.
            now: The local time in seconds, by a clock that nobody sets.
        """
        ahead = date - now
        if self._ahead is not None:
            known = self._ahead - abs(now - self._seen_at) * _DRIFT
            if known - ahead < _SET_BACK:
                ahead = max(ahead, known)
        self._ahead, self._seen_at = ahead, now
        return now + ahead


@dataclass(slots=True, eq=False)
class Clock:
    """The time by the clock of the server: its Date and Age, or else the local time.

    Both timestamps of a difference are then of one clock, so that a wrong one does no harm. The
    Date is parsed at its first use, since most responses contain no other timestamp.

    Args:
        now: The local time.
        date: The Date of the response.
        age: The Age of the response.
        server_time: Returns that by the Date and earlier responses; None: the Date is
            all that is known.
    """

    now: datetime
    date: str | None = None
    age: float = 0.0
    server_time: Callable[[float], float] | None = None
    #: Whether a reset was a timestamp.
    dates_resets: bool = field(default=False, init=False)
    _timestamp: float | None = field(default=None, init=False)

    @property
    def timestamp(self) -> float:
        """Seconds since 1970."""
        if self._timestamp is None:
            date = None if self.date is None else parse_date(self.date, self.now)
            at = self.now.timestamp() if date is None else date.timestamp() + self.age
            if date is not None and self.server_time is not None and not self.age:
                at = self.server_time(at)
            self._timestamp = at
        return self._timestamp

    def until(self, date: str) -> float | None:
        """Return the seconds until the date, 0.0 if it has passed, None if it is no date."""
        parsed = parse_date(date, self.now)
        return None if parsed is None else max(0.0, parsed.timestamp() - self.timestamp)


def items(text: str) -> Sequence[str]:
    """Split at commas, but not inside a date."""
    if "," not in text:
        return (text,)
    return [match[0].strip(" \t") for match in islice(_ITEM.finditer(text), MOST_ITEMS)]


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
    """Return the seconds until a timestamp; None if it is too far away to be meant."""
    for below, scale in _EPOCHS:
        if number < below:
            ahead = number / scale - clock.timestamp
            return max(0.0, ahead) if -_ONE_DAY <= ahead <= _FARTHEST_EPOCH else None
    return None


# ---- arguments -----------------------------------------------------------------------------------


def check_text(name: str, value: object) -> None:
    """Reject anything but a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")


def check_now(now: object) -> None:
    """Reject anything but a time with its zone."""
    if not isinstance(now, datetime):
        raise TypeError(f"now must be a datetime such as datetime.now(UTC), got {now!r}")
    if now.tzinfo is None:
        raise ValueError(f"now must have a time zone, as datetime.now(UTC) has, got {now!r}")


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Parse one value of a Retry-After header (RFC 9110, section 10.2.3).

    Args:
        value: Seconds, whole or decimal, or an HTTP-date in any of its three forms. Also
            accepted: other dates with a zone, ISO 8601, durations (``1m30s``), and an epoch in
            seconds or a smaller unit.
        now: The current time by the clock of the server, aware: the response's own Date if it
            has one, so that a wrong clock on either side does no harm.

    Returns:
        Seconds from now, 0.0 for a date that has passed, at most 2**31 (RFC 9111, section
        1.2.2); None if the value cannot be parsed.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: `now` has no time zone.

    >>> from datetime import UTC
    >>> parse_retry_after("120", datetime(2026, 1, 1, tzinfo=UTC))
    120.0
    >>> parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    30.0
    """
    check_text("value", value)
    check_now(now)
    return read_delay(value.strip(), Clock(now))


def read_delay(text: str, clock: Clock) -> float | None:
    """Parse one wait; return seconds, at most `CAP`."""
    number = read_number(text)
    if number is not None:
        return number if number < EPOCHS_FROM else delay_of(number, clock)
    seconds = read_duration(text)
    if seconds is None:
        seconds = clock.until(text)
    return None if seconds is None else min(seconds, CAP)


def delay_of(number: float, clock: Clock) -> float:
    """Return the seconds that a number means: a delay, or an epoch if it is near enough."""
    if number < EPOCHS_FROM:
        return number
    ahead = _until_epoch(number, clock)
    return CAP if ahead is None else ahead


def _read_milliseconds(text: str, _: Clock) -> float | None:
    number = read_number(text)
    return None if number is None else min(number / 1000, CAP)


# Ranks of waits: a more precise header replaces Retry-After, the last ones count without any other.
_STANDARD, _PRECISE, _FALLBACK = range(3)
WAITS: Mapping[str, tuple[int, Callable[[str, Clock], float | None]]] = {
    "retry-after": (_STANDARD, read_delay),
    "retry-after-ms": (_PRECISE, _read_milliseconds),
    "x-ms-retry-after-ms": (_PRECISE, _read_milliseconds),
    "x-amz-retry-after": (_PRECISE, _read_milliseconds),
    "x-retry-in": (_PRECISE, lambda text, _: read_duration(text)),
    "x-retry-after": (_FALLBACK, read_delay),
    "x-ratelimit-retry-after": (_FALLBACK, read_delay),
    "x-rate-limit-retry-after": (_FALLBACK, read_delay),
    "ratelimit-retry-after": (_FALLBACK, read_delay),
    "rate-limit-retry-after": (_FALLBACK, read_delay),
}
"""Every header with a wait, in lower case: its rank, and what reads one value."""


def read_wait(fields: Mapping[str, Iterable[str]], clock: Clock) -> float | None:
    """Return the longest wait in the headers of `WAITS`, as every layer's limit must be kept.

    A more precise header replaces Retry-After if that is the same wait, rounded up.
    """
    longest: list[float | None] = [None, None, None]
    for name, lines in fields.items():
        rank, read = WAITS[name]
        for line in lines:
            for item in items(line):
                wait, known = read(item, clock), longest[rank]
                if wait is not None and (known is None or wait > known):
                    longest[rank] = wait
    standard, precise, fallback = longest
    if standard is None or precise is None:
        wait = precise if standard is None else standard
        return fallback if wait is None else wait
    return precise if standard - 1.0 < precise else standard


# ---- dates ---------------------------------------------------------------------------------------

# The longest form, JavaScript's with the name of the zone, takes about 70 characters.
_LONGEST_DATE = 100
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMBERS = {month: number for number, month in enumerate(_MONTHS, 1)}
# In hours (RFC 5322, section 4.3). Any other zone is unknown and not guessed.
_ZONES = {
    "": 0, "z": 0, "ut": 0, "utc": 0, "gmt": 0,
    "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7,
}  # fmt: skip

_TIME = (
    r"(?P<hour>[01]?[0-9]|2[0-3]):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]++))?)?"
)
_YEAR = "(?P<year>[0-9]{4})"
_ISO_DATE = rf"{_YEAR}-(?P<month>[0-9]{{2}})-(?P<day>[0-9]{{2}})"
_ANY_YEAR = "(?P<year>[0-9]{4}|[0-9]{2})"
# No two adjacent repetitions can match the same blanks: backtracking over all ways to divide them
# would take more than linear time.
_OFFSET = r"(?P<offset>[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_ZONE = rf"(?P<zone>[a-z]*+)(?: *+{_OFFSET})?(?: *+\([^()]*+\))?"
# Where the zone is required: a truncated date is no date.
_REQUIRED_ZONE = rf"(?=[a-z+-]){_ZONE}"
_WEEKDAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}"
_DAY = r"(?P<day>[0-9]{1,2})"
_MONTH = (
    "(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    "sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
# The only form that RFC 9110 lets servers send, and by far the most common.
_PREFERRED = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    r"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]) GMT"
)
_FORMS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        # Sun, 06 Nov 1994 08:49:37 GMT, and its kin of RFC 850 and RFC 5322
        rf"(?:{_WEEKDAY},? ++)?{_DAY}[ -]{_MONTH}[ -]{_ANY_YEAR} ++{_TIME} *+{_REQUIRED_ZONE}",
        # Sun Nov  6 08:49:37 1994
        rf"(?:{_WEEKDAY},? ++)?{_MONTH} ++{_DAY} ++{_TIME} ++(?:{_ZONE} ++)?{_YEAR}",
        # Sun Nov 06 1994 08:49:37 GMT+0000 (Coordinated Universal Time)
        rf"(?:{_WEEKDAY},? ++)?{_MONTH} ++{_DAY},? ++{_YEAR} ++{_TIME} *+{_REQUIRED_ZONE}",
        # 1994-11-06T08:49:37.000Z
        rf"{_ISO_DATE}(?:T| ++)(?=[0-9]{{2}}:){_TIME} *+{_ZONE}",
    )
]  # fmt: skip


def parse_http_date(value: str, now: datetime | None = None) -> datetime | None:
    """Parse an HTTP-date (RFC 9110, section 5.6.7), or what servers send in place of one.

    Args:
        value: Any of the three forms, or a date of RFC 5322, ISO 8601 or JavaScript. A wrong
            weekday and lower case are accepted. asctime and ISO 8601 may omit the zone: it is UTC.
        now: Resolves a year of two digits, which is never more than 50 years ahead of it. Without
            it, 69 to 99 are in the past century.

    Returns:
        An aware datetime; None if the value is no date, or is in an unknown zone.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: `now` has no time zone.

    >>> parse_http_date("Sunday, 06-Nov-94 08:49:37 GMT")
    datetime.datetime(1994, 11, 6, 8, 49, 37, tzinfo=datetime.timezone.utc)
    """
    check_text("value", value)
    if now is not None:
        check_now(now)
    return parse_date(value.strip(), now)


def parse_date(text: str, now: datetime | None = None) -> datetime | None:
    """Parse a date in any form; return None if it is none."""
    if not 16 <= len(text) <= _LONGEST_DATE:
        return None
    try:
        match = _PREFERRED.fullmatch(text)
        if match:
            day, month, year, time = match.groups()
            # Takes half the time of six calls of int().
            return datetime.fromisoformat(f"{year}-{_NUMBERS[month.lower()]:02}-{day}T{time}Z")
        for form in _FORMS:
            match = form.fullmatch(text)
            if match:
                return _datetime(match, now)
    except (KeyError, ValueError, OverflowError):
        pass  # an unknown zone, the 31st of November, the end of the calendar
    return None


def _datetime(match: re.Match[str], now: datetime | None) -> datetime:
    """Write the date as ISO 8601, which Python reads; it has neither zones nor leap seconds."""
    year, month, second = match["year"], match["month"], match["second"] or "00"
    leaps = second == "60"
    number = month if month.isdigit() else f"{_NUMBERS[month[:3].lower()]:02}"
    time = f"{match['hour']:0>2}:{match['minute']}:{'59' if leaps else second}"
    rest = f"{number}-{match['day']:0>2}T{time}"
    if len(year) == 2:
        year = _with_century(int(year), rest, now)
    date = datetime.fromisoformat(f"{year}-{rest}.{match['fraction'] or 0}{match['offset'] or 'Z'}")
    ahead = timedelta(hours=_ZONES[(match["zone"] or "").lower()], seconds=-leaps)
    return date.astimezone(UTC) - ahead


def _with_century(year: int, rest: str, now: datetime | None) -> str:
    if now is None:
        return f"{year + (1900 if year >= 69 else 2000)}"
    now = now.astimezone(UTC)
    year += now.year // 100 * 100
    # RFC 9110: more than 50 years ahead is the latest such year of the past.
    if f"{year - 50:04}-{rest}" > now.isoformat()[:19]:
        year -= 100
    elif year + 50 < now.year:
        year += 100
    return f"{year:04}"
